"""Locks and claims, of both kinds: each test runs with kernel locks and with leases."""

import fcntl
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

from precast.cache.lock_files import KINDS_VARIABLE, lock_path, open_lock
from precast.cache.locks import Holder, dead_claims, discard, hold_lock, is_held, live_claims, make_claim
from precast.errors import LockedError, StoreAccessError

KINDS = ("flock", "lease")


@pytest.fixture(autouse=True, params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(KINDS_VARIABLE, request.param)
    return str(request.param)


def test_a_held_lock_keeps_others_out_until_it_is_released(tmp_path: Path) -> None:
    path = lock_path(tmp_path, "a")
    with hold_lock(path, 1) as waited:
        assert not waited
        assert is_held(path)
        with pytest.raises(LockedError) as caught, hold_lock(path, 0):
            pytest.fail("two processes hold one lock")
    assert path.name in caught.value.what
    assert not is_held(path)


def test_who_waits_in_vain_is_told_who_holds_the_lock_and_since_when(tmp_path: Path) -> None:
    path = lock_path(tmp_path, "a")
    told: list[Holder | None] = []
    with hold_lock(path, 1), pytest.raises(LockedError) as caught, hold_lock(path, 0.5, told.append):
        pytest.fail("two processes hold one lock")
    (holder,) = told
    assert holder is not None
    assert (holder.pid, holder.host) == (os.getpid(), "")
    assert caught.value.why == f"{holder} holds it"
    assert caught.value.why.startswith(f"process {os.getpid()}, since 2")
    assert "not got within 0 s" in caught.value.what or "not got within 1 s" in caught.value.what


def test_who_waited_knows_it(tmp_path: Path) -> None:
    path = lock_path(tmp_path, "a")
    told = threading.Event()

    def hold() -> None:
        with hold_lock(path, 1):
            held.set()
            assert told.wait(30)

    held = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)
    with hold_lock(path, 30, lambda _: told.set()) as waited:
        assert waited
    thread.join()


@pytest.mark.parametrize("keep", [True, False])
def test_a_released_lock_leaves_an_empty_file_at_most(keep: bool, kind: str, tmp_path: Path) -> None:
    with hold_lock(lock_path(tmp_path, "a"), 1, keep=keep):
        pass
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([b""] if keep and kind == "flock" else [])


@pytest.mark.parametrize(("mode", "expected"), [(0o700, 0o600), (0o2770, 0o660), (0o755, 0o644)])
def test_a_lock_file_is_open_to_whoever_may_write_its_folder(
    mode: int, expected: int, kind: str, tmp_path: Path
) -> None:
    tmp_path.chmod(mode)
    old = os.umask(0o077)
    try:
        with hold_lock(lock_path(tmp_path, "a"), 1):
            found = lock_path(tmp_path, "a").stat().st_mode & 0o777
    finally:
        os.umask(old)
    # A lease is taken over by replacing it: that needs the folder, and only reading the file.
    assert found == (expected if kind == "flock" else expected & 0o644)


def test_a_lock_in_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreAccessError), hold_lock(tmp_path / "file" / "a.lock", 0):
        pytest.fail("a lock without a file")
    with pytest.raises(StoreAccessError), hold_lock(tmp_path / "absent" / "a.lock", 0):
        pytest.fail("a lock without a folder")


def test_an_absent_lock_is_not_held(tmp_path: Path) -> None:
    assert not is_held(lock_path(tmp_path, "a"))


