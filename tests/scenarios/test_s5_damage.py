"""S5: killed, cut short, disk full: an entry is there or it is not, damage is found and mended, and nothing spreads.

Compiling is stood in for (`tests.scenarios.support`). Every command runs in a process of its own; where there are many,
they are forked from one that has done the imports (`tests.scenarios.forks`).
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.conftest import OPTIONS, Precast, copy_model
from tests.scenarios.forks import Forks, forks
from tests.scenarios.support import StandIn, stand_in, start, temporary_files

from precast.cache.locks import dead_claims
from precast.cache.store import Store
from precast.errors import ExitCode

KILLS, FRESH_KILLS, KILLS_IN_PUBLISHING = 20, 4, 10
SEED = 20_261_130
MIB = 2**20
BIG = 3 * MIB

# One layer is enough here: what is under test comes after the trace.
ONE_LAYER = ("--set", "pipeline=4")

COMPILER = (
    "torch", "torch._dynamo", "torch._inductor", "torch.export", "precast.aot.compile", "precast.aot.planning",
    "precast.aot.precompile", "precast.aot.publish", "precast.aot.torch_seams.export", "precast.aot.verify",
    "precast.cli.commands.precompile", "precast.cli.commands.verify",
)  # fmt: skip


READER = (
    "precast.aot.precompile", "precast.aot.verify", "precast.cli.commands.precompile", "precast.cli.commands.verify",
    "safetensors", "zstandard",
)  # fmt: skip


@dataclass(frozen=True)
class Yard:
    """The folders of one test.

    Attributes:
        root: The store.
        model: The model's file.
        compile: What stands in for the compile.
    """

    root: Path
    model: Path
    compile: StandIn

    def precompile(self, *more: str) -> tuple[str, ...]:
        return ("precompile", f"{self.model}:base", *ONE_LAYER, *OPTIONS, "--cache-dir", str(self.root), *more)

    def verify(self, key: str) -> tuple[str, ...]:
        return ("verify", key, "--level", "files", "--cache-dir", str(self.root), "--json")

    def store(self) -> Store:
        return Store(self.root, read_only=True)

    def entries(self) -> list[str]:
        """The keys of all entries."""
        return [line.key for line in self.store().entries()]

    def left(self) -> list[str]:
        """What only unfinished work leaves, claims included."""
        claims = [str(path) for path in dead_claims(self.root / "v1" / "locks")]
        return [*temporary_files(self.root, self.compile.scratch), *claims]


@dataclass(frozen=True)
class Works:
    """A place where entries are made: what stands in for the compile, and the process that forks the commands."""

    model: Path
    compile: StandIn
    server: Forks

    def yard(self, folder: Path) -> Yard:
        return Yard(folder / "R", self.model, self.compile)


@contextmanager
def opened_works(folder: Path, payload_bytes: int) -> Iterator[Works]:
    compile_ = stand_in(folder / "s", payload_bytes=payload_bytes)
    warmed = Yard(folder / "W", copy_model(folder / "m"), compile_)
    with forks(folder / "f", compile_.environ, COMPILER, warmed.precompile()) as server:
        yield Works(warmed.model, compile_, server)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Works]:
    """Works that make small payloads."""
    with opened_works(tmp_path_factory.mktemp("small"), 4096) as works:
        yield works


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Works]:
    """Works that make payloads of which two are more than a small disk holds."""
    with opened_works(tmp_path_factory.mktemp("big"), BIG) as works:
        yield works


def require_none_or_complete(yard: Yard) -> str | None:
    """Require what S5 asks for after each kill, and return the key of the entry that is there."""
    keys = yard.entries() if yard.root.exists() else []
    for key in keys:
        assert yard.store().check(key) == ()
    assert len(keys) <= 1
    return keys[0] if keys else None


# (a) kill -9


def names_below(folder: Path) -> set[str]:
    """Return every name below a folder, temporary ones included."""
    return {f"{place}/{name}" for place, folders, files in os.walk(folder) for name in (*folders, *files)}


def kill_in_publishing(pid: int, folder: Path, count: int) -> bool:
    """Kill a process as soon as so many names have been seen below a folder; tell whether it lived until then."""
    seen: set[str] = set()
    while len(seen) < count:
        seen |= names_below(folder)
        if not _is_running(pid):
            return False
        time.sleep(0.0005)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def remove_entry(yard: Yard) -> None:
    """Take the entry and all objects away, so that the next process publishes from the beginning."""
    store = Store(yard.root)
    for key in yard.entries():
        store.quarantine(key, "the test needs an empty store")
    for path in store.layout.objects.rglob("*.zst"):
        path.unlink()


def test_after_a_kill_at_any_time_there_is_no_entry_or_a_complete_one(tmp_path: Path, big: Works) -> None:
    yard, server = big.yard(tmp_path), big.server
    chance = random.Random(SEED)
    in_publishing, left_some = 0, 0

    def recover(run: Callable[[], int]) -> None:
        assert run() == 0
        key = require_none_or_complete(yard)
        assert key is not None
        assert yard.left() == []

    began = time.monotonic()
    first = server.run(*yard.precompile())
    assert first.status == 0, first.err
    whole = time.monotonic() - began
    for number in range(KILLS - FRESH_KILLS):
        remove_entry(yard)
        pid = server.start(*yard.precompile())
        if number < 3:
            delay = chance.uniform(0, whole)
            time.sleep(delay)
            server.kill()
            told = f"after {delay:.3f} s"
        else:
            # Objects come first, each in its folder; then the entry is staged; then it appears.
            place, most = (("objects", 7), ("staging", 5), ("entries", 1))[number % 3]
            count = chance.randint(1, most)
            in_publishing += kill_in_publishing(pid, yard.root / "v1" / place, count)
            told = f"after {count} names in {place}"
        status = server.end().status
        left_some += bool(yard.left())
        key = require_none_or_complete(yard)
        assert status in (-9, 0), f"seed {SEED}, kill {number} {told}"
        if number % 4 == 3 or key is not None:
            recover(lambda: server.run(*yard.precompile()).status)
    for _ in range(FRESH_KILLS):
        remove_entry(yard)
        process = start(*yard.precompile(), environ=yard.compile.environ)
        time.sleep(chance.uniform(0, 2 * whole))
        process.kill()
        process.communicate()
        require_none_or_complete(yard)
    last = start(*yard.precompile(), environ=yard.compile.environ)
    last.communicate()
    recover(lambda: last.returncode)
    assert in_publishing >= KILLS_IN_PUBLISHING, f"seed {SEED}: only {in_publishing} kills met a publication"
    assert left_some, "no kill left anything to tidy up"


# (b) every file, every way


DAMAGES: Mapping[str, Callable[[bytes, bytes], bytes]] = {
    "half": lambda data, other: data[: len(data) // 2],
    "zero": lambda data, other: b"",
    "flip": lambda data, other: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
    "swap": lambda data, other: other,
}
CODES = {"half": "truncated", "zero": "empty", "flip": "altered", "swap": "foreign"}


@pytest.fixture(scope="module")
def two_entries(tmp_path_factory: pytest.TempPathFactory, small: Works) -> Yard:
    """A store with two entries, the second one to be damaged."""
    yard = small.yard(tmp_path_factory.mktemp("two"))
    for more in (("--set", "attention_scale=0.5"), ()):
        ended = small.server.run(*yard.precompile(*more))
        assert ended.status == 0, ended.err
    return yard


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, small: Works) -> Iterator[Forks]:
    """A process without torch: neither verifying files nor mending needs it."""
    with forks(tmp_path_factory.mktemp("reader"), small.compile.environ, READER) as server:
        yield server


def damaged_key(yard: Yard) -> str:
    """The key of the entry that `precompile` of the plain model answers with."""
    used = {key: yard.store().last_used(key) or 0 for key in yard.entries()}
    return max(used, key=lambda key: used[key])


def members(yard: Yard, key: str) -> dict[str, Path]:
    store = yard.store()
    manifest = store.manifest(key)
    found = {"manifest.json": store.layout.manifest(key), "model.mega": store.layout.mega(key)}
    return {**found, **{f"object {name}": store.layout.object(name) for name in manifest.objects}}


def fingerprint(yard: Yard, but: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and inode of every file of entries and objects, but one."""
    base = yard.store().layout.base
    files = [p for folder in ("entries", "objects") for p in (base / folder).rglob("*") if p.is_file() and p != but]
    return {str(path): (path.read_bytes(), path.stat().st_ino) for path in files}


