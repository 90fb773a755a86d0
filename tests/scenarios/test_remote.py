"""One machine builds, others pull: through a real S3 server, by the command line in fresh processes."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.cache.remotes import local_store
from tests.cache.support import flip
from tests.conftest import TinyEntry
from tests.s3 import S3
from tests.scenarios.conftest import OPTIONS, Done, Precast, copy_model
from tests.scenarios.support import StandIn, stand_in

from precast import RemoteOptions, Settings, StoreOptions, load, precompile
from precast.aot.progress import Silent
from precast.cache.counters import lookup_stats
from precast.cache.remote import Remote
from precast.cache.remote_files import FolderFiles
from precast.errors import PartialError, RemoteError

SETTINGS = Settings(target="cpu", max_num_batched_tokens=512)


@dataclass(frozen=True)
class Built:
    """What a machine built and pushed: its command line's answer, its root, and the files of the bucket."""

    answer: dict[str, Any]
    model: str
    root: Path
    machine: StandIn
    files: dict[str, bytes]

    @property
    def key(self) -> str:
        return str(self.answer["data"]["key"])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, s3_server: S3) -> Built:
    """Build once, on a machine of its own."""
    folder = tmp_path_factory.mktemp("builder")
    bucket = s3_server.bucket()
    bare = stand_in(folder / "machine")
    machine = replace(bare, environ={**bare.environ, **s3_server.environ})
    model = f"{copy_model(folder / 'model')}:base"
    root = folder / "root"
    command = ["precompile", model, *OPTIONS, "--cache-dir", str(root), "--remote", f"s3://{bucket}/team", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "precast.cli", *command], env=machine.environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return Built(json.loads(done.stdout), model, root, machine, s3_server.files(bucket))


@pytest.fixture
def bucket(s3: S3, built: Built) -> str:
    """A bucket of the test's own, as the builder left it."""
    name = s3.bucket()
    s3.put(name, built.files)
    return name


Machine = Callable[..., Done]


@pytest.fixture
def machine(precast: Precast, built: Built, bucket: str, tmp_path: Path) -> Machine:
    """Another machine: an empty root, and the bucket behind it."""

    def run(*words: str, root: str = "mine", remote: str = f"s3://{bucket}/team", **environ: str) -> Done:
        place = ("--cache-dir", str(tmp_path / root), *(("--remote", remote) if remote else ()))
        return precast(*words, *OPTIONS, *place, "--json", env={**built.machine.environ, **environ})

    return run


def test_the_builder_pushed_what_it_built(built: Built) -> None:
    data = built.answer["data"]
    assert data["status"] == "compiled"
    assert data["remote"]["pushed_bytes"] > 0
    assert data["remote"]["pulled_bytes"] == 0
    assert data["remote"]["url"].endswith("/team")
    assert len(built.files) == 1 + 1 + len({payload["object"] for payload in data["payloads"]}) + 1


def test_another_machine_pulls_and_compiles_nothing(machine: Machine, built: Built, tmp_path: Path) -> None:
    before = len(built.machine.events())
    done = machine("precompile", built.model)
    assert done.status == 0, done.err
    data = done.json["data"]
    assert (data["status"], data["key"], done.json["warnings"]) == ("pulled", built.key, [])
    assert data["remote"]["pulled_bytes"] > 0
    assert data["remote"]["pushed_bytes"] == 0
    assert len(built.machine.events()) == before
    assert local_store(tmp_path / "mine").check(built.key) == ()
    alone = machine("precompile", built.model, remote="")
    assert (alone.json["data"]["status"], alone.json["data"]["remote"]) == ("up_to_date", None)
    for name in ("manifest.json", "model.mega"):
        place = Path("v1") / "entries" / built.key / name
        assert (tmp_path / "mine" / place).read_bytes() == (built.root / place).read_bytes()


def test_a_remote_is_no_part_of_the_key(built: Built, tmp_path: Path) -> None:
    """The builder had the driver of S3 in its process while it traced; here there is no remote at all."""
    assert precompile(built.model, SETTINGS, cache_dir=tmp_path, dry_run=True).key == built.key


def test_a_look_says_what_a_run_would_do_and_pulls_nothing(machine: Machine, built: Built, tmp_path: Path) -> None:
    done = machine("precompile", built.model, "--check")
    assert (done.status, done.json["data"]["status"]) == (0, "pullable")
    told = machine("inspect", "explain", built.model)
    assert (told.status, told.json["data"]["status"], told.json["data"]["key"]) == (0, "hit", built.key)
    assert told.json["data"]["remote"]["pullable"] is True
    assert not (tmp_path / "mine" / "v1" / "entries").exists()


