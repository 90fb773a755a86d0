"""The forward context: nesting, other threads, what pieces see of it, and the numbers of descriptors."""

import threading

import pytest
from tests.capture.support import ReplayingBackend

from precast.capture.context import FORWARD, current, descriptor_number, forward_context
from precast.capture.descriptor import BatchDescriptor
from precast.capture.modes import CUDAGraphMode

PIECEWISE = BatchDescriptor(CUDAGraphMode.PIECEWISE, 8)
FULL = BatchDescriptor(CUDAGraphMode.FULL, 8, 8)
NONE = BatchDescriptor(CUDAGraphMode.NONE, 5, 2)


def test_there_is_none_outside_of_a_forward() -> None:
    assert current() is None
    assert FORWARD.pieces is None


def test_it_tells_descriptor_mode_and_recorder() -> None:
    backend = ReplayingBackend()
    with forward_context(PIECEWISE, backend) as context:
        assert current() is context
        assert (context.descriptor, context.mode, context.recorder) == (PIECEWISE, CUDAGraphMode.PIECEWISE, backend)
    with forward_context(NONE) as context:
        assert context.recorder is None


@pytest.mark.parametrize(("descriptor", "sees"), [(PIECEWISE, True), (FULL, False), (NONE, False)])
def test_pieces_see_a_number_in_mode_piecewise_only(descriptor: BatchDescriptor, sees: bool) -> None:
    with forward_context(descriptor):
        assert FORWARD.pieces == (descriptor_number(descriptor) if sees else None)
    assert FORWARD.pieces is None


def _pieces() -> int | None:
    return FORWARD.pieces


def _fail_inside() -> None:
    with forward_context(FULL):
        raise KeyError


def test_contexts_nest_and_end_with_errors_too() -> None:
    with forward_context(PIECEWISE) as outer:
        with forward_context(FULL):
            assert _pieces() is None
        with pytest.raises(KeyError):
            _fail_inside()
        assert current() is outer
        assert _pieces() == descriptor_number(PIECEWISE)
    assert current() is None


def test_another_thread_has_its_own() -> None:
    seen: list[object] = []
    with forward_context(PIECEWISE):
        thread = threading.Thread(target=lambda: seen.extend([current(), FORWARD.pieces]))
        thread.start()
        thread.join()
    assert seen == [None, None]


def test_equal_descriptors_have_one_number_and_others_another() -> None:
    assert descriptor_number(PIECEWISE) == descriptor_number(BatchDescriptor(CUDAGraphMode.PIECEWISE, 8))
    others = [FULL, NONE, BatchDescriptor(CUDAGraphMode.PIECEWISE, 8, num_active_loras=1)]
    assert len({descriptor_number(d) for d in (PIECEWISE, *others)}) == 4
