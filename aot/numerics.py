"""Compare a loaded callable with the eager model: form, dtypes, and numbers row by row.

The error of a row is its distance from eager relative to eager's own norm, so that one wrong row among thousands
shows. Each tensor is held to the bound of its own dtype: compiled code rounds at other places than eager does, but an
output in float32 has no right to the roundings of bfloat16. The buffers that the run leaves behind are compared too.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from precast.aot.spec import ModelSpec

__all__ = [
    "FLOOR",
    "TOLERANCE",
    "Comparison",
    "build_real",
    "choose_token_counts",
    "compare",
    "compare_values",
    "named_leaves",
]

TOLERANCE: Mapping[torch.dtype, float] = MappingProxyType(
    {
        torch.float64: 1e-9,
        torch.float32: 1e-4,
        torch.float16: 1e-2,
        torch.bfloat16: 6e-2,
    }
)
# Root mean square of a row's differences that is right whatever eager's norm is: a row of zeros has no relative error,
# and sums that cancel leave rounding behind. Far below the size of activations; half of a float16's smallest step.
FLOOR: Mapping[torch.dtype, float] = MappingProxyType(
    {
        torch.float64: 1e-11,
        torch.float32: 1e-9,
        torch.float16: 3e-8,
        torch.bfloat16: 1e-8,
    }
)
_PRIME, _POWER = 97, 256


@dataclass(frozen=True, slots=True)
class Comparison:
    """Eager against compiled at one token count.

    Attributes:
        tokens: The token count.
        error: Largest relative error of a row, in the tensor that comes nearest to its limit or is furthest over it.
        max_abs: Largest absolute difference of all tensors.
        limit: Bound on `error`, that of the tensor's dtype.
        problem: What is wrong, or empty.
        where: The tensor, such as `result[0]` or `buffer total`.
    """

    tokens: int
    error: float
    max_abs: float
    limit: float
    problem: str = ""
    where: str = ""

    @property
    def ok(self) -> bool:
        """Tell whether the numbers are right."""
        return not self.problem and self.error <= self.limit

    @property
    def ratio(self) -> float:
        """Return how much of its limit the error takes; above 1 it is wrong."""
        if self.limit:
            return self.error / self.limit
        return math.inf if self.error else 0.0

    def told(self) -> str:
        """Say what is wrong, or how near the numbers come to their limit."""
        told = f"largest relative error of a row {self.error:.2e}, limit {self.limit:.0e}"
        return self.problem or (f"{self.where}: {told}" if self.where else told)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a run gave: its result, leaf by leaf, and the buffers after it."""

    leaves: tuple[tuple[str, Any], ...]
    buffers: tuple[tuple[str, Any], ...]


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
    """Run both on the same fresh state, buffers and inputs; the module's buffers are put back after each.

    Args:
        spec: Makes the inputs and the state.
        module: Owner of the state; on the entry's device.
        run: The loaded callable.
        tokens: Token count.
        reference: Called for eager's result, so that a caller can count what it does apart.
    """
    with torch.no_grad():
        expected = _outcome(spec, module, reference, tokens)
        found = _outcome(spec, module, run, tokens)
    return _judge(tokens, expected, found)


def named_leaves(value: Any, path: str) -> tuple[tuple[str, Any], ...]:
    """Return the form of a result and copies of its tensors, by their path in it."""
    return tuple(_leaves(value, path))


def compare_values(tokens: int, expected: Sequence[tuple[str, Any]], found: Sequence[tuple[str, Any]]) -> Comparison:
    """Compare what eager gave with what the compiled forward gave, by the same bounds as `compare`.

    Args:
        tokens: Token count, for the result.
        expected: Tensors and forms by path, as `named_leaves` returns them.
        found: The same.
    """
    return _judge(tokens, _Outcome(tuple(expected), ()), _Outcome(tuple(found), ()))


def _outcome(spec: ModelSpec, module: nn.Module, run: Callable[..., Any], tokens: int) -> _Outcome:
    before = [(owner, name, buffer, buffer.clone()) for owner, _, name, buffer in _buffers(module)]
    try:
        with spec.sample(module, tokens, tokens) as inputs:
            leaves = tuple(_leaves(run(*inputs), "result"))
            after = tuple((f"buffer {path}", buffer.clone()) for _, path, _, buffer in _buffers(module))
    finally:
        for owner, name, buffer, value in before:
            buffer.copy_(value)  # in place: the loaded callable holds this very tensor
            setattr(owner, name, buffer)
    return _Outcome(leaves, after)


