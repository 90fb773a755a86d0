"""S4: eight writers at once do the work once, whoever reads meanwhile sees all of it or nothing, and nobody hangs.

The bound: a unique piece is compiled exactly once a config, and once more after its compile was killed. Compiling is
stood in for (`tests.scenarios.support`), so that a round takes seconds; everything else is real, in fresh processes.
"""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.conftest import OPTIONS, copy_model
from tests.scenarios.support import StandIn, stand_in, start, temporary_files, wait_until

from precast.cache.lock_files import read_holder
from precast.cache.store import Store

WRITERS = 8
ROUNDS = 5
PIECE_SECONDS = 0.5
UNIQUE = 3
GIVEN_UP_S = 300.0
GO_ON_S = 30.0
ABSENT = 10

Process = subprocess.Popen[str]


@dataclass
class Yard:
    """One round's folders: an empty root, the model, and the children's environment."""

    root: Path
    model: Path
    compile: StandIn
    started: list[Process] = field(default_factory=list)

    def writers(self, count: int, *more: str) -> list[Process]:
        """Start writers at the same moment."""
        command = ("precompile", f"{self.model}:base", "--cache-dir", str(self.root), *OPTIONS, "--json", *more)
        made = [start(*command, environ=self.compile.environ) for _ in range(count)]
        self.started += made
        return made

    def run(self, *args: str) -> tuple[int, dict[str, Any]]:
        process = start(*args, "--cache-dir", str(self.root), "--json", environ=self.compile.environ)
        out, err = process.communicate(timeout=GIVEN_UP_S)
        assert "Traceback" not in err, err
        return process.returncode, json.loads(out)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Callable[..., Yard]]:
    """Make rounds; whatever a failed one leaves running is stopped."""
    model = copy_model(tmp_path / "model")
    made: list[Yard] = []

    def make(**environ: str) -> Yard:
        place = tmp_path / f"round{len(made)}"
        child = stand_in(place, seconds=PIECE_SECONDS, environ=environ)
        made.append(Yard(place / "R", model, child))
        return made[-1]

    yield make
    for process in (p for one in made for p in one.started if p.poll() is None):
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def outcomes(writers: Sequence[Process]) -> list[tuple[str, str]]:
    """Wait for writers that must succeed; return what each did, and its key."""
    found = []
    for writer in writers:
        out, err = writer.communicate(timeout=GIVEN_UP_S)
        assert (writer.returncode, "Traceback" in err) == (0, False), (out, err)
        data = json.loads(out)["data"]
        found.append((data["status"], data["key"]))
    return sorted(found)


def once(keys: set[str], writers: int) -> list[tuple[str, str]]:
    """What writers of some configs must have done: one of each built it."""
    each = writers // len(keys)
    return sorted((status, key) for key in keys for status in ("compiled", *["up_to_date"] * (each - 1)))


@contextmanager
def reading(yard: Yard) -> Iterator[list[str]]:
    """List and verify in fresh processes, time and again, while the block runs; give what was seen."""
    seen: list[str] = []
    stop = threading.Event()
    problems: list[BaseException] = []

    def read() -> None:
        try:
            assert yard.run("verify", "0" * 64, "--level", "files")[0] == ABSENT
            while not stop.is_set():
                seen.append(look(yard))
        except BaseException as error:
            problems.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield seen
    finally:
        stop.set()
        reader.join()
    assert problems == []


def look(yard: Yard) -> str:
    """One look of a reader: an entry is complete, or it is absent."""
    status, document = yard.run("inspect", "ls")
    assert status == 0
    entries = document["data"]["entries"]
    assert {entry["state"] for entry in entries} <= {"ok"}
    if not entries:
        return "absent"
    status, document = yard.run("verify", entries[0]["key"], "--level", "files")
    assert status == 0, document
    return "complete"