@pytest.mark.parametrize("form", ["key", "model"])
def test_verify_pulls_what_is_not_here(machine: Machine, built: Built, form: str) -> None:
    what = built.key[:10] if form == "key" else built.model
    done = machine("verify", what, "--level", "files")
    assert done.status == 0, done.err
    assert (done.json["data"]["key"], done.json["data"]["verified"]) == (built.key, True)
    again = machine("verify", what, "--level", "files", remote="")
    assert again.status == 0, again.err


def test_a_key_that_nobody_has_is_no_entry(machine: Machine) -> None:
    assert machine("verify", "0" * 64).status == 10


# Nobody listens on the port of the discard service.
DEAD = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}


def test_a_broken_remote_is_one_warning_beside_a_hit(machine: Machine, built: Built) -> None:
    here = str(built.root)
    done = machine("precompile", built.model, root=here, **DEAD)
    assert (done.status, done.json["data"]["status"]) == (0, "up_to_date")
    assert [warning["code"] for warning in done.json["warnings"]] == ["remote.unreachable"]
    assert done.err.count("warning:") == 1
    quiet = machine("precompile", built.model, "--offline", root=here, **DEAD)
    assert (quiet.status, quiet.json["warnings"]) == (0, [])
    variable = machine("precompile", built.model, root=here, PRECAST_OFFLINE="1", **DEAD)
    assert (variable.status, variable.json["warnings"]) == (0, [])


def test_a_broken_remote_that_is_required_ends_the_command_before_anything_is_compiled(
    machine: Machine, built: Built, tmp_path: Path
) -> None:
    before = len(built.machine.events("start"))
    done = machine("precompile", built.model, "--remote-required", **DEAD)
    assert (done.status, done.json["errors"][0]["code"]) == (12, "remote.unreachable")
    assert machine("verify", built.key, "--remote-required", **DEAD).status == 12
    assert len(built.machine.events("start")) == before
    assert list(local_store(tmp_path / "mine").entries()) == []


def test_a_damaged_object_is_a_warning_and_built_again_and_replaced(
    machine: Machine, built: Built, bucket: str, s3: S3, tmp_path: Path
) -> None:
    name = min(name for name in built.files if "objects" in name)
    s3.put(bucket, {name: flip(500)(built.files[name])})
    required = machine("precompile", built.model, "--remote-required")
    assert (required.status, required.json["errors"][0]["code"]) == (4, "store.corrupt")
    done = machine("precompile", built.model)
    assert (done.status, done.json["data"]["status"], done.json["data"]["key"]) == (0, "compiled", built.key)
    assert {warning["code"] for warning in done.json["warnings"]} == {"remote.corrupt"}
    assert "\n" not in done.json["warnings"][0]["message"]
    third = machine("precompile", built.model, root="third")
    assert (third.json["data"]["status"], third.json["warnings"]) == ("pulled", [])


_IMPORTED = """
import sys
from precast.cli.app import main
status = main(sys.argv[1:])
heavy = {"fsspec", "s3fs", "aiobotocore", "botocore", "aiohttp", "huggingface_hub", "torch"} & set(sys.modules)
ours = [name for name in sys.modules if name.startswith("precast.cache.remote_")]
sys.exit(f"{status} {sorted(heavy)} {ours}" if status or heavy or ours else 0)
"""