def test_a_claim_lives_until_it_is_released(tmp_path: Path) -> None:
    first, second = make_claim(tmp_path, "writer"), make_claim(tmp_path, "writer")
    first.release()
    (claim,) = live_claims(tmp_path)
    assert claim.subject == "writer"
    second.release()
    assert live_claims(tmp_path) == ()
    assert dead_claims(tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def test_looking_at_claims_changes_nothing(tmp_path: Path) -> None:
    claim = make_claim(tmp_path, "writer")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    for _ in range(3):
        assert len(live_claims(tmp_path)) == 1
        assert dead_claims(tmp_path) == ()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    claim.release()


def _claim_and_wait(locks: Path, ready: Event) -> None:
    claim = make_claim(locks, "writer")
    with hold_lock(lock_path(locks, "a"), 1):
        ready.set()
        signal.pause()
    claim.release()


@pytest.fixture
def killed(tmp_path: Path) -> int:
    """The id of a process that was killed while it had a lock and a claim in tmp_path."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_claim_and_wait, args=(tmp_path, ready))
    process.start()
    assert ready.wait(60)
    assert process.pid is not None
    assert [claim.subject for claim in live_claims(tmp_path)] == ["writer"]
    assert is_held(lock_path(tmp_path, "a"))
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    return process.pid


def test_locks_and_claims_die_with_their_process(killed: int, tmp_path: Path) -> None:
    assert live_claims(tmp_path) == ()
    (dead,) = dead_claims(tmp_path)
    assert discard(dead)
    assert dead_claims(tmp_path) == ()
    told: list[Holder | None] = []
    with hold_lock(lock_path(tmp_path, "a"), 20, told.append):
        assert told == []


def test_files_of_others_are_no_claims(tmp_path: Path) -> None:
    for name in ("claim.txt", "claim.writer.soon-ab.lock", "writer.lock"):
        (tmp_path / name).touch()
    assert live_claims(tmp_path) == ()
    assert dead_claims(tmp_path) == ()


def test_a_held_lock_is_not_discarded(tmp_path: Path) -> None:
    path = lock_path(tmp_path, "a")
    with hold_lock(path, 1):
        before = path.read_bytes()
        assert not discard(path)
        assert path.read_bytes() == before
    with hold_lock(path, 1):
        pass
    assert discard(path)
    assert not path.exists()


def once_opened(monkeypatch: pytest.MonkeyPatch, name: str, do: Callable[[], None]) -> list[str]:
    """Do something right after this thread has opened a file of that name for the first time, before it goes on."""
    seen: list[str] = []
    real_open: Any = os.open

    def opening(path: Any, *args: Any, **others: Any) -> int:
        descriptor: int = real_open(path, *args, **others)
        if name in str(path) and threading.current_thread() is threading.main_thread() and not seen:
            seen.append(str(path))
            do()
        return descriptor

    monkeypatch.setattr(os, "open", opening)
    return seen


def test_a_lock_file_that_is_discarded_under_a_waiting_process_never_has_two_holders(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A12: the waiter has the old file open; it gets its lock when `discard` lets go, and must not believe that."""
    if kind == "lease":
        pytest.skip("a lease has no file without a holder")
    path = lock_path(tmp_path, "a")
    path.touch()
    waiter = open_lock(path)
    unlinked, go_on = threading.Event(), threading.Event()
    unlink = Path.unlink

    def slow_unlink(self: Path, missing_ok: bool = False) -> None:
        unlink(self, missing_ok)
        unlinked.set()
        assert go_on.wait(30)

    thread = threading.Thread(target=discard, args=(path,))

    def discard_it() -> None:
        monkeypatch.setattr(Path, "unlink", slow_unlink)
        thread.start()
        assert unlinked.wait(30)
        go_on.set()
        thread.join()

    opened = once_opened(monkeypatch, path.name, discard_it)
    waiter.acquire(timeout=10)
    try:
        assert opened
        assert path.stat().st_nlink == 1  # the lock is on a file that others see
        with pytest.raises(LockedError), hold_lock(path, 0):
            pytest.fail("two processes hold one lock")
    finally:
        waiter.release()


def test_a_claim_whose_file_was_taken_for_a_dead_one_is_made_anew(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the moment a claim's file is there and the moment it is locked, it looks like a dead one."""
    if kind == "lease":
        pytest.skip("a lease is held from its first moment")
    seen: list[Path] = []

    def discard_it() -> None:
        seen.extend(dead_claims(tmp_path))
        assert discard(seen[0])

    once_opened(monkeypatch, "claim.", discard_it)
    claim = make_claim(tmp_path, "writer")
    assert len(seen) == 1
    assert [c.subject for c in live_claims(tmp_path)] == ["writer"]
    claim.release()


def test_a_file_system_without_locks_is_told_from_one_without_space(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "lease":
        pytest.skip("a lease needs no locks")

    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(StoreAccessError) as caught, hold_lock(lock_path(tmp_path, "a"), 0):
        pytest.fail("a lock where there are none")
    assert f"{KINDS_VARIABLE}=lease" in caught.value.hint
