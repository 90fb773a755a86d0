"""Loading what somebody signed: nothing is believed that the signature does not bind, however a store is tampered with.

The payload of an attacker is a pickle that writes a file. A kind of payload that unpickles stands for torch's loaders.
"""

import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.aot.support import manifest, publish
from tests.cache.keys import KeyFiles, private_key, write_keys
from tests.cache.support import files_below

from precast.aot.load import load
from precast.aot.verify import VerifyReport, verify
from precast.cache.canonical import Json, sha256
from precast.cache.manifest import Manifest
from precast.cache.mega import MegaFile, write_mega
from precast.cache.mega_export import export_mega
from precast.cache.options import StoreOptions
from precast.cache.requests import remember
from precast.cache.signatures import require_signature
from precast.cache.signing import sign_entry
from precast.cache.store import Store
from precast.errors import CorruptError, ExitCode, PrecastError, SignatureError, UsageError

GOOD = pickle.dumps(list)


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.place, "it sang"))


class Unpickles:
    """A kind of payload that runs what it loads, and keeps what that was."""

    def __init__(self) -> None:
        self.loaded: list[bytes] = []

    def load(self, data: bytes, folder: Path, name: str) -> Any:
        self.loaded.append(data)
        pickle.loads(data)
        return list


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> Unpickles:
    made = Unpickles()
    monkeypatch.setattr("precast.aot.load.payload_kind", lambda name: made)
    return made


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.fixture
def evil(canary: Path) -> bytes:
    return pickle.dumps(Canary(canary))


@pytest.fixture
def keys(tmp_path: Path) -> KeyFiles:
    return write_keys(tmp_path / "keys", "one")


@pytest.fixture
def store(tmp_path: Path, kind: Unpickles) -> Store:
    """A store with one entry, signed by the key `one`."""
    made = manifest(raw=GOOD, model=replace(manifest().model, reference="gone"))
    store = publish(tmp_path / "root", made, GOOD)
    sign_entry(store, store.manifest(made.key), private_key("one"))
    return store


KEY = manifest().key


@pytest.fixture
def shipped(store: Store, tmp_path: Path) -> Path:
    """The entry as one file."""
    (tmp_path / "ship").mkdir()
    export_mega(store, KEY, tmp_path / "ship" / "model.mega")
    return tmp_path / "ship" / "model.mega"


def loads(what: str | Path, root: Path, *keys: KeyFiles, **given: Any) -> None:
    load(what, torch.nn.Module(), cache_dir=root, require_signature=[k.public for k in keys] or None, **given)


def verified(what: str | Path, root: Path, *keys: KeyFiles, **given: Any) -> VerifyReport:
    options = StoreOptions(required_signatures=tuple(k.public for k in keys))
    return verify(what, cache_dir=root, options=options, **given)


def evil_entry(evil: bytes) -> Manifest:
    """What an attacker makes of the entry: the same key, sealed again, with a payload of their own."""
    return manifest(raw=evil, model=replace(manifest().model, reference="gone"))


def take_over(store: Store, evil: bytes) -> None:
    """Replace manifest, mega file and objects, and leave the signatures."""
    made = evil_entry(evil)
    attacker = publish(store.root.parent / "attacker", made, evil)
    for name in ("manifest.json", "model.mega"):
        shutil.copy(attacker.layout.entry(made.key) / name, store.layout.entry(made.key) / name)
    shutil.copytree(attacker.layout.objects, store.layout.objects, dirs_exist_ok=True)


def test_a_signed_entry_loads_and_verifies(store: Store, shipped: Path, keys: KeyFiles, kind: Unpickles) -> None:
    for what in (KEY, shipped):
        loads(what, store.root, keys)
        report = verified(what, store.root, keys)
        assert report.ok
        assert [(s.name, s.status) for s in report.stages][:2] == [("signature", "ok"), ("files", "ok")]
        assert report.stages[0].summary == f"signed by {keys.id}"
        assert report.stages[0].facts["required"] == [keys.id]
    assert kind.loaded == [GOOD] * 4


def test_any_of_several_keys_and_those_of_the_options_will_do(store: Store, keys: KeyFiles, tmp_path: Path) -> None:
    two = write_keys(tmp_path / "keys", "two")
    loads(KEY, store.root, two, keys)
    loads(KEY, store.root, two, options=StoreOptions(required_signatures=(keys.public,)))
    load(KEY, torch.nn.Module(), cache_dir=store.root, require_signature=keys.public)
    load(KEY, torch.nn.Module(), cache_dir=store.root, require_signature=str(keys.public))