def assert_whole(yard: Yard, keys: set[str]) -> None:
    """One whole entry a config, and nothing that only unfinished work leaves."""
    store = Store(yard.root)
    assert {entry.key: entry.state for entry in store.entries()} == dict.fromkeys(keys, "ok")
    assert [store.check(key) for key in keys] == [()] * len(keys)
    assert temporary_files(yard.root, yard.compile.scratch) == []
    assert not list(store.layout.quarantine.iterdir())
    assert not [p.name for p in store.layout.locks.iterdir() if "-" in p.name or p.name.startswith("claim")]


@pytest.mark.parametrize("locks", ["flock"] * ROUNDS + ["lease"])
def test_eight_writers_of_one_config_do_its_work_once(locks: str, yard: Callable[..., Yard]) -> None:
    here = yard(PRECAST_LOCKS=locks)
    with reading(here) as seen:
        done = outcomes(here.writers(WRITERS))
        assert wait_until(lambda: "complete" in seen)
    (key,) = {key for _, key in done}
    assert done == once({key}, WRITERS)
    assert seen[0] == "absent"
    assert len(here.compile.events("done")) == len({event.piece for event in here.compile.events()}) == UNIQUE
    # Who waits has nothing to trace, so it does not even import torch.
    assert len({event.pid for event in here.compile.events("torch")}) == 1
    assert_whole(here, {key})


def test_four_and_four_writers_of_two_configs_do_the_work_of_each_once(yard: Callable[..., Yard]) -> None:
    here = yard()
    with reading(here):
        done = outcomes([*here.writers(4), *here.writers(4, "--set", "attention_scale=2.0")])
    keys = {key for _, key in done}
    assert len(keys) == 2
    assert done == once(keys, WRITERS)
    assert len(here.compile.events("done")) == 2 * UNIQUE
    assert len({event.pid for event in here.compile.events("torch")}) == 2
    assert_whole(here, keys)


@pytest.mark.parametrize("locks", ["flock", "lease"])
def test_when_the_one_that_works_is_killed_the_others_go_on(locks: str, yard: Callable[..., Yard]) -> None:
    here = yard(PRECAST_LOCKS=locks)
    with reading(here):
        with here.compile.closed():
            writers = here.writers(WRITERS)
            assert wait_until(lambda: bool(here.compile.events("start")), GIVEN_UP_S)
            working = here.compile.events("start")[0].pid
            killed = next(writer for writer in writers if writer.pid == working)
            killed.kill()
            killed.communicate()
            died = time.monotonic()
            assert wait_until(lambda: holder_of_the_work(here.root) not in (None, working), GO_ON_S)
            assert time.monotonic() - died < GO_ON_S
        done = outcomes([writer for writer in writers if writer is not killed])
    (key,) = {key for _, key in done}
    assert done == once({key}, WRITERS - 1)
    started, finished = here.compile.events("start"), here.compile.events("done")
    assert len(finished) == UNIQUE
    assert {event.pid for event in finished}.isdisjoint({working})
    assert len(started) <= 2 * UNIQUE
    assert len({event.pid for event in here.compile.events("torch")}) == 2
    assert_whole(here, {key})


def holder_of_the_work(root: Path) -> int | None:
    """Return the process that the others wait for, as they are told themselves."""
    for path in (root / "v1" / "locks").glob("request-*"):
        holder = read_holder(path)
        if holder is not None:
            return holder.pid
    return None


def test_a_writer_that_waits_too_long_says_who_works(yard: Callable[..., Yard]) -> None:
    here = yard()
    with here.compile.closed():
        (first,) = here.writers(1)
        assert wait_until(lambda: bool(here.compile.events("start")), GIVEN_UP_S)
        (second,) = here.writers(1, "--lock-timeout", "1")
        out, err = second.communicate(timeout=GIVEN_UP_S)
    assert second.returncode == 11
    (error,) = json.loads(out)["errors"]
    assert error["code"] == "store.locked"
    assert error["why"].startswith(f"process {first.pid}, since ")
    assert err.count("waiting for process") == 1
    assert outcomes([first])[0][0] == "compiled"
