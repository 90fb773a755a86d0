"""Batches with poisoned padding: padded rows of NaN, garbage in stale slots and in the pages of other requests.

Device-independent: `tests/examples/test_padding.py` runs it on the CPU, `tests/gpu/test_padding.py` on a GPU.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from precast.aot.binding import BoundState, LoadedPieces, bind_state
from precast.aot.spec import ModelSpec
from precast.aot.trace import build_for_tracing, trace
from precast.capture.descriptor import BatchDescriptor
from precast.capture.dispatch import longest_query, uniform_tokens
from precast.capture.limits import BatchLimits
from precast.capture.manager import GraphManager
from precast.capture.modes import CUDAGraphMode
from precast.capture.state import BatchShape
from precast.examples.decoder.attention import OP_NAME
from precast.examples.decoder.model import DecoderModel
from precast.examples.decoder.serving import DecoderState
from precast.splitter.split import split

NAN_TOKEN = 511
LIMITS = BatchLimits(max_num_batched_tokens=32, max_num_seqs=6)
SIZES = (1, 2, 4, 8, 16, 32)
SEED = 5


@dataclass(frozen=True)
class Case:
    """New tokens of each request, and whether they are prompts."""

    query_lens: tuple[int, ...]
    prefilling: bool

    def dispatch(self, manager: GraphManager) -> BatchDescriptor:
        prefilling = [self.prefilling] * len(self.query_lens)
        uniform = uniform_tokens(self.query_lens, prefilling)
        longest = longest_query(self.query_lens, prefilling)
        return manager.dispatch(len(self.query_lens), sum(self.query_lens), uniform, max_query_len=longest)

    def padded(self) -> BatchDescriptor:
        """Pad as the next graph would be, but run without it."""
        tokens = min(size for size in SIZES if size > sum(self.query_lens))
        return BatchDescriptor(CUDAGraphMode.NONE, tokens)


DECODE = Case((1, 1, 1), prefilling=False)
MIXED = Case((9, 1, 2), prefilling=True)
ONE_TOKEN_SHORT = Case((26, 1, 1, 2, 1), prefilling=True)
CASES = {"decode": DECODE, "mixed": MIXED, "one row short of a size": ONE_TOKEN_SHORT}


def nan_module(spec: ModelSpec, device: str) -> DecoderModel:
    """Build a decoder whose last token embeds as NaN."""
    with torch.device(device):
        module = spec.build()
    assert spec.load_weights is not None
    assert isinstance(module, DecoderModel)
    spec.load_weights(module)
    module.model.embed_tokens.weight[NAN_TOKEN] = float("nan")
    return module


def eager_pieces(spec: ModelSpec, module: DecoderModel, device: str) -> BoundState:
    """Split a decoder, and bind its pieces to a module as eager graphs: what a loaded artifact is, not compiled."""
    traced = trace(spec, build_for_tracing(spec), device)
    made = split(traced.graph_module, traced.inputs, traced.arguments, traced.result, (OP_NAME,))

    def as_is(graph: Callable[..., Sequence[Tensor]]) -> Callable[[list[Tensor]], Sequence[Tensor]]:
        return lambda inputs: graph(*inputs)

    span = (1, LIMITS.max_num_batched_tokens)
    callables = {(piece.key, span): as_is(piece.graph_module) for piece in made.pieces}
    manifest = _Manifest({"device": device})
    return bind_state(LoadedPieces(manifest, made.plan, callables), module)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Manifest:
    target: dict[str, str]
    key: str = "0" * 64


def check(
    module: DecoderModel, state: DecoderState, manager: GraphManager, case: Case, tolerance: float = 1e-5
) -> None:
    """Run a poisoned batch on the graph that dispatch gives it."""
    check_run(module, state, manager, case, case.dispatch(manager), tolerance)


def check_run(
    module: DecoderModel,
    state: DecoderState,
    manager: GraphManager,
    case: Case,
    descriptor: BatchDescriptor,
    tolerance: float = 1e-5,
) -> None:
    """Run a poisoned batch, and compare its rows with eager, and every page that is not its own with before."""
    real = sum(case.query_lens)
    assert descriptor.num_tokens > real
    expected = alone(module, case)
    shape = BatchShape(case.query_lens, descriptor.num_tokens)
    state.fill(shape, SEED)
    poison(state, real, descriptor.num_tokens)
    layers = (*state.context.cache.keys_L, *state.context.cache.values_L)
    before = [layer.clone() for layer in layers]

    with torch.no_grad(), state.use():
        hidden = manager.run(descriptor)[:real].clone()

    for found, want in zip((hidden, *state.written(shape)), expected, strict=True):
        assert_near(found, want, tolerance)
    own = state.context.metadata.slots_T[:real]
    assert (own >= 0).all()
    for now, was in zip(layers, before, strict=True):
        assert torch.equal(others(now, own), others(was, own))


def alone(module: DecoderModel, case: Case) -> tuple[Tensor, ...]:
    """Run the batch in eager code with no padded row, in a cache where nothing else is."""
    shape = BatchShape(case.query_lens, sum(case.query_lens))
    state = DecoderState(module, LIMITS)
    state.fill(shape, SEED)
    state.input_ids_T.clamp_(max=NAN_TOKEN - 1)
    with torch.no_grad(), state.use():
        hidden = module(*state.inputs(shape.num_tokens))
    assert hidden.isfinite().all()
    return hidden, *state.written(shape)


def poison(state: DecoderState, real: int, rows: int) -> None:
    """Put garbage wherever the batch has no number of its own: slots, and all that padded rows hold but slot -1."""
    generator = torch.Generator().manual_seed(SEED)
    for layer in (*state.context.cache.keys_L, *state.context.cache.values_L):
        raw = layer.view(bits(layer.dtype))
        info = torch.iinfo(raw.dtype)
        garbage = torch.randint(info.min, info.max, raw.shape, generator=generator, dtype=raw.dtype)
        half = torch.rand(layer.shape[:2], generator=generator) < 0.5  # the other half stays NaN
        stale = layer.isnan().flatten(2).all(-1) & half.to(layer.device)
        raw[stale] = garbage.to(layer.device)[stale]
    state.input_ids_T.clamp_(max=NAN_TOKEN - 1)
    padded = slice(real, rows)
    state.input_ids_T[padded] = NAN_TOKEN
    state.positions_T[padded] = 123_456
    meta = state.context.metadata
    assert (meta.slots_T[padded] == -1).all()
    meta.contexts_T[padded] = 20
    meta.requests_T[padded] = LIMITS.max_num_seqs - 1
    meta.block_table_RM[-1] = state.context.cache.num_blocks - 1


def others(layer: Tensor, own: Tensor) -> Tensor:
    """Return the bits of a layer's cache without the slots that a batch wrote."""
    raw = layer.flatten(0, 1).view(bits(layer.dtype)).clone()
    raw[own] = 0
    return raw


def bits(dtype: torch.dtype) -> torch.dtype:
    return {4: torch.int32, 2: torch.int16}[dtype.itemsize]


def assert_near(found: Tensor, want: Tensor, tolerance: float) -> None:
    """Compare by the norm of the difference: single elements that are nearly zero have no precision."""
    assert found.isfinite().all()
    error = (found.double() - want.double()).norm() / want.double().norm()
    assert error < tolerance, f"relative error {error:.1e}"
