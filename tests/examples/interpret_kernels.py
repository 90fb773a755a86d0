"""Run the Triton kernels on CPU tensors in Triton's interpreter, and write their largest errors as JSON.

A program of its own, because TRITON_INTERPRET counts when triton is first imported and for a whole process.
bfloat16 is left to tests/gpu: the interpreter multiplies its raw bits.
"""

import json
import sys
from typing import Any

import torch
import triton
import triton.language as tl

from precast.examples.decoder import attention_triton
from precast.examples.decoder.attention import paged_attention
from precast.examples.decoder.attention_triton import attend, write_kv
from precast.examples.decoder.kv_cache import AttentionContext, AttentionMetadata, KVCache, RequestTokens

CPU = torch.device("cpu")
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one head for all": {"heads": 5, "kv_heads": 1},
    "head dim of 24, value head dim of 40": {"dim": 24, "value_dim": 40},
    "float16": {"dtype": torch.float16},
    "window": {"sliding_window": 5},
    "soft cap": {"soft_cap": 0.7},
    "sinks": {"sinks": True},
    "all at once": {"sliding_window": 70, "soft_cap": 2.0, "sinks": True, "long": 72},
    "more than one tile": {"long": 70},
    "one program for a context": {"sliding_window": 70, "soft_cap": 2.0, "sinks": True, "long": 72, "programs": 1},
}


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def count(bound_ptr, out_ptr):  # type: ignore[no-untyped-def] # noqa: ANN001
    """Loop up to a bound that lies in memory, as the attention kernel does."""
    total = 0
    for _ in range(0, tl.load(bound_ptr), 2):
        total += 1
    tl.store(out_ptr, total)


def obstacle() -> str:
    """Tell what keeps this interpreter from running such a loop: triton 3.6 does not know numpy 2.5."""
    bound, out = torch.tensor([6]), torch.tensor([0])
    try:
        count[(1,)](bound, out)
    except triton.runtime.errors.InterpreterError as problem:
        return str(problem)
    return "" if out.item() == 3 else "wrong count"


def context(kv_heads: int, dim: int, value_dim: int, dtype: torch.dtype) -> AttentionContext:
    cache = KVCache.allocate(
        num_layers=1,
        num_blocks=48,
        block_size=8,
        num_kv_heads=kv_heads,
        head_dim=dim,
        value_head_dim=value_dim,
        dtype=dtype,
        device=CPU,
    )
    for tensor in (*cache.keys_L, *cache.values_L):
        tensor.fill_(float("nan"))
    metadata = AttentionMetadata.allocate(max_tokens=256, max_requests=4, max_blocks=24, device=CPU)
    return AttentionContext(cache, metadata)


def error(
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 16,
    value_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    sinks: bool = False,
    long: int = 12,
    programs: int = 512,
) -> float:
    """Prefill two requests, decode one token of each, and compare outputs, caches and padded rows."""
    attention_triton._PROGRAMS = programs  # how many to spread the contexts over
    generator = torch.Generator().manual_seed(0)
    sink = torch.randn(heads, generator=generator) if sinks else None
    cpu, kernel = (context(kv_heads, dim, value_dim, dtype) for _ in range(2))
    first, second = tuple(range(47, 0, -2))[:24], tuple(range(0, 47, 2))[:24]
    worst = 0.0
    for start, count in ((0, long), (long, 1)):
        batch = [RequestTokens(start, count, first), RequestTokens(start // 2, max(1, count // 2), second)]
        real = sum(request.count for request in batch)
        rows = real + 2
        # One strided tensor, as a fused projection hands it over.
        fused = torch.randn(rows, heads + 2 * kv_heads, max(dim, value_dim), generator=generator).to(dtype)
        fused[real:] = float("nan")
        query, key, value = fused.split([heads, kv_heads, kv_heads], dim=1)
        query, key, value = query[..., :dim], key[..., :dim], value[..., :value_dim]
        expected, out = (torch.full((rows, heads, value_dim), 9.0, dtype=dtype) for _ in range(2))
        cpu.fill(batch)
        kernel.fill(batch)
        with cpu.use():
            paged_attention(query, key, value, expected, 0, dim**-0.5, sliding_window, soft_cap, sink)
        write_kv(kernel, key, value, 0)
        attend(kernel, query, out, 0, dim**-0.5, sliding_window, soft_cap, sink)
        same = torch.allclose(cpu.cache.keys_L[0], kernel.cache.keys_L[0], 0, 0, equal_nan=True)
        same &= torch.allclose(cpu.cache.values_L[0], kernel.cache.values_L[0], 0, 0, equal_nan=True)
        worst = max(worst, float((out - expected).abs().max()) if same else float("inf"))
        worst = max(worst, float(out[real:].abs().max()))
    return worst


if __name__ == "__main__":
    found = obstacle()
    json.dump({"obstacle": found} if found else {name: error(**case) for name, case in CASES.items()}, sys.stdout)
