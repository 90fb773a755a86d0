import multiprocessing
import os
import signal
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from precast.cache.locks import dead_claims, hold_lock, is_held, live_claims, make_claim
from precast.errors import LockedError, StoreAccessError


def test_a_held_lock_keeps_others_out_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with hold_lock(path, 1):
        assert is_held(path)
        with pytest.raises(LockedError) as caught, hold_lock(path, 0):
            pytest.fail("two processes hold one lock")
    assert "a.lock" in caught.value.what
    assert not is_held(path)


def test_a_lock_in_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreAccessError), hold_lock(tmp_path / "file" / "a.lock", 0):
        pytest.fail("a lock without a file")


def test_an_absent_lock_is_not_held(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "a.lock")


def test_a_claim_lives_until_it_is_released(tmp_path: Path) -> None:
    first, second = make_claim(tmp_path, "writer"), make_claim(tmp_path, "writer")
    first.release()
    (claim,) = live_claims(tmp_path)
    assert claim.subject == "writer"
    second.release()
    assert live_claims(tmp_path) == ()
    assert dead_claims(tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def _claim_and_wait(locks: Path, ready: Event) -> None:
    claim = make_claim(locks, "writer")
    ready.set()
    signal.pause()
    claim.release()


def test_a_claim_dies_with_its_process(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    process = context.Process(target=_claim_and_wait, args=(tmp_path, ready))
    process.start()
    assert ready.wait(30)
    assert [claim.subject for claim in live_claims(tmp_path)] == ["writer"]
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    assert live_claims(tmp_path) == ()
    assert len(dead_claims(tmp_path)) == 1


def test_files_of_others_are_no_claims(tmp_path: Path) -> None:
    for name in ("claim.txt", "claim.writer.soon-ab.lock", "writer.lock"):
        (tmp_path / name).touch()
    assert live_claims(tmp_path) == ()
    assert dead_claims(tmp_path) == ()
