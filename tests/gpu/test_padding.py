"""Padding is harmless on a GPU: to eager kernels, to graphs over split pieces, and to graphs over a real artifact.

Padded rows hold NaN, stale slots and other requests' pages hold garbage; those pages are compared bit for bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from tests.examples.padding import CASES, DECODE, LIMITS, MIXED, SIZES, Case, check, check_run, eager_pieces, nan_module
from tests.gpu.conftest import GpuEntry

import precast
from precast.aot.binding import BoundState
from precast.aot.graphs import cuda_backend, graph_manager
from precast.capture.candidates import candidates
from precast.capture.manager import GraphManager
from precast.capture.modes import CUDAGraphMode
from precast.examples.decoder.kv_cache import AttentionContext, AttentionMetadata, KVCache, RequestTokens
from precast.examples.decoder.model import DecoderModel
from precast.examples.decoder.runner import eager_runner
from precast.examples.decoder.serving import DecoderState
from precast.examples.decoder.spec import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# Of the norm of the difference: padded batches are other shapes, for which cuBLAS takes other algorithms.
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}
Graphed = tuple[DecoderState, GraphManager]


@dataclass(frozen=True)
class Kind:
    """What runs: the module, its pieces, and how far numbers may be apart."""

    module: DecoderModel
    bound: BoundState
    tolerance: float


def eager_kind(dtype: str) -> Kind:
    spec = tiny(num_hidden_layers=2, dtype=dtype)
    module = nan_module(spec, "cuda")
    return Kind(module, eager_pieces(spec, module, "cuda"), TOLERANCE[dtype])


@pytest.fixture(scope="module", params=["float32", "bfloat16", "artifact"])
def kind(request: pytest.FixtureRequest) -> Kind:
    if request.param != "artifact":
        return eager_kind(str(request.param))
    entry: GpuEntry = request.getfixturevalue("gpu_entry")
    module = nan_module(tiny(**entry.overrides), "cuda")
    bound = precast.load(entry.key, module, cache_dir=entry.root).bound
    assert bound is not None
    return Kind(module, bound, TOLERANCE["float32"])


def captured(kind: Kind, mode: CUDAGraphMode) -> Graphed:
    state = DecoderState(kind.module, LIMITS)
    manager = graph_manager(kind.bound, state, candidates(mode, SIZES, LIMITS), cuda_backend(kind.bound))
    manager.capture()
    return state, manager


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_padding_is_harmless_to_eager_kernels(kind: Kind, case: Case) -> None:
    state = DecoderState(kind.module, LIMITS)
    runner = eager_runner(kind.module, state, LIMITS)

    check_run(kind.module, state, runner, case, case.padded(), kind.tolerance)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_padding_is_harmless_without_graphs(kind: Kind, case: Case) -> None:
    state = DecoderState(kind.module, LIMITS)
    manager = graph_manager(kind.bound, state, candidates(CUDAGraphMode.NONE, (), LIMITS), cuda_backend(kind.bound))

    check_run(kind.module, state, manager, case, case.padded(), kind.tolerance)


def test_padding_is_harmless_to_graphs(kind: Kind) -> None:
    """Replay both modes in turns, so that each graph meets what another batch left behind."""
    state, manager = captured(kind, CUDAGraphMode.FULL_AND_PIECEWISE)
    order: Sequence[Case] = (*CASES.values(), MIXED, DECODE, *reversed(CASES.values()))
    try:
        for case in order:
            check(kind.module, state, manager, case, kind.tolerance)

        counts = manager.counts()
        decodes = sum(case is DECODE for case in order)
        assert (counts.full, counts.piecewise, counts.none) == (decodes, len(order) - decodes, 0)
        assert (counts.uncaptured, counts.late_captures) == (0, 0)
    finally:
        manager.release()


def test_padding_is_harmless_to_full_graphs_of_mixed_batches(kind: Kind) -> None:
    state, manager = captured(kind, CUDAGraphMode.FULL)
    try:
        for case in (*CASES.values(), *CASES.values()):
            check(kind.module, state, manager, case, kind.tolerance)

        assert manager.counts().full == 2 * len(CASES)
    finally:
        manager.release()


@pytest.mark.parametrize("mode", [CUDAGraphMode.FULL, CUDAGraphMode.FULL_AND_PIECEWISE], ids=lambda m: m.name)
def test_a_capture_touches_no_page(kind: Kind, mode: CUDAGraphMode) -> None:
    state = DecoderState(kind.module, LIMITS)
    manager = graph_manager(kind.bound, state, candidates(mode, SIZES, LIMITS), cuda_backend(kind.bound))
    layers = (*state.context.cache.keys_L, *state.context.cache.values_L)
    for layer in layers:
        layer.normal_()
    before = [layer.clone() for layer in layers]

    manager.capture()
    try:
        assert all(torch.equal(now, was) for now, was in zip(layers, before, strict=True))
    finally:
        manager.release()


def make_context(device: str) -> AttentionContext:
    where = torch.device(device)
    cache = KVCache.allocate(
        num_layers=1, num_blocks=64, block_size=4, num_kv_heads=1, head_dim=16, dtype=torch.float32, device=where
    )
    return AttentionContext(
        cache, AttentionMetadata.allocate(max_tokens=64, max_requests=8, max_blocks=16, device=where)
    )


def test_the_metadata_is_the_same_on_both_devices() -> None:
    cpu, gpu = make_context("cpu"), make_context("cuda")
    for batch, rows in (
        ([RequestTokens(5, 7, (9, 3, 40), 2), RequestTokens(0, 1, (1,), 7)], None),
        ([RequestTokens(12, 1, (9, 3, 40, 8), 2)], 4),
        ([], 8),
        ([RequestTokens(0, 64, tuple(range(63, 47, -1)))], 64),
    ):
        positions = [context.fill(batch, rows=rows) for context in (cpu, gpu)]

        assert torch.equal(positions[1].cpu(), positions[0])
        for name in ("slots_T", "requests_T", "contexts_T", "block_table_RM"):
            here, there = (getattr(context.metadata, name).cpu() for context in (cpu, gpu))
            assert torch.equal(here, there), name


def test_batches_that_are_filled_ahead_of_a_busy_gpu_do_not_overwrite_one_another() -> None:
    """Nothing waits in `fill`: the host writes the second batch while the first one is not copied yet."""
    context = make_context("cuda")
    batches = [[RequestTokens(n, 4, (2 * n, 2 * n + 1, n, n + 1))] for n in range(12)]
    busy = torch.randn(4096, 4096, device="cuda")
    for _ in range(20):
        busy = busy @ busy
        busy = busy / busy.norm()
    seen = []
    for batch in batches:
        positions = context.fill(batch)
        meta = context.metadata
        seen.append([t.clone() for t in (meta.slots_T, meta.contexts_T, meta.block_table_RM, positions)])

    for batch, found in zip(batches, seen, strict=True):
        expected = make_context("cpu")
        positions = expected.fill(batch)
        slots, contexts, table, places = (t.cpu() for t in found)
        assert torch.equal(slots, expected.metadata.slots_T)
        assert torch.equal(contexts, expected.metadata.contexts_T)
        assert torch.equal(table[0, :4], expected.metadata.block_table_RM[0, :4])
        assert torch.equal(places, positions)