def require_mended(
    yard: Yard, path: Path, member: str, code: str, run: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    """Verify, precompile, verify: found and named, mended alone, sound; the bad copy is in the quarantine."""
    key = damaged_key(yard)
    bad, others = path.read_bytes(), fingerprint(yard, path)
    status, told = run(*yard.verify(key))
    assert status == ExitCode.CORRUPT
    (error,) = told["errors"]
    assert (error["path"], error["entry"]) == (str(path), key)
    (found,) = next(stage["facts"]["damaged"] for stage in told["data"]["stages"] if stage["name"] == "files")
    assert (found["member"], found["code"]) == (member, code)
    assert path.read_bytes() == bad, "verify must change nothing"
    status, told = run(*yard.precompile("--json"))
    assert (status, told["data"]["status"], told["data"]["key"]) == (0, "repaired", key)
    (mended,) = told["data"]["repaired"]
    assert (mended["member"], mended["code"], mended["path"]) == (member, code, str(path))
    assert Path(mended["kept"]).read_bytes() == bad
    assert Path(mended["kept"]).is_relative_to(yard.root / "v1" / "quarantine")
    assert fingerprint(yard, path) == others
    assert run(*yard.verify(key))[0] == 0
    assert yard.left() == []


@pytest.mark.parametrize("how", ["half", "zero", "flip", "swap"])
def test_damage_to_any_file_is_found_named_and_mended_alone(two_entries: Yard, reader: Forks, how: str) -> None:
    yard = two_entries
    key = damaged_key(yard)
    (other,) = set(yard.entries()) - {key}

    def run(*args: str) -> tuple[int, dict[str, Any]]:
        ended = reader.run(*args)
        return ended.status, json.loads(ended.out)

    before = len(yard.compile.events())
    for member, path in members(yard, key).items():
        sound = path.read_bytes()
        path.write_bytes(DAMAGES[how](sound, yard.store().layout.manifest(other).read_bytes()))
        require_mended(yard, path, member, CODES[how], run)
        assert path.read_bytes() == sound
    assert len(yard.compile.events()) == before, "something was compiled"


def test_processes_that_start_from_nothing_mend_as_well(two_entries: Yard, precast: Precast) -> None:
    def run(*args: str) -> tuple[int, dict[str, Any]]:
        done = precast(*args, env=two_entries.compile.environ)
        return done.status, done.json

    path = two_entries.store().layout.mega(damaged_key(two_entries))
    path.write_bytes(DAMAGES["flip"](path.read_bytes(), b""))
    require_mended(two_entries, path, "model.mega", "altered", run)


def test_what_cannot_be_mended_is_built_again_and_the_bad_copy_is_met_no_more(tmp_path: Path, small: Works) -> None:
    yard, run = small.yard(tmp_path), small.server.run
    assert run(*yard.precompile()).status == 0
    (key,) = yard.entries()
    store, compiled = yard.store(), len(yard.compile.events())
    bad = []
    for path in (store.layout.mega(key), store.layout.object(store.manifest(key).payloads[0].object)):
        path.write_bytes(DAMAGES["half"](path.read_bytes(), b""))
        bad.append(path.read_bytes())
    before = fingerprint(yard, Path())
    looked = run(*yard.precompile("--check", "--json"))
    assert (looked.status, json.loads(looked.out)["data"]["status"]) == (ExitCode.DIFFERS, "planned")
    assert fingerprint(yard, Path()) == before, "a dry run must change nothing"
    told = run(*yard.verify(key))
    assert told.status == ExitCode.CORRUPT
    assert len(json.loads(told.out)["errors"]) == 2
    again = run(*yard.precompile("--json"))
    assert (again.status, json.loads(again.out)["data"]["status"]) == (0, "compiled")
    assert len(yard.compile.events()) > compiled
    assert run(*yard.verify(key)).status == 0
    assert run(*yard.precompile("--check")).status == 0
    kept = [path.read_bytes() for path in store.layout.quarantine.rglob("*") if path.is_file()]
    assert all(data in kept for data in bad)
    assert yard.left() == []


# (c) no space


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"this process may not mount a tmpfs: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def require_no_space(told: dict[str, Any], needed: str, *more: str) -> None:
    """The error names the bytes that are needed, the file system, and what is free there."""
    (error,) = told["errors"]
    assert error["code"] == "store.unwritable"
    text = json.dumps(error)
    for part in (needed, "the file system at ", "bytes free", *more):
        assert part in text


def test_a_full_disk_leaves_nothing_or_is_refused_at_once_and_older_entries_stay(
    tmp_path: Path, small_disk: Path, small: Works, big: Works
) -> None:
    yard = small.yard(small_disk)
    assert small.server.run(*yard.precompile()).status == 0
    (old,) = yard.entries()
    more = ("--set", "attention_scale=0.5", "--json")
    # There is room for a beginning, and not for what the compile makes.
    ended = big.server.run(*big.yard(small_disk).precompile(*more))
    assert ended.status == ExitCode.USAGE
    require_no_space(json.loads(ended.out), "There is no space for ", f"the file system at {small_disk} (tmpfs) has ")
    assert yard.entries() == [old]
    assert yard.left() == []
    # Now it is full to the last byte.
    compiled = len(yard.compile.events("start"))
    with suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(65536)):
            pass
    ended = small.server.run(*yard.precompile(*more))
    assert ended.status == ExitCode.USAGE
    require_no_space(json.loads(ended.out), f"{4 * MIB} bytes", f"the file system at {small_disk} (tmpfs) has ")
    assert len(yard.compile.events("start")) == compiled, "it was refused too late"
    assert small.server.run(*yard.verify(old)).status == 0
    assert small.server.run(*yard.precompile()).status == 0
    (small_disk / "filler").unlink()
    assert yard.left() == []


_LIMITED = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
os.execv(sys.executable, [sys.executable, "-m", "precast.cli", *sys.argv[2:]])
"""


def test_a_file_size_limit_leaves_nothing_and_older_entries_stay(two_entries: Yard, big: Works) -> None:
    """The limit is above what is asked for at the beginning, so that it is met in the middle of publishing."""
    yard, limit = two_entries, 5 * MIB
    before = fingerprint(yard, Path())
    args = yard.precompile("--set", "attention_scale=0.25", "--json")
    command = [sys.executable, "-c", _LIMITED, str(limit), *args]
    done = subprocess.run(command, env=big.compile.environ, capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.USAGE, done.stderr
    require_no_space(json.loads(done.stdout), "There is no space for ", f"files of {limit} bytes at most")
    assert set(before.items()) <= set(fingerprint(yard, Path()).items())
    assert len(yard.entries()) == 2
    assert yard.left() == []
    assert all(yard.store().check(key) == () for key in yard.entries())
