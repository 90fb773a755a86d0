"""Garbage collection is held off, and is as before after any way out."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from precast.capture.collecting import collection_held_off


class Knot:
    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.unfreeze()
    gc.enable()


def test_it_collects_before_and_is_off_inside() -> None:
    before = weakref.ref(Knot())
    with collection_held_off():
        assert before() is None
        assert not gc.isenabled()
        assert gc.get_freeze_count() > 1_000
    assert gc.isenabled()
    assert gc.get_freeze_count() < 1_000  # Python 3.12 has some of its own


def test_an_error_restores_it() -> None:
    with pytest.raises(KeyError), collection_held_off():
        raise KeyError
    assert gc.isenabled()
    assert gc.get_freeze_count() < 1_000  # Python 3.12 has some of its own


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    with collection_held_off():
        pass
    assert not gc.isenabled()


def test_what_the_process_froze_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with collection_held_off():
        assert gc.get_freeze_count() <= frozen
    assert gc.get_freeze_count() > frozen // 2
    assert gc.isenabled()