def test_the_environment_asks_for_signatures_too(
    store: Store, keys: KeyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Unpickles
) -> None:
    two = write_keys(tmp_path / "keys", "two")
    monkeypatch.setenv("PRECAST_REQUIRE_SIGNATURE", str(two.public))
    with pytest.raises(SignatureError):
        loads(KEY, store.root)
    assert verify(KEY, cache_dir=store.root).exit_code == ExitCode.CORRUPT
    assert kind.loaded == []
    monkeypatch.setenv("PRECAST_REQUIRE_SIGNATURE", f"{two.public}:{keys.public}")
    loads(KEY, store.root)


Attack = Callable[[Store, bytes], None]


def unsigned(store: Store, _: bytes) -> None:
    (store.layout.entry(KEY) / "signatures.json").unlink()


def truncated(store: Store, _: bytes) -> None:
    place = store.layout.entry(KEY) / "signatures.json"
    place.write_bytes(place.read_bytes()[:-40])


def signed_by_another(store: Store, _: bytes) -> None:
    unsigned(store, b"")
    sign_entry(store, store.manifest(KEY), private_key("two"))


def signed_for_another(store: Store, _: bytes) -> None:
    """Put the signatures of an entry with another key into this one's folder."""
    other = replace(store.manifest(KEY), key="ab" * 32)
    publish(store.root, other, GOOD)
    sign_entry(store, store.manifest(other.key), private_key("one"))
    shutil.copy(store.layout.entry(other.key) / "signatures.json", store.layout.entry(KEY) / "signatures.json")


def other_plan(store: Store, _: bytes) -> None:
    """Change the plan that the stitched code is made of, and seal the manifest again."""
    found = store.manifest(KEY)
    store.layout.manifest(KEY).write_bytes(replace(found, plan={**found.plan, "output": None}).to_json())


def other_stamps(store: Store, _: bytes) -> None:
    found = store.manifest(KEY)
    store.layout.manifest(KEY).write_bytes(replace(found, stamps={}).to_json())


def claims_a_known_key(store: Store, evil: bytes) -> None:
    """Sign the attacker's content with the attacker's key, under the name of the known one."""
    take_over(store, evil)
    unsigned(store, b"")
    sign_entry(store, store.manifest(KEY), replace(private_key("two"), public=private_key("one").public))


ATTACKS: tuple[Attack, ...] = (
    unsigned,
    truncated,
    signed_by_another,
    signed_for_another,
    take_over,
    other_plan,
    other_stamps,
    claims_a_known_key,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.__name__)
@pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
def test_an_entry_that_was_tampered_with_is_refused_before_a_payload_is_touched(
    store: Store, keys: KeyFiles, kind: Unpickles, canary: Path, evil: bytes, attack: Attack, strict: bool
) -> None:
    attack(store, evil)
    with pytest.raises(SignatureError):
        loads(KEY, store.root, keys, strict=strict)
    report = verified(KEY, store.root, keys, strict=strict)
    assert (report.ok, report.exit_code, report.level) == (False, ExitCode.CORRUPT, "signature")
    assert [s.name for s in report.stages] == ["signature"]
    assert isinstance(report.problems[0], SignatureError)
    assert kind.loaded == []
    assert not canary.exists()


def test_the_canary_sings_where_no_signature_is_asked_for(
    store: Store, canary: Path, evil: bytes, keys: KeyFiles
) -> None:
    """Else the tests above would prove nothing."""
    take_over(store, evil)
    (store.layout.entry(KEY) / "signatures.json").unlink()
    loads(KEY, store.root)
    assert canary.exists()


