"""The Triton kernels on a GPU against the CPU implementation, in every dtype and as a CUDA graph."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from precast.errors import UsageError
from precast.examples.decoder.attention import paged_attention
from precast.examples.decoder.kv_cache import AttentionContext, AttentionMetadata, KVCache, RequestTokens
from precast.examples.decoder.spec import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
BLOCKS = (tuple(range(59, 0, -3)), tuple(range(0, 60, 3)), tuple(range(58, 0, -3)))
STEPS = (
    [RequestTokens(0, 70, BLOCKS[0]), RequestTokens(0, 9, BLOCKS[1]), RequestTokens(0, 1, BLOCKS[2])],
    [RequestTokens(70, 1, BLOCKS[0]), RequestTokens(9, 30, BLOCKS[1]), RequestTokens(1, 1, BLOCKS[2])],
)


def make_context(kv_heads: int, dim: int, value_dim: int, dtype: torch.dtype, device: str) -> AttentionContext:
    where = torch.device(device)
    cache = KVCache.allocate(
        num_layers=2,
        num_blocks=60,
        block_size=16,
        num_kv_heads=kv_heads,
        head_dim=dim,
        value_head_dim=value_dim,
        dtype=dtype,
        device=where,
    )
    for tensor in (*cache.keys_L, *cache.values_L):
        tensor.fill_(float("nan"))
    return AttentionContext(
        cache, AttentionMetadata.allocate(max_tokens=128, max_requests=4, max_blocks=24, device=where)
    )


def outputs(
    context: AttentionContext,
    heads: int,
    kv_heads: int,
    dim: int,
    value_dim: int,
    dtype: torch.dtype,
    sliding_window: int | None,
    soft_cap: float | None,
    sinks: Tensor | None,
) -> Iterator[Tensor]:
    """Prefill and decode three requests with padded rows of NaN; the inputs are the same on every device."""
    device = context.metadata.slots_T.device
    generator = torch.Generator().manual_seed(0)
    for batch in STEPS:
        real = sum(request.count for request in batch)
        fused = torch.randn(real + 5, heads + 2 * kv_heads, max(dim, value_dim), generator=generator)
        fused[real:] = float("nan")
        query, key, value = fused.to(device, dtype).split([heads, kv_heads, kv_heads], dim=1)
        out = torch.full((real + 5, heads, value_dim), 9.0, dtype=dtype, device=device)
        context.fill(batch)
        with context.use():
            paged_attention(
                query[..., :dim],
                key[..., :dim],
                value[..., :value_dim],
                out,
                1,
                dim**-0.5,
                sliding_window,
                soft_cap,
                sinks.to(device) if sinks is not None else None,
            )
        assert not out[real:].any()
        yield out.cpu().float()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "value_dim"),
    [(4, 2, 16, 16), (9, 3, 64, 64), (32, 8, 128, 128), (6, 6, 80, 96), (8, 1, 192, 128), (2, 1, 256, 256)],
)
@pytest.mark.parametrize(
    ("sliding_window", "soft_cap", "with_sinks"),
    [(None, None, False), (20, None, False), (None, 1.5, False), (None, None, True), (33, 30.0, True)],
)
def test_kernels_agree_with_the_cpu(
    dtype: torch.dtype,
    heads: int,
    kv_heads: int,
    dim: int,
    value_dim: int,
    sliding_window: int | None,
    soft_cap: float | None,
    with_sinks: bool,
) -> None:
    sinks = torch.linspace(-1, 2, heads) if with_sinks else None
    contexts = [make_context(kv_heads, dim, value_dim, dtype, device) for device in ("cpu", "cuda")]
    results = [
        list(outputs(c, heads, kv_heads, dim, value_dim, dtype, sliding_window, soft_cap, sinks)) for c in contexts
    ]

    for expected, result in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    for one, other in zip(*(c.cache.keys_L + c.cache.values_L for c in contexts), strict=True):
        torch.testing.assert_close(other.cpu(), one, rtol=0, atol=0, equal_nan=True)


def test_a_head_too_wide_for_a_tile_is_refused() -> None:
    context = make_context(1, 520, 16, torch.float16, "cuda")
    query, key = (torch.zeros(1, 1, 520, dtype=torch.float16, device="cuda") for _ in range(2))
    value, out = (torch.zeros(1, 1, 16, dtype=torch.float16, device="cuda") for _ in range(2))

    with context.use(), pytest.raises(UsageError, match="520"):
        paged_attention(query, key, value, out, 0, 1.0)


def test_a_captured_graph_follows_metadata_that_is_filled_in_place() -> None:
    dim, dtype = 64, torch.bfloat16
    eager, captured = (make_context(2, dim, dim, dtype, "cuda") for _ in range(2))
    query = torch.randn(8, 4, dim, device="cuda").to(dtype)
    key, value = (torch.randn(8, 2, dim, device="cuda").to(dtype) for _ in range(2))
    out = torch.empty_like(query)
    expected = torch.empty_like(query)
    captured.fill([RequestTokens(0, 8, BLOCKS[0])])
    with captured.use():
        paged_attention(query, key, value, out, 0, 0.125)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            paged_attention(query, key, value, out, 0, 0.125)

    for batch in (
        [RequestTokens(0, 5, BLOCKS[1]), RequestTokens(0, 2, BLOCKS[2])],
        [RequestTokens(5, 3, BLOCKS[1])],
    ):
        for tensor in (query, key, value):
            tensor.normal_()
        eager.fill(batch)
        captured.fill(batch)
        with eager.use():
            paged_attention(query, key, value, expected, 0, 0.125)
        graph.replay()
        assert torch.equal(out, expected)


def test_a_decoder_computes_the_same_on_both_devices() -> None:
    spec = tiny()
    module = spec.build()
    assert spec.load_weights is not None
    spec.load_weights(module)

    with torch.no_grad(), spec.sample(module, 300, 0) as inputs:
        expected = module(*inputs)
    module.cuda()
    with torch.no_grad(), spec.sample(module, 300, 0) as inputs:
        result = module(*inputs)

    torch.testing.assert_close(result.cpu(), expected, rtol=1e-3, atol=1e-3)
