"""The paged cache's metadata, and the context that carries it."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode

from precast.errors import UsageError
from precast.examples.decoder.host_rows import HostBlockTable
from precast.examples.decoder.kv_cache import (
    AttentionContext,
    AttentionMetadata,
    KVCache,
    RequestTokens,
    current_context,
)

CPU = torch.device("cpu")


@pytest.fixture
def context() -> AttentionContext:
    cache = KVCache.allocate(
        num_layers=2, num_blocks=8, block_size=4, num_kv_heads=1, head_dim=2, dtype=torch.float32, device=CPU
    )
    metadata = AttentionMetadata.allocate(max_tokens=10, max_requests=2, max_blocks=3, device=CPU)
    return AttentionContext(cache, metadata)


def test_tokens_get_the_slots_of_their_requests_blocks(context: AttentionContext) -> None:
    positions = context.fill([RequestTokens(3, 3, (5, 2)), RequestTokens(0, 2, (7,))])

    assert positions.tolist() == [3, 4, 5, 0, 1]
    assert context.metadata.slots_T.tolist() == [23, 8, 9, 28, 29, -1, -1, -1, -1, -1]
    assert context.metadata.requests_T.tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
    assert context.metadata.contexts_T.tolist() == [4, 5, 6, 1, 2, 0, 0, 0, 0, 0]
    assert context.metadata.block_table_RM[:, :2].tolist() == [[5, 2], [7, 0]]


def test_a_batch_is_filled_in_place_and_leaves_nothing_of_the_last_one(context: AttentionContext) -> None:
    pointers = [context.metadata.slots_T.data_ptr(), context.metadata.block_table_RM.data_ptr()]
    context.fill([RequestTokens(0, 8, (1, 2))])

    context.fill([RequestTokens(0, 1, (3,))])

    assert pointers == [context.metadata.slots_T.data_ptr(), context.metadata.block_table_RM.data_ptr()]
    assert context.metadata.slots_T.tolist() == [12, *[-1] * 9]
    assert context.metadata.contexts_T.tolist() == [1, *[0] * 9]


def test_an_empty_batch_has_padded_rows_only(context: AttentionContext) -> None:
    assert context.fill([]).tolist() == []
    assert set(context.metadata.slots_T.tolist()) == {-1}


Batch = list[tuple[int, int, list[int]]]


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[Batch, list[int]]]:
    """Draw some batches of a cache of 4 tokens per block, each with rows of the block table."""
    made = []
    for _ in range(draw(st.integers(1, 4))):
        batch = draw(
            st.lists(
                st.tuples(st.integers(0, 7), st.integers(0, 5), st.lists(st.integers(0, 19), min_size=3, max_size=4)),
                max_size=4,
            )
        )
        made.append((batch, draw(st.permutations(range(5)))[: len(batch)]))
    return made


@settings(max_examples=60, deadline=None)
@given(made=batches())
def test_metadata_is_what_writing_row_by_row_gives(made: list[tuple[Batch, list[int]]]) -> None:
    cache = KVCache.allocate(
        num_layers=1, num_blocks=20, block_size=4, num_kv_heads=1, head_dim=2, dtype=torch.float32, device=CPU
    )
    context = AttentionContext(
        cache, AttentionMetadata.allocate(max_tokens=24, max_requests=5, max_blocks=4, device=CPU)
    )
    for batch, rows in made:
        positions = context.fill(
            [RequestTokens(s, n, tuple(b), row) for (s, n, b), row in zip(batch, rows, strict=True)]
        )

        tokens = [(row, at, b) for (s, n, b), row in zip(batch, rows, strict=True) for at in range(s, s + n)]
        padding = 24 - len(tokens)
        meta = context.metadata
        assert positions.tolist() == [at for _, at, _ in tokens]
        assert meta.slots_T.tolist() == [b[at // 4] * 4 + at % 4 for _, at, b in tokens] + [-1] * padding
        assert meta.requests_T.tolist() == [row for row, _, _ in tokens] + [0] * padding
        assert meta.contexts_T.tolist() == [at + 1 for _, at, _ in tokens] + [0] * padding
        for (_, _, blocks), row in zip(batch, rows, strict=True):
            assert meta.block_table_RM[row, : len(blocks)].tolist() == blocks


def test_only_the_rows_of_the_step_are_written(context: AttentionContext) -> None:
    context.fill([RequestTokens(0, 8, (1, 2))])
    buffer = torch.full((10,), 77)

    positions = context.fill([RequestTokens(2, 2, (3,))], rows=4, positions_T=buffer)

    assert positions.tolist() == [2, 3]
    assert buffer.tolist() == [2, 3, 0, 0, *[77] * 6]
    assert context.metadata.slots_T.tolist() == [14, 15, -1, -1, 8, 9, 10, 11, -1, -1]
    assert context.metadata.contexts_T.tolist() == [3, 4, 0, 0, 5, 6, 7, 8, 0, 0]


def test_a_batch_is_copied_once_per_tensor(context: AttentionContext) -> None:
    copied: list[int] = []

    class Copies(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            if func is Tensor.copy_:
                copied.append(args[0].data_ptr())
            return func(*args, **(kwargs or {}))

    buffer = torch.zeros(10, dtype=torch.int64)
    with Copies():
        context.fill([RequestTokens(0, 3, (5, 2)), RequestTokens(0, 2, (7,))], positions_T=buffer)

    meta = context.metadata
    targets = (meta.slots_T, meta.requests_T, meta.contexts_T, meta.block_table_RM, buffer)
    assert sorted(copied) == sorted(t.data_ptr() for t in targets)


def test_a_batch_that_stands_in_for_others_has_padded_rows_only(context: AttentionContext) -> None:
    context.fill([RequestTokens(0, 8, (1, 2))])
    buffer = torch.full((10,), 77)

    context.describe([3, 2], rows=6, positions_T=buffer)

    assert buffer.tolist() == [0, 1, 2, 0, 1, 0, 77, 77, 77, 77]
    assert context.metadata.slots_T[:6].tolist() == [-1] * 6
    assert context.metadata.requests_T[:6].tolist() == [0, 0, 0, 1, 1, 0]
    assert context.metadata.contexts_T[:6].tolist() == [0] * 6


@pytest.mark.parametrize(
    ("requests", "rows", "reason"),
    [
        ([RequestTokens(0, 1, (1,), 0), RequestTokens(0, 1, (2,), 0)], None, "share a row"),
        ([RequestTokens(0, 1, (1,), 1), RequestTokens(0, 1, (2,))], None, "share a row"),
        ([RequestTokens(0, 1, (1,), 2)], None, "share a row"),
        ([RequestTokens(0, 3, (1,))], 2, "cannot have 2 rows"),
        ([RequestTokens(0, 3, (1,))], 11, "cannot have 11 rows"),
    ],
)
def test_rows_that_do_not_fit_are_refused(
    context: AttentionContext, requests: list[RequestTokens], rows: int | None, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        context.fill(requests, rows=rows)


def test_only_rows_whose_blocks_changed_are_converted(
    context: AttentionContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[int] = []
    update = HostBlockTable.update

    def watched(self: HostBlockTable, rows: list[tuple[int, tuple[int, ...]]], shape: list[int]) -> Tensor:
        converted.extend(row for row, _ in rows)
        return update(self, rows, shape)

    monkeypatch.setattr(HostBlockTable, "update", watched)
    for first, second in (((1,), (2,)), ((1,), (2,)), ((1, 3), (2,)), ((1, 3), (4,))):
        context.fill([RequestTokens(0, 1, first, 1), RequestTokens(0, 1, second, 0)])

    assert converted == [1, 0, 1, 0]


def test_a_refused_batch_changes_nothing(context: AttentionContext) -> None:
    context.fill([RequestTokens(0, 1, (3,))])
    before = [t.clone() for t in (context.metadata.slots_T, context.metadata.block_table_RM)]

    for bad in ([RequestTokens(0, 1, (4,)), RequestTokens(0, 1, (8,))], [RequestTokens(0, 9, (4, 5))]):
        with pytest.raises(UsageError):
            context.fill(bad)

    assert torch.equal(context.metadata.slots_T, before[0])
    assert torch.equal(context.metadata.block_table_RM, before[1])
    assert context.fill([RequestTokens(0, 1, (4,))]).tolist() == [0]
    assert context.metadata.slots_T[0] == 16


def test_metadata_is_made_on_the_cpu_whatever_the_default_device_is(context: AttentionContext) -> None:
    with torch.device("meta"):
        assert context.fill([RequestTokens(0, 2, (1,))]).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ([RequestTokens(0, 11, (1, 2, 3))], "11 tokens"),
        ([RequestTokens(0, 1, (1,))] * 3, "3 requests"),
        ([RequestTokens(0, 1, (1, 2, 3, 4))], "does not fit"),
        ([RequestTokens(4, 1, (1,))], "too few KV blocks"),
        ([RequestTokens(0, 1, (8,))], "does not exist"),
        ([RequestTokens(0, 1, (-1,))], "does not exist"),
        ([RequestTokens(-1, 1, (1,))], "negative"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(
    context: AttentionContext, requests: list[RequestTokens], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        context.fill(requests)


def test_a_context_ends_with_its_block_even_after_an_error(context: AttentionContext) -> None:
    def fail() -> None:
        with context.use():
            assert current_context() is context
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()

    with pytest.raises(UsageError, match="without a KV cache"):
        current_context()


def test_another_thread_does_not_see_the_context(context: AttentionContext) -> None:
    seen: list[str] = []

    def look() -> None:
        try:
            current_context()
        except UsageError as error:
            seen.append(error.what)

    with context.use():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()

    assert seen == ["Attention ran without a KV cache"]


def test_values_may_have_a_head_dim_of_their_own() -> None:
    cache = KVCache.allocate(
        num_layers=1,
        num_blocks=2,
        block_size=3,
        num_kv_heads=4,
        head_dim=5,
        value_head_dim=6,
        dtype=torch.float16,
        device=CPU,
    )

    assert cache.keys_L[0].shape == (2, 3, 4, 5)
    assert cache.values_L[0].shape == (2, 3, 4, 6)
    assert (cache.num_blocks, cache.block_size) == (2, 3)
