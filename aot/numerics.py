"""Compare a loaded callable with the eager model, row by row.

The error of a row is its distance from eager relative to eager's own norm, so that one wrong row among thousands
shows. The bounds are those of the dtype: compiled code rounds at other places than eager does.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from precast.aot.spec import ModelSpec

__all__ = ["TOLERANCE", "Comparison", "build_real", "choose_token_counts", "compare"]

TOLERANCE: Mapping[torch.dtype, float] = MappingProxyType(
    {
        torch.float64: 1e-9,
        torch.float32: 1e-4,
        torch.float16: 1e-2,
        torch.bfloat16: 6e-2,
    }
)
_PRIME, _POWER = 97, 256


@dataclass(frozen=True, slots=True)
class Comparison:
    """Eager against compiled at one token count.

    Attributes:
        tokens: The token count.
        error: Largest relative error of a row.
        max_abs: Largest absolute difference.
        limit: Bound on `error`.
        problem: What is wrong, or empty.
    """

    tokens: int
    error: float
    max_abs: float
    limit: float
    problem: str = ""

    @property
    def ok(self) -> bool:
        """Tell whether the numbers are right."""
        return not self.problem and self.error <= self.limit


def build_real(spec: ModelSpec, device: str, seed: int = 0) -> nn.Module:
    """Build a spec's module with its weights on a device; random ones are the same for a seed."""
    torch.manual_seed(seed)
    with torch.device(device):
        module = spec.build().eval().requires_grad_(False)
    if spec.load_weights is not None:
        spec.load_weights(module)
    return module


def choose_token_counts(ranges: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Choose token counts to compare at: 1, 2, a prime, a power of two, the largest, and both ends of every range."""
    largest = max(high for _, high in ranges)
    prime = next((n for n in range(min(_PRIME, largest - 1), 2, -1) if _is_prime(n)), 1)
    power = 1 << (min(_POWER, max(largest - 1, 1)).bit_length() - 1)
    wanted = {1, 2, prime, power, largest, *(end for span in ranges for end in span)}
    return tuple(sorted(n for n in wanted if any(low <= n <= high for low, high in ranges)))


def compare(
    spec: ModelSpec, module: nn.Module, run: Callable[..., Any], tokens: int, reference: Callable[..., Any]
) -> Comparison:
    """Run both on the same fresh state and inputs.

    Args:
        spec: Makes the inputs and the state.
        module: Owner of the state; on the entry's device.
        run: The loaded callable.
        tokens: Token count.
        reference: Called for eager's result, so that a caller can count what it does apart.
    """
    with torch.no_grad():
        with spec.sample(module, tokens, tokens) as inputs:
            expected = [t.clone() for t in _tensors(reference(*inputs))]
        with spec.sample(module, tokens, tokens) as inputs:
            found = [t.clone() for t in _tensors(run(*inputs))]
    return _judge(tokens, expected, found)


def _judge(tokens: int, expected: list[Tensor], found: list[Tensor]) -> Comparison:
    limit = max((TOLERANCE.get(e.dtype, 0.0) for e in expected), default=0.0)
    shapes = [tuple(e.shape) for e in expected], [tuple(f.shape) for f in found]
    if shapes[0] != shapes[1]:
        return Comparison(
            tokens, float("inf"), float("inf"), limit, f"shapes differ: eager {shapes[0]}, compiled {shapes[1]}"
        )
    if not all(bool(torch.isfinite(e).all()) for e in expected if e.is_floating_point()):
        return Comparison(tokens, 0.0, 0.0, limit, "eager itself returns numbers that are not finite")
    if any(not torch.equal(e, f) for e, f in zip(expected, found, strict=True) if not e.is_floating_point()):
        return Comparison(tokens, float("inf"), float("inf"), limit, "integers differ")  # no tolerance holds for them
    errors = [_row_error(e, f) for e, f in zip(expected, found, strict=True)]
    gaps = [
        float((e.double() - f.double()).abs().max()) if e.numel() else 0.0 for e, f in zip(expected, found, strict=True)
    ]
    problem = "compiled code returns numbers that are not finite" if any(x != x for x in errors) else ""
    return Comparison(tokens, max(errors, default=0.0), max(gaps, default=0.0), limit, problem)


def _row_error(expected: Tensor, found: Tensor) -> float:
    if not expected.numel():
        return 0.0
    rows = expected.double().reshape(expected.shape[0] if expected.dim() > 1 else 1, -1)
    gap = (found.double().reshape(rows.shape) - rows).norm(dim=1)
    norm = rows.norm(dim=1)
    return float((gap / norm.clamp_min(torch.finfo(torch.float32).tiny)).max())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))
