"""The Triton kernel for a product of one row with a weight matrix: at that size a product is the read of its weight."""

# ruff: noqa: ANN001, ANN201, N803 - kernels are not Python: no annotations but constexpr, which is capital
# mypy: allow-untyped-decorators, allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl

__all__ = ["one_row"]


@triton.jit
def one_row(x_ptr, weight_ptr, out_ptr, K, BN: tl.constexpr, BK: tl.constexpr):
    """Multiply one row with BN rows of the weight, [N, K] as `nn.Linear` keeps it; sums are in float32."""
    n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    sums = tl.zeros((BN, BK), tl.float32)
    for start in range(0, K, BK):
        weight = tl.load(weight_ptr + n[:, None] * K + start + k[None, :], eviction_policy="evict_first")
        x = tl.load(x_ptr + start + k)
        sums += weight.to(tl.float32) * x.to(tl.float32)[None, :]
    tl.store(out_ptr + n, tl.sum(sums, 1).to(out_ptr.dtype.element_ty))
