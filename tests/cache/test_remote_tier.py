"""What the remote's failures mean: a warning and a miss, or an error where it is required."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.cache.keys import private_key, write_keys
from tests.cache.remotes import Flaky, Killed, MemoryFiles, built_elsewhere, local_store, remote_on, with_entry
from tests.cache.support import FACTORS, PAYLOADS, damage, flip, make_manifest, publish

from precast.cache.canonical import sha256
from precast.cache.factors import Factor
from precast.cache.lookup import MissReason, Request
from precast.cache.options import RemoteOptions, StoreOptions
from precast.cache.remote_files import Files
from precast.cache.remote_store import manifest_name, object_name, signatures_name
from precast.cache.remote_tier import RemoteTier
from precast.cache.remotes import open_tier
from precast.cache.signing import sign_entry, stored_signatures
from precast.cache.store import Store
from precast.errors import AmbiguousKeyError, ConfigValueError, CorruptError, PartialError, RemoteError, SignatureError

ASKED = Request(FACTORS)
DEAD = ConnectionError("the line is dead")


@dataclass
class Told:
    """The warnings that were told."""

    codes: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def __call__(self, code: str, message: str, hint: str) -> None:
        self.codes.append(code)
        self.messages.append(message)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The local store, which is empty."""
    return local_store(tmp_path / "mine")


@pytest.fixture
def there(tmp_path: Path) -> tuple[MemoryFiles, str]:
    """A remote with one entry that answers `ASKED`, and its key."""
    files = MemoryFiles()
    builder, key = with_entry(tmp_path / "builder")
    remote_on(files).push(builder, key, [ASKED.digest])
    return files, key


def tier_on(files: Files, store: Store, told: Told, *, required: bool = False, writable: bool = True) -> RemoteTier:
    return RemoteTier(store, remote_on(files), told, required=required, writable=writable)


def test_without_a_remote_there_is_no_tier(store: Store, told: Told) -> None:
    assert open_tier(store, StoreOptions(), told) is None