def test_without_a_remote_nothing_of_it_is_imported(machine: Machine, built: Built) -> None:
    command = [sys.executable, "-c", _IMPORTED, "precompile", built.model, *OPTIONS, "--cache-dir", str(built.root)]
    done = subprocess.run(command, env=built.machine.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Notes(Silent):
    """Keeps warnings."""

    def __init__(self) -> None:
        self.codes: list[str] = []

    def warning(self, code: str, message: str, hint: str = "") -> None:
        self.codes.append(code)


@pytest.fixture
def share(tmp_path: Path) -> RemoteOptions:
    (tmp_path / "share").mkdir()
    return RemoteOptions(f"file://{tmp_path}/share")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return f"{copy_model(tmp_path / 'model')}:base"


def test_a_shared_folder_is_a_remote_and_one_that_may_only_be_read_is_never_written(
    model: str, share: RemoteOptions, tmp_path: Path, fake_compile: list[str]
) -> None:
    readers = StoreOptions(remote=replace(share, read_only=True))
    first = precompile(model, SETTINGS, cache_dir=tmp_path / "a", options=readers)
    assert (first.status, first.pushed_bytes, list((tmp_path / "share").iterdir())) == ("compiled", 0, [])
    second = precompile(model, SETTINGS, cache_dir=tmp_path / "a", options=StoreOptions(remote=share))
    assert (second.status, second.pushed_bytes > 0) == ("up_to_date", True)
    pulled = precompile(model, SETTINGS, cache_dir=tmp_path / "b", options=readers)
    assert (pulled.status, pulled.key, pulled.pulled_bytes > 0) == ("pulled", first.key, True)
    assert pulled.saved_seconds == second.saved_seconds > 0


def test_an_entry_whose_pointer_is_lost_is_found_after_one_trace(
    model: str, share: RemoteOptions, tmp_path: Path, fake_compile: list[str]
) -> None:
    options = StoreOptions(remote=share)
    first = precompile(model, SETTINGS, cache_dir=tmp_path / "a", options=options)
    (pointer,) = (tmp_path / "share" / "v1" / "requests").glob("*/*")
    pointer.unlink()
    compiled = len(fake_compile)
    looked = precompile(model, SETTINGS, cache_dir=tmp_path / "b", options=options, dry_run=True)
    assert (looked.status, looked.key) == ("pullable", first.key)
    pulled = precompile(model, SETTINGS, cache_dir=tmp_path / "b", options=options)
    assert (pulled.status, len(fake_compile)) == ("pulled", compiled)
    assert pointer.exists()


def test_a_broken_remote_changes_nothing_but_a_warning(model: str, tmp_path: Path, fake_compile: list[str]) -> None:
    notes = Notes()
    options = StoreOptions(remote=RemoteOptions(f"file://{tmp_path}/unmounted"))
    made = precompile(model, SETTINGS, cache_dir=tmp_path / "a", options=options, progress=notes)
    assert (made.status, notes.codes) == ("compiled", ["remote.unreachable"])
    assert not (tmp_path / "unmounted").exists()
    assert lookup_stats(local_store(tmp_path / "a")).misses == {"remote_unreachable": 1}
    required = replace(options, remote=RemoteOptions(f"file://{tmp_path}/unmounted", required=True))
    with pytest.raises(RemoteError):
        precompile(model, SETTINGS, cache_dir=tmp_path / "b", options=required)
    assert len(fake_compile) == made.unique


def test_a_push_that_fails_is_partial_where_the_remote_is_required(
    model: str, share: RemoteOptions, tmp_path: Path, fake_compile: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(FolderFiles, "create", refuse)
    with pytest.raises(PartialError) as caught:
        precompile(
            model, SETTINGS, cache_dir=tmp_path / "a", options=StoreOptions(remote=replace(share, required=True))
        )
    assert local_store(tmp_path / "a").check(caught.value.entry) == ()
    assert not Remote(share.url).has(caught.value.entry)
    notes = Notes()
    again = precompile(model, SETTINGS, cache_dir=tmp_path / "a", options=StoreOptions(remote=share), progress=notes)
    assert (again.status, notes.codes) == ("up_to_date", ["remote.refused"])


def test_a_damaged_local_entry_comes_back_from_the_remote(
    model: str, share: RemoteOptions, tmp_path: Path, fake_compile: list[str]
) -> None:
    options = StoreOptions(remote=share)
    first = precompile(model, SETTINGS, cache_dir=tmp_path / "a", options=options)
    store = local_store(tmp_path / "a")
    store.layout.manifest(first.key).write_bytes(b"{}")
    store.layout.mega(first.key).write_bytes(b"")
    compiled = len(fake_compile)
    again = precompile(model, SETTINGS, cache_dir=tmp_path / "a", options=options)
    assert (again.status, again.key, len(fake_compile)) == ("pulled", first.key, compiled)
    assert store.check(first.key) == ()


def test_no_address_and_no_credential_reaches_the_cache(built: Built) -> None:
    """What was pushed and what was built name neither the remote nor the machine's keys."""
    told = b"\n".join([*built.files.values(), *(p.read_bytes() for p in built.root.rglob("*") if p.is_file())])
    assert b"testing" not in told
    assert b"s3://" not in told


@pytest.mark.compiles
def test_a_serving_process_loads_what_only_the_remote_has(
    tiny_entry: TinyEntry, share: RemoteOptions, tmp_path: Path
) -> None:
    from precast.aot.numerics import build_real
    from precast.aot.reference import parse_reference

    Remote(share.url).push(local_store(tiny_entry.root), tiny_entry.key)
    spec = parse_reference(str(tiny_entry.folder)).spec({})
    module = build_real(spec, "cpu")
    options = StoreOptions(remote=replace(share, read_only=True))
    near = load(tiny_entry.key, module, cache_dir=tiny_entry.root)
    far = load(tiny_entry.key[:12], module, cache_dir=tmp_path / "mine", options=options)
    with spec.sample(module, 7, 1) as inputs:
        expected = near(*inputs)
    with spec.sample(module, 7, 1) as inputs:
        assert far(*inputs).equal(expected)
    assert local_store(tmp_path / "mine").check(tiny_entry.key) == ()
