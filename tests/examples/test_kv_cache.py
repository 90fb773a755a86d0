"""The paged cache's metadata, and the context that carries it."""

import threading

import pytest
import torch

from precast.errors import UsageError
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
