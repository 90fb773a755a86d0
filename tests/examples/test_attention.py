"""The attention op on the CPU: right against a dense reference, harmless padding, and clear refusals."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from precast.errors import UsageError
from precast.examples.decoder.attention import paged_attention
from precast.examples.decoder.kv_cache import AttentionContext, AttentionMetadata, KVCache, RequestTokens

CPU = torch.device("cpu")


def make_context(
    *, kv_heads: int, head_dim: int, value_dim: int, block_size: int = 4, dtype: torch.dtype = torch.float32
) -> AttentionContext:
    cache = KVCache.allocate(
        num_layers=2,
        num_blocks=40,
        block_size=block_size,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        value_head_dim=value_dim,
        dtype=dtype,
        device=CPU,
    )
    for tensor in (*cache.keys_L, *cache.values_L):
        tensor.fill_(float("nan"))
    metadata = AttentionMetadata.allocate(max_tokens=128, max_requests=8, max_blocks=20, device=CPU)
    return AttentionContext(cache, metadata)


def dense(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks_Q: Tensor | None = None,  # noqa: N803 - named as the op's argument
) -> Tensor:
    """Attend one head of one token at a time, straight from the definition."""
    out = torch.empty(len(query), query.shape[1], values.shape[2])
    group = query.shape[1] // keys.shape[1]
    for t in range(len(query)):
        first = 0 if sliding_window is None else max(0, t + 1 - sliding_window)
        for h in range(query.shape[1]):
            scores = [float(query[t, h] @ keys[s, h // group]) * scale for s in range(first, t + 1)]
            if soft_cap is not None:
                scores = [soft_cap * math.tanh(score / soft_cap) for score in scores]
            exps = [math.exp(score) for score in scores]
            total = sum(exps) + (math.exp(float(sinks_Q[h])) if sinks_Q is not None else 0.0)
            weights = torch.tensor([e / total for e in exps])
            out[t, h] = weights @ values[first : t + 1, h // group]
    return out


VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "sliding window": {"sliding_window": 3},
    "window of one": {"sliding_window": 1},
    "soft cap": {"soft_cap": 0.7},
    "sinks": {"sinks_Q": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "all at once": {
        "sliding_window": 4,
        "soft_cap": 1.5,
        "sinks_Q": torch.tensor([0.5, -1.0, 2.0, 0.0]),
    },
}


def run_chunks(chunks: list[int], variant: Mapping[str, Any], padding: int = 2) -> tuple[Tensor, Tensor]:
    """Feed one request chunk by chunk beside another one, and give its output and the dense reference."""
    torch.manual_seed(len(chunks))
    total, heads, kv_heads, dim, value_dim = sum(chunks), 4, 2, 6, 10
    context = make_context(kv_heads=kv_heads, head_dim=dim, value_dim=value_dim)
    query, key = torch.randn(total, heads, dim), torch.randn(total, kv_heads, dim)
    value = torch.randn(total, kv_heads, value_dim)
    blocks, other = tuple(range(39, 19, -2)), tuple(range(38, 18, -2))
    outs, start = [], 0
    for count in chunks:
        rows = 2 * count + padding
        q, k, v = (torch.full((rows, *x.shape[1:]), float("nan")) for x in (query, key, value))
        for tensor, source in ((q, query), (k, key), (v, value)):
            tensor[:count] = -source[start : start + count]
            tensor[count : 2 * count] = source[start : start + count]
        out = torch.full((rows, heads, value_dim), 9.0)
        context.fill([RequestTokens(start, count, other), RequestTokens(start, count, blocks)])
        with context.use():
            paged_attention(q, k, v, out, 1, 0.4, **variant)
        assert torch.equal(out[2 * count :], torch.zeros(padding, heads, value_dim))
        outs.append(out[count : 2 * count])
        start += count
    return torch.cat(outs), dense(query, key, value, 0.4, **variant)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_op_computes_attention_by_its_definition(variant: str) -> None:
    result, expected = run_chunks([7, 1, 1, 5], VARIANTS[variant])

    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(chunks=st.lists(st.integers(1, 8), min_size=1, max_size=4), variant=st.sampled_from(sorted(VARIANTS)))
def test_the_way_in_which_a_request_is_chunked_does_not_matter(chunks: list[int], variant: str) -> None:
    result, expected = run_chunks(chunks, VARIANTS[variant])

    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


def test_padded_rows_write_nothing_into_the_cache() -> None:
    context = make_context(kv_heads=1, head_dim=2, value_dim=2)
    context.fill([RequestTokens(0, 3, (5,))])

    with context.use():
        query, key, value, out = (torch.ones(6, 1, 2) for _ in range(4))
        paged_attention(query, key, value, out, 0, 1.0)

    written = (~context.cache.keys_L[0].isnan().any(-1)).flatten().nonzero().flatten()
    assert written.tolist() == [20, 21, 22]
    assert context.cache.keys_L[1].isnan().all()


def test_blocks_before_the_window_may_hold_anything() -> None:
    context = make_context(kv_heads=1, head_dim=2, value_dim=2)
    for start, count in ((0, 8), (8, 1)):
        query, key, value, out = (torch.ones(count, 1, 2) for _ in range(4))
        context.fill([RequestTokens(start, count, (5, 6, 7))])
        with context.use():
            paged_attention(query, key, value, out, 0, 1.0, sliding_window=3)
        context.cache.values_L[0][5].fill_(float("nan"))

    assert torch.equal(out, torch.ones(1, 1, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    context = make_context(kv_heads=1, head_dim=8, value_dim=8, dtype=dtype)
    query, key, value = (torch.randn(9, 1, 8).to(dtype) for _ in range(3))
    out = torch.empty(9, 1, 8, dtype=dtype)
    context.fill([RequestTokens(0, 9, (1, 2, 3))])

    with context.use():
        paged_attention(query, key, value, out, 0, 0.5)

    assert torch.equal(out, dense(query.float(), key.float(), value.float(), 0.5).to(dtype))


def call(**changes: Any) -> None:
    arguments: dict[str, Any] = {
        "query_TQD": torch.zeros(3, 4, 6),
        "key_TKD": torch.zeros(3, 2, 6),
        "value_TKD": torch.zeros(3, 2, 10),
        "out_TQD": torch.zeros(3, 4, 10),
        "layer": 0,
        "scale": 1.0,
    }
    paged_attention(**{**arguments, **changes})


REFUSALS: Mapping[str, tuple[dict[str, Any], str]] = {
    "two dims": ({"query_TQD": torch.zeros(3, 24)}, "3 dims"),
    "float64": ({"query_TQD": torch.zeros(3, 4, 6, dtype=torch.float64)}, "dtypes"),
    "heads that do not divide": ({"query_TQD": torch.zeros(3, 5, 6)}, "5 query heads"),
    "no key heads": ({"key_TKD": torch.zeros(3, 0, 6)}, "0 key"),
    "other value heads": ({"value_TKD": torch.zeros(3, 1, 10)}, "1 value heads"),
    "other head dim": ({"key_TKD": torch.zeros(3, 2, 8)}, "6 and 8"),
    "other out": ({"out_TQD": torch.zeros(3, 4, 6)}, "out must be"),
    "other token count": ({"key_TKD": torch.zeros(2, 2, 6)}, "token counts"),
    "another device": ({"out_TQD": torch.zeros(3, 4, 10, device="meta")}, "devices"),
    "negative layer": ({"layer": -1}, "layer must not"),
    "absent layer": ({"layer": 2}, "layer 2"),
    "empty window": ({"sliding_window": 0}, "sliding_window"),
    "negative cap": ({"soft_cap": -1.0}, "soft_cap"),
    "short sinks": ({"sinks_Q": torch.zeros(3)}, "sinks"),
    "other cache shape": (
        {"value_TKD": torch.zeros(3, 2, 6), "out_TQD": torch.zeros(3, 4, 6)},
        "KV cache holds",
    ),
    "other cache dtype": (
        {
            "query_TQD": torch.zeros(3, 4, 6).half(),
            "key_TKD": torch.zeros(3, 2, 6).half(),
            "value_TKD": torch.zeros(3, 2, 10).half(),
            "out_TQD": torch.zeros(3, 4, 10).half(),
        },
        "float16",
    ),
    "too many rows": (
        {
            "query_TQD": torch.zeros(129, 4, 6),
            "key_TKD": torch.zeros(129, 2, 6),
            "value_TKD": torch.zeros(129, 2, 10),
            "out_TQD": torch.zeros(129, 4, 10),
        },
        "128 rows",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_the_op_refuses_what_it_does_not_support(case: str) -> None:
    changes, reason = REFUSALS[case]
    context = make_context(kv_heads=2, head_dim=6, value_dim=10)

    with context.use(), pytest.raises(UsageError) as caught:
        call(**changes)

    assert reason in caught.value.why


def test_several_faults_are_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        call(layer=-1, soft_cap=0.0)

    assert "layer" in caught.value.why
    assert "soft_cap" in caught.value.why


def test_an_unknown_keyword_is_refused() -> None:
    query, key, value, out = (torch.zeros(1, 1, 2) for _ in range(4))

    with pytest.raises((TypeError, RuntimeError), match="position_bias"):
        torch.ops.precast.paged_attention(query, key, value, out, 0, 1.0, position_bias=query)


def test_the_op_refuses_to_run_without_a_context() -> None:
    with pytest.raises(UsageError, match="without a KV cache"):
        call()


def test_fake_tensors_are_checked_without_a_context() -> None:
    query, key, value, out = (torch.zeros(3, 2, 4, device="meta") for _ in range(4))

    paged_attention(query, key, value, out, 0, 1.0)

    with pytest.raises(UsageError, match="soft_cap"):
        paged_attention(query, key, value, out, 0, 1.0, soft_cap=-1.0)
