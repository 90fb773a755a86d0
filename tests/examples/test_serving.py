"""The state of a server: buffers that stay, batches put in place, and random batches in a cache of NaN."""

import pytest
import torch
from torch import nn

from precast.capture.limits import BatchLimits
from precast.capture.state import BatchShape, GraphState
from precast.errors import UsageError
from precast.examples.decoder.kv_cache import RequestTokens, current_context
from precast.examples.decoder.serving import DecoderState
from precast.examples.decoder.spec import tiny

LIMITS = BatchLimits(max_num_batched_tokens=64, max_num_seqs=8)
SHAPES = (
    BatchShape((1,) * 8, 8),
    BatchShape((1, 1, 1), 8),
    BatchShape((64,), 64),
    BatchShape((20, 1, 0, 7), 32),
    BatchShape.spread(64, 8),
)


@pytest.fixture(scope="module")
def module() -> nn.Module:
    spec = tiny(num_hidden_layers=2)
    module = spec.build()
    assert spec.load_weights is not None
    spec.load_weights(module)
    return module


def run(module: nn.Module, state: DecoderState, shape: BatchShape) -> torch.Tensor:
    with torch.no_grad(), state.use():
        return module(*state.inputs(shape.num_tokens))


def test_it_is_what_graphs_are_captured_over(module: nn.Module) -> None:
    state: GraphState = DecoderState(module, LIMITS)

    with state.use() as context:
        assert current_context() is context


def test_a_spec_makes_it(module: nn.Module) -> None:
    make = tiny().graph_state
    assert make is not None

    state = make(module, LIMITS)

    assert isinstance(state, DecoderState)
    assert len(state.input_ids_T) == LIMITS.max_num_batched_tokens
    assert state.max_length == 2048


def test_nothing_ever_moves(module: nn.Module) -> None:
    state = DecoderState(module, LIMITS)

    def places() -> list[int]:
        context = state.context
        meta, cache = context.metadata, context.cache
        metadata = (meta.slots_T, meta.requests_T, meta.contexts_T, meta.block_table_RM)
        tensors = (*state.inputs(5), *metadata, *cache.keys_L, *cache.values_L)
        return [tensor.data_ptr() for tensor in tensors]

    before = places()
    for at, shape in enumerate(SHAPES):
        state.describe(shape)
        state.fill(shape, at)

    assert places() == before
    assert [len(tensor) for tensor in state.inputs(5)] == [5, 5]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_described_batch_touches_no_page(module: nn.Module, shape: BatchShape) -> None:
    state = DecoderState(module, LIMITS)
    layers = (*state.context.cache.keys_L, *state.context.cache.values_L)
    for layer in layers:
        layer.fill_(float("nan"))
    state.load([RequestTokens(0, 64, (1, 2, 3, 4))], [5] * 64, 64)

    state.describe(shape)
    hidden = run(module, state, shape)

    assert hidden.isfinite().all()
    assert all(layer.isnan().all() for layer in layers)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equal_seeds_fill_equally(module: nn.Module, shape: BatchShape) -> None:
    results = []
    for seed in (1, 1, 2):
        state = DecoderState(module, LIMITS)
        state.fill(SHAPES[3], 9)  # leaves something behind
        state.fill(shape, seed)
        hidden = run(module, state, shape)
        results.append((hidden, *state.written(shape)))

    real = sum(shape.query_lens)
    hidden, keys, values = results[0]
    assert hidden[:real].isfinite().all()
    assert keys.shape == values.shape == (2, real, 2, 16)
    assert keys.isfinite().all()
    assert values.isfinite().all()
    assert all(torch.equal(a, b) for a, b in zip(results[0], results[1], strict=True))
    assert not torch.equal(results[0][1], results[2][1])


def test_a_random_batch_has_histories_in_a_cache_of_nan(module: nn.Module) -> None:
    state = DecoderState(module, LIMITS)
    shape = SHAPES[0]

    state.fill(shape, 4)

    meta, keys = state.context.metadata, state.context.cache.keys_L[1].flatten(0, 1)
    histories = (meta.contexts_T[:8] - 1).tolist()
    assert len(set(histories)) > 1
    finite = keys.isfinite().all(-1).all(-1)
    assert int(finite.sum()) == sum(histories)
    assert not finite[meta.slots_T[:8]].any()
    assert len({*meta.block_table_RM[:8, 0].tolist()}) == 8


def test_a_cache_too_small_for_histories_holds_batches_without(module: nn.Module) -> None:
    state = DecoderState(module, LIMITS, num_blocks=8)

    state.fill(SHAPES[0], 0)
    assert run(module, state, SHAPES[0]).isfinite().all()
    assert state.context.metadata.contexts_T[:8].tolist() == [1] * 8

    with pytest.raises(UsageError, match="KV cache"):
        DecoderState(module, LIMITS, num_blocks=7).fill(SHAPES[0], 0)


def test_a_step_is_put_in_place_with_its_padded_rows(module: nn.Module) -> None:
    state = DecoderState(module, LIMITS, num_blocks=8, block_size=4)
    state.load([RequestTokens(0, 8, (6, 7))], list(range(8)), 8)

    state.load([RequestTokens(2, 3, (5, 2), 3)], [11, 12, 13], 6)

    assert [t.tolist() for t in state.inputs(8)] == [[11, 12, 13, 0, 0, 0, 6, 7], [2, 3, 4, 0, 0, 0, 6, 7]]
    assert state.context.metadata.slots_T[:6].tolist() == [22, 23, 8, -1, -1, -1]
    assert state.context.metadata.requests_T[:6].tolist() == [3, 3, 3, 0, 0, 0]


def test_a_step_that_does_not_fit_is_refused(module: nn.Module) -> None:
    state = DecoderState(module, LIMITS)

    with pytest.raises(UsageError, match="do not fit together"):
        state.load([RequestTokens(0, 2, (1,))], [1], 4)
    with pytest.raises(UsageError, match="cannot have 1 rows"):
        state.load([RequestTokens(0, 2, (1,))], [1, 2], 1)
    with pytest.raises(UsageError, match="does not fit"):
        state.describe(BatchShape((1,) * 9, 16))
    with pytest.raises(UsageError, match="Linear"):
        DecoderState(nn.Linear(1, 1), LIMITS)
