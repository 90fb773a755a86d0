"""Waiting for equal work: who is waited for is told once, the wait is a stage, and it ends with its holder."""

import threading
from pathlib import Path

import pytest
from tests.aot.support import Recorder

from precast.aot.progress import Silent
from precast.aot.waiting import done_once
from precast.cache.store import Store
from precast.errors import LockedError


def test_work_that_nobody_else_does_is_not_waited_for(tmp_path: Path) -> None:
    progress = Recorder()
    with done_once(Store(tmp_path), "work-1", progress) as waited:
        assert not waited
    assert progress.told == []


def test_a_wait_is_told_once_and_shown_as_a_stage(tmp_path: Path) -> None:
    progress, began = Recorder(), threading.Event()

    def work() -> None:
        with done_once(Store(tmp_path), "work-1", Silent()):
            began.set()
            assert progress.noted.wait(30)

    other = threading.Thread(target=work)
    other.start()
    assert began.wait(30)
    with done_once(Store(tmp_path), "work-1", progress) as waited:
        assert waited
    other.join()
    note, *rest = progress.told
    assert note.startswith("note: waiting for process ")
    assert note.endswith(", which does the same work")
    assert rest == ["start: wait 0", "finish: wait"]


def test_a_wait_in_vain_ends_its_stage_and_names_the_holder(tmp_path: Path) -> None:
    progress = Recorder()
    hasty = done_once(Store(tmp_path, lock_timeout_s=0.5), "work-1", progress)
    with done_once(Store(tmp_path), "work-1", Silent()), pytest.raises(LockedError, match="process"), hasty:
        pytest.fail("two do the same work")
    assert progress.told[1:] == ["start: wait 0", "finish: wait"]


def test_other_work_is_not_waited_for(tmp_path: Path) -> None:
    store = Store(tmp_path, lock_timeout_s=0)
    with done_once(store, "work-1", Silent()), done_once(store, "work-2", Silent()) as waited:
        assert not waited


def test_work_that_failed_is_free_for_the_next(tmp_path: Path) -> None:
    store = Store(tmp_path, lock_timeout_s=0)
    with pytest.raises(ZeroDivisionError), done_once(store, "work-1", Silent()):
        raise ZeroDivisionError
    with done_once(store, "work-1", Silent()) as waited:
        assert not waited