def _buffers(module: nn.Module) -> Iterator[tuple[nn.Module, str, str, Tensor]]:
    for prefix, owner in module.named_modules():
        for name, buffer in owner.named_buffers(recurse=False):
            yield owner, f"{prefix}.{name}" if prefix else name, name, buffer


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the form of a result and its leaves: a copy of each tensor, the type and keys of each container."""
    if isinstance(value, Tensor):
        yield path, value.clone()
    elif isinstance(value, (list, tuple)):
        yield path, f"{type(value).__name__} of {len(value)}"
        for at, item in enumerate(value):
            yield from _leaves(item, f"{path}[{at}]")
    elif isinstance(value, dict):
        yield path, f"{type(value).__name__} of {list(value)}"
        for key, item in value.items():
            yield from _leaves(item, f"{path}[{key!r}]")
    else:
        yield path, f"{type(value).__name__} {value!r}"


def _judge(tokens: int, expected: _Outcome, found: _Outcome) -> Comparison:
    problem = _misfit(expected.leaves, found.leaves) or _misfit(expected.buffers, found.buffers)
    if problem:
        return Comparison(tokens, math.inf, math.inf, 0.0, *problem)
    if any(not bool(torch.isfinite(_exact(e)).all()) for _, e in expected.leaves if isinstance(e, Tensor)):
        return Comparison(tokens, 0.0, 0.0, 0.0, "eager itself returns numbers that are not finite")
    pairs = zip((*expected.leaves, *expected.buffers), (*found.leaves, *found.buffers), strict=True)
    judged = [_judge_tensor(tokens, path, e, f) for (path, e), (_, f) in pairs if isinstance(e, Tensor)]
    if not judged:
        return Comparison(tokens, 0.0, 0.0, 0.0)
    worst = max(judged, key=lambda j: (bool(j.problem), j.ratio))
    return replace(worst, max_abs=max(j.max_abs for j in judged))


def _misfit(expected: Sequence[tuple[str, Any]], found: Sequence[tuple[str, Any]]) -> tuple[str, str] | None:
    """Return the first difference that is none of numbers, and where it is."""
    for (path, e), (_, f) in zip(expected, found, strict=False):
        shown = [_form(e), _form(f)]
        if shown[0] != shown[1]:
            return f"{_noun(e, f)} differ at {path}: eager {shown[0]}, compiled {shown[1]}", path
    if [p for p, _ in expected] != [p for p, _ in found]:
        return f"forms differ: eager has {len(expected)} parts, compiled {len(found)}", ""
    return None


def _form(value: Any) -> str:
    if not isinstance(value, Tensor):
        return str(value)
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} on {value.device.type}"


def _noun(expected: Any, found: Any) -> str:
    if not (isinstance(expected, Tensor) and isinstance(found, Tensor)):
        return "results"
    return "dtypes" if expected.dtype != found.dtype else "shapes"


def _judge_tensor(tokens: int, path: str, expected: Tensor, found: Tensor) -> Comparison:
    dtype = expected.real.dtype if expected.is_complex() else expected.dtype
    limit = TOLERANCE.get(dtype, 0.0)
    e, f = _exact(expected), _exact(found)
    if torch.equal(e, f) or not e.numel():
        return Comparison(tokens, 0.0, 0.0, limit, where=path)
    if not limit:  # no tolerance holds for integers
        what = "numbers without a tolerance" if expected.is_floating_point() else "integers"
        return Comparison(tokens, math.inf, math.inf, limit, f"{what} differ", path)
    same = (e == f) | (e.isnan() & f.isnan())
    e, f = (t.masked_fill(same & ~torch.isfinite(e), 0.0) for t in (e, f))  # a buffer may hold a mask of infinities
    error, gap = _row_error(e, f, FLOOR[dtype] / limit), float((e - f).abs().max())
    problem = "compiled code returns numbers that are not finite" if not math.isfinite(error) else ""
    return Comparison(tokens, error, gap, limit, problem, path)


def _exact(tensor: Tensor) -> Tensor:
    """Return floats in double precision, complex numbers as pairs, and integers as they are."""
    if tensor.is_complex():
        return torch.view_as_real(tensor).double()
    return tensor.double() if tensor.is_floating_point() else tensor


def _row_error(expected: Tensor, found: Tensor, smallest: float) -> float:
    """Return the largest error of a row; a norm counts as at least that of numbers as large as `smallest`."""
    rows = expected.reshape(expected.shape[0] if expected.dim() > 1 else 1, -1)
    gap = (found.reshape(rows.shape) - rows).norm(dim=1)
    norm = rows.norm(dim=1).clamp_min(smallest * math.sqrt(rows.shape[1]))
    return float((gap / norm).max())


def _is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))
