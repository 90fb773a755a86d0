"""Padding is harmless on the CPU: to eager code, split pieces, a real artifact, and graphs that are replayed."""

import pytest
import torch
from tests.capture.support import ReplayingBackend
from tests.conftest import TinyEntry
from tests.examples.padding import CASES, DECODE, LIMITS, MIXED, SIZES, Case, check, check_run, eager_pieces, nan_module

import precast
from precast.aot.binding import BoundState
from precast.aot.graphs import graph_manager
from precast.capture.candidates import candidates
from precast.capture.manager import GraphManager
from precast.capture.modes import CUDAGraphMode
from precast.examples.decoder.model import DecoderModel
from precast.examples.decoder.runner import eager_runner
from precast.examples.decoder.serving import DecoderState
from precast.examples.decoder.spec import tiny

Graphed = tuple[DecoderState, GraphManager]


@pytest.fixture(scope="module")
def module() -> DecoderModel:
    return nan_module(tiny(num_hidden_layers=2), "cpu")


@pytest.fixture(scope="module")
def pieces(module: DecoderModel) -> BoundState:
    return eager_pieces(tiny(num_hidden_layers=2), module, "cpu")


def captured(module: DecoderModel, pieces: BoundState, mode: CUDAGraphMode) -> Graphed:
    state = DecoderState(module, LIMITS)
    manager = graph_manager(pieces, state, candidates(mode, SIZES, LIMITS), ReplayingBackend())
    manager.capture()
    return state, manager


@pytest.fixture(scope="module")
def graphed(module: DecoderModel, pieces: BoundState) -> Graphed:
    return captured(module, pieces, CUDAGraphMode.FULL_AND_PIECEWISE)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_padding_is_harmless_to_eager_code(module: DecoderModel, case: Case) -> None:
    state = DecoderState(module, LIMITS)

    check_run(module, state, eager_runner(module, state, LIMITS), case, case.padded())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_padding_is_harmless_to_pieces_without_graphs(module: DecoderModel, pieces: BoundState, case: Case) -> None:
    state = DecoderState(module, LIMITS)
    manager = graph_manager(pieces, state, candidates(CUDAGraphMode.NONE, (), LIMITS), ReplayingBackend())

    check_run(module, state, manager, case, case.padded())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_padding_is_harmless_to_replayed_graphs(module: DecoderModel, graphed: Graphed, case: Case) -> None:
    state, manager = graphed
    before = manager.counts()

    check(module, state, manager, case)

    after = manager.counts()
    steps = (after.full - before.full, after.piecewise - before.piecewise)
    assert steps == ((1, 0) if case is DECODE else (0, 1))
    assert (after.none, after.uncaptured, after.late_captures) == (before.none, 0, 0)


def test_padding_is_harmless_to_full_graphs_of_mixed_batches(module: DecoderModel, pieces: BoundState) -> None:
    state, manager = captured(module, pieces, CUDAGraphMode.FULL)

    for case in CASES.values():
        check(module, state, manager, case)

    assert manager.counts().full == len(CASES)


def test_a_graph_forgets_the_batch_before(module: DecoderModel, graphed: Graphed) -> None:
    state, manager = graphed
    for case in (MIXED, DECODE, MIXED, DECODE):
        check(module, state, manager, case)


@pytest.mark.parametrize("mode", [CUDAGraphMode.FULL, CUDAGraphMode.FULL_AND_PIECEWISE], ids=lambda m: m.name)
def test_a_capture_touches_no_page(module: DecoderModel, pieces: BoundState, mode: CUDAGraphMode) -> None:
    state = DecoderState(module, LIMITS)
    manager = graph_manager(pieces, state, candidates(mode, SIZES, LIMITS), ReplayingBackend())
    layers = (*state.context.cache.keys_L, *state.context.cache.values_L)
    for layer in layers:
        layer.normal_()
    before = [layer.clone() for layer in layers]

    manager.capture()

    assert all(torch.equal(now, was) for now, was in zip(layers, before, strict=True))


@pytest.mark.compiles
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_padding_is_harmless_to_an_artifact(tiny_entry: TinyEntry, case: Case) -> None:
    module = nan_module(tiny(), "cpu")
    loaded = precast.load(tiny_entry.key, module, cache_dir=tiny_entry.root)
    assert loaded.bound is not None
    state = DecoderState(module, LIMITS)
    manager = graph_manager(loaded.bound, state, candidates(CUDAGraphMode.NONE, (), LIMITS), ReplayingBackend())

    check_run(module, state, manager, case, case.padded(), tolerance=1e-4)