def test_options_make_the_tier(store: Store, told: Told, tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys")
    options = StoreOptions(remote=RemoteOptions("s3://bucket/x", required=True), required_signatures=(keys.public,))
    tier = open_tier(store, options, told)
    assert tier is not None
    assert (tier.url, tier.writable, tier.required) == ("s3://bucket/x", True, True)
    assert [key.id for key in tier.trusted] == [keys.id]
    for read_only in (
        StoreOptions(remote=RemoteOptions("s3://bucket/x", read_only=True)),
        StoreOptions(read_only=True, remote=RemoteOptions("s3://bucket/x")),
    ):
        opened = open_tier(store, read_only, told)
        assert opened is not None
        assert not opened.writable


def test_a_wrong_address_is_an_error_before_anything_else(store: Store, told: Told) -> None:
    with pytest.raises(ConfigValueError):
        open_tier(store, StoreOptions(remote=RemoteOptions("bucket")), told)


def test_an_entry_that_answers_is_pulled(there: tuple[MemoryFiles, str], store: Store, told: Told) -> None:
    files, key = there
    tier = tier_on(files, store, told)
    looked = tier.look(ASKED, [], {})
    assert looked is not None
    assert list(store.entries()) == []
    taken = tier.take(ASKED, [], {})
    assert taken == looked == store.manifest(key)
    assert (len(tier.pulled), told.codes, tier.reasons) == (1, [], ())


@pytest.mark.parametrize("find", [RemoteTier.look, RemoteTier.take])
def test_an_entry_of_another_request_is_a_miss(
    there: tuple[MemoryFiles, str], store: Store, told: Told, find: Callable[..., object]
) -> None:
    """A pointer is no proof: what the entry was made of is compared, as for a local one."""
    files, key = there
    other = Request((*FACTORS[:-1], Factor("graph", "graph", "cd" * 32)))
    remote_on(files).store.point([f"v1/requests/{other.digest}/{key}"])
    assert find(tier_on(files, store, told), other, [], {}) is None
    assert (told.codes, list(store.entries())) == ([], [])


def test_an_entry_that_does_not_fit_this_node_is_a_miss(
    there: tuple[MemoryFiles, str], store: Store, told: Told
) -> None:
    files, key = there
    tier = tier_on(files, store, told)
    tier.unfit = lambda manifest: [MissReason("target_mismatch", manifest.key, "glibc", "2.99", "2.36")]
    assert (tier.look(ASKED, [], {}), tier.take(ASKED, [], {}), tier.look_up(key), tier.take_key(key)) == (None,) * 4
    assert list(store.entries()) == []
    assert tier.pull(key) is not None  # asked for by its name, it comes: loading it says what does not fit


def test_an_entry_is_found_by_its_key(there: tuple[MemoryFiles, str], store: Store, told: Told) -> None:
    files, key = there
    tier = tier_on(files, store, told)
    assert tier.look_up(key) == remote_on(files).manifest(key)
    assert tier.look_up("0" * 64) is None
    assert list(store.entries()) == []
    assert tier.take_key(key) == store.manifest(key)
    assert told.codes == []


def test_an_entry_is_found_by_the_beginning_of_its_key(
    there: tuple[MemoryFiles, str], store: Store, told: Told
) -> None:
    files, key = there
    tier = tier_on(files, store, told)
    assert [tier.pull_named(text) for text in ("", key[:5], "nothing", "0" * 6, "0" * 64, f"{key}0")] == [None] * 6
    pulled = tier.pull_named(key[:6].upper())
    assert pulled is not None
    assert pulled.key == key


def test_the_beginning_of_two_keys_names_both(there: tuple[MemoryFiles, str], store: Store, told: Told) -> None:
    files, key = there
    other = key[:-1] + ("0" if key[-1] != "0" else "1")
    files.write(manifest_name(other), b"{}")
    with pytest.raises(AmbiguousKeyError) as caught:
        tier_on(files, store, told).pull_named(key[:6])
    assert key in caught.value.why
    assert other in caught.value.why


READS: dict[str, Callable[[RemoteTier, str], object]] = {
    "look": lambda tier, key: tier.look(ASKED, [], {}),
    "take": lambda tier, key: tier.take(ASKED, [], {}),
    "look up": lambda tier, key: tier.look_up(key),
    "take key": lambda tier, key: tier.take_key(key),
    "pull": lambda tier, key: tier.pull(key),
    "pull named": lambda tier, key: tier.pull_named(key[:8]),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
@pytest.mark.parametrize(
    ("error", "code"), [(DEAD, "remote.unreachable"), (PermissionError(13, "Permission denied"), "remote.refused")]
)
def test_a_broken_remote_is_one_warning_and_a_miss(
    there: tuple[MemoryFiles, str], store: Store, told: Told,
    read: Callable[[RemoteTier, str], object], error: Exception, code: str, tmp_path: Path,
) -> None:  # fmt: skip
    files, key = there
    builder, _ = with_entry(tmp_path / "again")
    total = 0
    for fails_at in range(99):
        flaky = Flaky(files, fails_at, error)
        fresh, warned = local_store(tmp_path / f"{fails_at}"), Told()
        tier = tier_on(flaky, fresh, warned)
        if read(tier, key) is not None:
            total = fails_at
            break
        asked = len(flaky.operations)
        assert read(tier, key) is None
        tier.push(builder.manifest(key).key, [], built=True)
        assert len(flaky.operations) == asked  # what is broken is left alone
        assert (warned.codes, tier.reasons[0].code, tier.reasons[0].b) == ([code], "remote_unreachable", tier.url)
        assert list(fresh.entries()) == []
    assert total > 0


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_a_required_remote_that_is_broken_is_an_error(
    there: tuple[MemoryFiles, str], store: Store, told: Told, read: Callable[[RemoteTier, str], object]
) -> None:
    files, key = there
    for fails_at in (0, 1):
        with pytest.raises(RemoteError):
            read(tier_on(Flaky(files, fails_at, DEAD), store, told, required=True), key)
    assert (told.codes, list(store.entries())) == ([], [])


def spoil(files: MemoryFiles, key: str) -> None:
    name = object_name(sha256(PAYLOADS[0]))
    files.files[name] = flip(500)(files.files[name])


def test_a_damaged_entry_is_a_warning_and_a_miss_and_the_next_candidate_is_taken(
    there: tuple[MemoryFiles, str], store: Store, told: Told, tmp_path: Path
) -> None:
    files, key = there
    other = Factor("code", "data:none.json", None)
    builder = local_store(tmp_path / "other")
    second = publish(builder, make_manifest((b"third " * 40,), {}, (*FACTORS, other)), (b"third " * 40,))
    remote_on(files).push(builder, second, [ASKED.digest])
    spoil(files, key)
    tier = tier_on(files, store, told)
    taken = tier.take(ASKED, [], {})
    assert taken is not None
    assert taken.key == second
    assert told.codes == (["remote.corrupt"] if key < second else [])
    assert (tier.pull(key), tier.reasons) == (None, ())
    assert set(told.codes) == {"remote.corrupt"}
    assert [entry.key for entry in store.entries()] == [second]


def test_a_damaged_entry_is_an_error_where_the_remote_is_required(
    there: tuple[MemoryFiles, str], store: Store, told: Told
) -> None:
    files, key = there
    spoil(files, key)
    with pytest.raises(CorruptError):
        tier_on(files, store, told, required=True).take(ASKED, [], {})
    assert list(store.entries()) == []


def test_an_entry_that_lacks_an_object_is_not_looked_at_as_there(
    there: tuple[MemoryFiles, str], store: Store, told: Told
) -> None:
    files, key = there
    del files.files[object_name(sha256(PAYLOADS[0]))]
    tier = tier_on(files, store, told)
    assert (tier.look(ASKED, [], {}), tier.look_up(key)) == (None, None)


@pytest.mark.parametrize("required", [False, True])
def test_a_newer_format_is_a_warning_and_a_miss(
    there: tuple[MemoryFiles, str], store: Store, told: Told, required: bool
) -> None:
    """A fleet updates one node after the other; none of them may fail for it."""
    files, key = there
    files.files[manifest_name(key)] = files.files[manifest_name(key)].replace(b"manifest/1", b"manifest/9")
    assert tier_on(files, store, told, required=required).take(ASKED, [], {}) is None
    assert told.codes == ["remote.format"]


def test_only_what_a_trusted_key_signed_is_pulled(store: Store, told: Told, tmp_path: Path) -> None:
    files = MemoryFiles()
    builder, key = with_entry(tmp_path / "builder")
    remote_on(files).push(builder, key, [ASKED.digest])
    tier = tier_on(files, store, told)
    tier.trusted = (private_key("one").public,)
    assert (tier.take(ASKED, [], {}), told.codes, list(store.entries())) == (None, ["remote.untrusted"], [])
    sign_entry(builder, builder.manifest(key), private_key("two"))
    remote_on(files).push(builder, key, built=False)
    assert tier.take(ASKED, [], {}) is None
    sign_entry(builder, builder.manifest(key), private_key("one"))
    remote_on(files).push(builder, key, built=False)
    assert tier.take(ASKED, [], {}) == builder.manifest(key)
    assert stored_signatures(store, key) == stored_signatures(builder, key)
    assert len(stored_signatures(store, key).items) == 2


def test_a_signature_over_something_else_is_none(
    there: tuple[MemoryFiles, str], store: Store, told: Told, tmp_path: Path
) -> None:
    files, key = there
    other, other_key = with_entry(tmp_path / "other", payloads=(b"other " * 40,))
    sign_entry(other, other.manifest(other_key), private_key("one"))
    files.files[signatures_name(key)] = stored_signatures(other, other_key).to_json()
    tier = tier_on(files, store, told, required=True)
    tier.trusted = (private_key("one").public,)
    with pytest.raises(SignatureError, match="does not fit"):
        tier.pull(key)
    assert list(store.entries()) == []


def test_signatures_of_two_machines_are_joined(tmp_path: Path) -> None:
    files = MemoryFiles()
    one, key = with_entry(tmp_path / "one")
    two, _ = with_entry(tmp_path / "two")
    for store, name in ((one, "one"), (two, "two")):
        sign_entry(store, store.manifest(key), private_key(name))
        remote_on(files).push(store, key, built=True)
    assert len(remote_on(files).store.signatures(key).items) == 2


def test_signatures_come_before_their_manifest(tmp_path: Path) -> None:
    files = Flaky(MemoryFiles())
    one, key = with_entry(tmp_path / "one")
    sign_entry(one, one.manifest(key), private_key("one"))
    remote_on(files).push(one, key)
    written = files.writes()
    assert written.index(signatures_name(key)) < written.index(manifest_name(key))


def test_a_builder_that_comes_too_late_leaves_the_signatures_of_the_first(tmp_path: Path) -> None:
    """It had looked before there was anything, and has its own signature on another build."""
    files = MemoryFiles()
    first, key = with_entry(tmp_path / "first")
    second, _ = with_entry(tmp_path / "second", built_elsewhere)
    for store, name in ((first, "one"), (second, "two")):
        sign_entry(store, store.manifest(key), private_key(name))

    class Late(MemoryFiles):
        """Gets the first build while the objects of the second one are on their way."""

        def write(self, name: str, data: bytes) -> None:
            if name.startswith("v1/objects") and manifest_name(key) not in files.files:
                remote_on(files).push(first, key)
            super().write(name, data)

    late = Late()
    late.files = files.files
    assert remote_on(late).push(second, key).kept is True
    tier = tier_on(files, local_store(tmp_path / "reader"), Told(), required=True)
    tier.trusted = (private_key("one").public,)
    assert tier.pull(key) == first.manifest(key)
    assert len(stored_signatures(tier.store, key).items) == 1


def test_signatures_of_a_damaged_build_go_with_it(tmp_path: Path) -> None:
    files = MemoryFiles()
    first, key = with_entry(tmp_path / "first")
    sign_entry(first, first.manifest(key), private_key("one"))
    remote_on(files).push(first, key)
    spoil(files, key)
    remote = remote_on(files)
    with pytest.raises(CorruptError):
        remote.fetch(local_store(tmp_path / "reader"), key)
    second, _ = with_entry(tmp_path / "second", built_elsewhere)
    remote.push(second, key)
    assert remote.store.signatures(key).items == ()


def test_an_entry_is_pushed_once(store: Store, told: Told, tmp_path: Path) -> None:
    files = Flaky(MemoryFiles())
    builder, key = with_entry(tmp_path / "builder")
    tier = tier_on(files, builder, told)
    tier.push(key, [ASKED.digest], built=True)
    before = len(files.writes())
    tier.push(key, [ASKED.digest], built=False)
    assert (len(files.writes()), [item.objects for item in tier.pushed], told.codes) == (before, [2, 0], [])


def test_a_remote_that_is_read_only_is_never_written(told: Told, tmp_path: Path) -> None:
    files = Flaky(MemoryFiles())
    builder, key = with_entry(tmp_path / "builder")
    tier_on(files, builder, told, writable=False).push(key, [ASKED.digest], built=True)
    assert (files.operations, told.codes) == ([], [])


def test_a_push_that_fails_is_one_warning(told: Told, tmp_path: Path) -> None:
    builder, key = with_entry(tmp_path / "builder")
    tier = tier_on(Flaky(MemoryFiles(), 3, DEAD), builder, told)
    tier.push(key, [ASKED.digest], built=True)
    tier.push(key, [ASKED.digest], built=True)
    assert (told.codes, tier.reasons) == (["remote.unreachable"], ())


def test_a_push_that_fails_is_partial_where_the_remote_is_required(told: Told, tmp_path: Path) -> None:
    builder, key = with_entry(tmp_path / "builder")
    with pytest.raises(PartialError, match="was not pushed") as caught:
        tier_on(Flaky(MemoryFiles(), 3, DEAD), builder, told, required=True).push(key, [], built=True)
    assert (caught.value.entry, builder.check(key)) == (key, ())
    assert "the line is dead" in caught.value.why


def test_a_damaged_local_entry_is_told_and_not_pushed(told: Told, tmp_path: Path) -> None:
    files = MemoryFiles()
    builder, key = with_entry(tmp_path / "builder")
    damage(builder.layout.object(sha256(PAYLOADS[0])), flip(500))
    tier_on(files, builder, told).push(key, [], built=False)
    assert (told.codes, files.files) == (["store.corrupt"], {})
    with pytest.raises(CorruptError):
        tier_on(files, builder, told, required=True).push(key, [], built=False)


def test_a_store_that_is_read_only_pulls_nothing_and_says_so(
    there: tuple[MemoryFiles, str], tmp_path: Path, told: Told
) -> None:
    files, key = there
    tier = tier_on(files, Store(tmp_path / "mine", read_only=True), told)
    assert (tier.pull_named(key), told.codes) == (None, ["remote.not_pulled"])
    assert not (tmp_path / "mine").exists()


def test_nothing_of_ours_catches_the_death_of_the_process(
    there: tuple[MemoryFiles, str], store: Store, told: Told
) -> None:
    files, key = there
    with pytest.raises(Killed):
        tier_on(Flaky(files, 0, Killed()), store, told).pull(key)