def test_a_store_that_is_swapped_after_the_check_does_not_get_in(
    store: Store, keys: KeyFiles, kind: Unpickles, canary: Path, evil: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped_afterwards(*given: Any) -> Any:
        key = require_signature(*given)
        take_over(store, evil)
        return key

    monkeypatch.setattr("precast.aot.sources.require_signature", swapped_afterwards)
    loads(KEY, store.root, keys)
    assert kind.loaded == [GOOD]
    assert not canary.exists()


def test_a_store_that_is_swapped_while_it_is_verified_does_not_get_in(
    store: Store, keys: KeyFiles, kind: Unpickles, canary: Path, evil: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped_afterwards(*given: Any) -> Any:
        key = require_signature(*given)
        take_over(store, evil)
        return key

    monkeypatch.setattr("precast.aot.verify.require_signature", swapped_afterwards)
    report = verified(KEY, store.root, keys)
    assert not report.ok
    assert "replaced" in str(report.problems[0])
    assert kind.loaded == []
    assert not canary.exists()


def test_objects_swapped_under_their_names_do_not_get_in(
    store: Store, keys: KeyFiles, canary: Path, evil: bytes
) -> None:
    good, bad = (store.layout.object(store.put_object(raw).sha256) for raw in (GOOD, evil))
    good.chmod(0o644)
    good.write_bytes(bad.read_bytes())
    with pytest.raises(CorruptError):
        loads(KEY, store.root, keys)
    assert not canary.exists()


def test_a_mega_file_of_another_content_does_not_help_out(
    store: Store, keys: KeyFiles, canary: Path, evil: bytes
) -> None:
    """Without strict, a missing object comes from the mega file, which the signature binds by content as well."""
    take_over_mega = write_mega(evil_entry(evil), {sha256(evil): evil}, {})
    mega = store.layout.mega(KEY)
    mega.chmod(0o644)
    mega.write_bytes(take_over_mega)
    store.layout.object(sha256(GOOD)).unlink()
    with pytest.raises(CorruptError, match="of another entry"):
        loads(KEY, store.root, keys, strict=False)
    assert not canary.exists()


def test_the_entry_s_own_mega_file_does_help_out(store: Store, keys: KeyFiles, kind: Unpickles) -> None:
    store.layout.object(sha256(GOOD)).unlink()
    loads(KEY, store.root, keys, strict=False)
    assert kind.loaded == [GOOD]


def test_a_shipped_file_with_other_content_or_signatures_is_refused(
    store: Store, shipped: Path, keys: KeyFiles, tmp_path: Path, canary: Path, evil: bytes, kind: Unpickles
) -> None:
    attacker = publish(tmp_path / "attacker", evil_entry(evil), evil)
    sign_entry(attacker, attacker.manifest(KEY), private_key("two"))
    foreign, bare, stolen = (tmp_path / name for name in ("foreign.mega", "bare.mega", "stolen.mega"))
    export_mega(attacker, KEY, foreign)
    shutil.copy(attacker.layout.mega(KEY), bare)
    shutil.copy(store.layout.entry(KEY) / "signatures.json", attacker.layout.entry(KEY) / "signatures.json")
    export_mega(attacker, KEY, stolen)
    assert MegaFile(stolen).signatures == MegaFile(shipped).signatures
    for path in (foreign, bare, stolen):
        with pytest.raises(SignatureError):
            loads(path, tmp_path / "none", keys)
        assert verified(path, tmp_path / "none", keys).exit_code == ExitCode.CORRUPT
    assert kind.loaded == []
    assert not canary.exists()


def test_a_file_that_is_swapped_after_the_check_does_not_get_in(
    shipped: Path, keys: KeyFiles, tmp_path: Path, canary: Path, evil: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped_afterwards(*given: Any) -> Any:
        key = require_signature(*given)
        shipped.write_bytes(write_mega(evil_entry(evil), {sha256(evil): evil}, {}))
        return key

    monkeypatch.setattr("precast.aot.sources.require_signature", swapped_afterwards)
    with pytest.raises(CorruptError):
        loads(shipped, tmp_path / "none", keys)
    assert not canary.exists()


@pytest.mark.parametrize("position", range(0, 1000, 190))
def test_a_flipped_byte_of_a_shipped_file_is_found(
    shipped: Path, keys: KeyFiles, tmp_path: Path, kind: Unpickles, position: int
) -> None:
    data = bytearray(shipped.read_bytes())
    data[position * len(data) // 1000] ^= 0xFF
    shipped.write_bytes(bytes(data))
    with pytest.raises((CorruptError, SignatureError)):
        loads(shipped, tmp_path / "none", keys)
    assert kind.loaded == []


def test_what_a_store_remembers_about_a_model_is_not_imported(
    store: Store, keys: KeyFiles, canary: Path, tmp_path: Path
) -> None:
    """Whoever can write a store can write how its model was named, and nobody signs that."""
    (tmp_path / "evil_model.py").write_text(f"from pathlib import Path\nPath({str(canary)!r}).write_text('it sang')\n")
    hint: dict[str, Json] = {"reference": "evil_model.py:factory", "folder": str(tmp_path)}
    remember(store, "cd" * 32, KEY, hint)
    report = verified(KEY, store.root, keys)
    assert (report.ok, report.level) == (True, "load")
    assert not canary.exists()
    assert not verify(KEY, cache_dir=store.root).ok  # without signatures it is imported, since the root is trusted
    assert canary.exists()


def test_nor_is_it_for_a_shipped_file(shipped: Path, canary: Path, tmp_path: Path, store: Store) -> None:
    (tmp_path / "evil_model.py").write_text(f"from pathlib import Path\nPath({str(canary)!r}).write_text('it sang')\n")
    remember(store, "cd" * 32, KEY, {"reference": "evil_model.py:factory", "folder": str(tmp_path)})
    assert verify(shipped, cache_dir=store.root).ok
    assert not canary.exists()


@pytest.mark.parametrize("name", ["absent", "one.pem"])
def test_a_key_that_cannot_be_used_is_told_before_anything_is_read(
    store: Store, keys: KeyFiles, kind: Unpickles, name: str
) -> None:
    wrong = replace(keys, public=keys.public.with_name(name))
    for use in (loads, verified):
        with pytest.raises(UsageError, match="cannot be used as a key"):
            use("abcdef", store.root, wrong)
    assert kind.loaded == []


def test_damaged_signatures_fail_a_verify_that_asks_for_none(store: Store) -> None:
    place = store.layout.entry(KEY) / "signatures.json"
    good = place.read_bytes()
    for bad in (good[: len(good) // 2], b"", good.replace(b'"signature":"', b'"signature":"AAAA')[:-10]):
        place.write_bytes(bad)
        report = verify(KEY, cache_dir=store.root, level="files")
        assert (report.ok, report.exit_code) == (False, ExitCode.CORRUPT)
        assert "signatures.json" in str(report.problems[0])
        assert [s.status for s in report.stages] == ["failed", "ok"]
        lenient = verify(KEY, cache_dir=store.root, level="files", strict=False)
        assert (lenient.ok, lenient.exit_code) == (False, ExitCode.PARTIAL)


def test_a_signature_that_does_not_fit_fails_a_verify_that_asks_for_none(store: Store, evil: bytes) -> None:
    take_over(store, evil)
    report = verify(KEY, cache_dir=store.root, level="files")
    assert report.exit_code == ExitCode.CORRUPT
    assert f"signatures.json: the signature of {private_key('one').public.id} does not fit" in str(report.problems[0])


def test_an_unsigned_entry_is_told_to_be_so(store: Store) -> None:
    unsigned(store, b"")
    stage = verify(KEY, cache_dir=store.root, level="files").stages[0]
    assert (stage.name, stage.status, stage.summary) == ("signature", "skipped", "unsigned")


def test_without_the_library_a_signed_entry_verifies_unchecked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.cache.signatures.can_check", lambda: False)
    report = verify(KEY, cache_dir=store.root, level="files")
    assert report.ok
    assert report.stages[0].summary == f"{private_key('one').public.id} unchecked"


@pytest.mark.parametrize("signed", [True, False])
def test_a_shipped_file_needs_no_store_and_no_home(
    shipped: Path, keys: KeyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signed: bool
) -> None:
    def nobody(uid: int) -> Any:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "PRECAST_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.chdir(shipped.parent)
    asked = (keys,) if signed else ()
    before = files_below(tmp_path)
    load(shipped, torch.nn.Module(), require_signature=[k.public for k in asked])
    assert verify(shipped, options=StoreOptions(required_signatures=tuple(k.public for k in asked))).ok
    assert files_below(tmp_path) == before
    with pytest.raises(PrecastError, match="No place for the cache"):
        load(KEY, torch.nn.Module())


def test_a_shipped_file_leaves_no_stamp_in_a_store_that_is_there(shipped: Path, store: Store, keys: KeyFiles) -> None:
    before = files_below(store.root)
    loads(shipped, store.root, keys)
    verified(shipped, store.root, keys)
    assert files_below(store.root) == before
