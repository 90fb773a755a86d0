"""Small ops and modules that the tests of the splitter and of aot share."""

# ruff: noqa: N803, N806 - dimension suffixes are capitals

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.library import custom_op

from precast.aot.spec import ModelSpec, TensorInput
from precast.aot.torch_seams.export import export_piece, program_bytes, program_from
from precast.aot.trace import TracedGraph, build_for_tracing, trace
from precast.splitter.split import Piece, Split, split
from precast.splitter.stitch import PieceCallable, bind, stitch

ATTEND = "precast_tests::attend"
PAIR = "precast_tests::pair"
WRITE = "precast_tests::write"
RICH = "precast_tests::rich"
WIDTH = 4
TOKEN_COUNTS = (1, 2, 7, 64)


@custom_op(ATTEND, mutates_args=())  # type: ignore[untyped-decorator]
def attend(x_TD: Tensor) -> Tensor:
    return x_TD.cumsum(0) * 0.5 + 1


@attend.register_fake  # type: ignore[untyped-decorator]
def _(x_TD: Tensor) -> Tensor:
    return torch.empty_like(x_TD)


@custom_op(PAIR, mutates_args=())  # type: ignore[untyped-decorator]
def pair(x_TD: Tensor) -> tuple[Tensor, Tensor]:
    return x_TD.cumsum(0), x_TD * -1


@pair.register_fake  # type: ignore[untyped-decorator]
def _(x_TD: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x_TD), torch.empty_like(x_TD)


@custom_op(WRITE, mutates_args=("out_TD",))  # type: ignore[untyped-decorator]
def write(out_TD: Tensor, x_TD: Tensor) -> None:
    out_TD.copy_(x_TD.cumsum(0) + 3)


@write.register_fake  # type: ignore[untyped-decorator]
def _(out_TD: Tensor, x_TD: Tensor) -> None:
    return None


@custom_op(RICH, mutates_args=())  # type: ignore[untyped-decorator]
def rich(
    x_TD: Tensor,
    tokens: int,
    scale: float,
    dtype: torch.dtype,
    sizes: list[int],
    window: int | None = None,
    *,
    cap: float = 1.0,
    name: str = "",
) -> Tensor:
    clipped_TD = (x_TD * scale).clamp(-cap, cap)
    return clipped_TD.to(dtype).float() + tokens + sum(sizes) + len(name) + (window or 0)


@rich.register_fake  # type: ignore[untyped-decorator]
def _(
    x_TD: Tensor,
    tokens: int,
    scale: float,
    dtype: torch.dtype,
    sizes: list[int],
    window: int | None = None,
    *,
    cap: float = 1.0,
    name: str = "",
) -> Tensor:
    return torch.empty_like(x_TD)


class Small(nn.Module):  # type: ignore[misc]
    """A module with a linear layer and a buffer; tests give it a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("total_D", torch.zeros(WIDTH))


class Layers(nn.Module):  # type: ignore[misc]
    """A chain of equal residual layers around the splitting op."""

    def __init__(self, count: int, scale: float = 0.5) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, 2 * WIDTH)
        self.layers = nn.ModuleList(Layer(scale) for _ in range(count))
        self.out = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        for layer in self.layers:
            h = layer(h)
        return self.out(h)


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.before = nn.Linear(2 * WIDTH, 2 * WIDTH)
        self.after = nn.Linear(2 * WIDTH, 2 * WIDTH)
        self.scale = scale

    def forward(self, h: Tensor) -> Tensor:
        mixed = attend(self.before(h))
        h = h + mixed * self.scale
        return h + torch.relu(self.after(h))


def small(forward: Callable[..., Any]) -> Callable[[], nn.Module]:
    """Return a constructor of `Small` with another forward."""
    return type("Given", (Small,), {"forward": forward, "__module__": __name__})


@contextmanager
def no_sample(module: nn.Module, num_tokens: int, seed: int) -> Iterator[tuple[Tensor, ...]]:
    """Make one float input; the models here keep no state between calls."""
    generator = torch.Generator().manual_seed(seed)
    yield (torch.randn(num_tokens, WIDTH, generator=generator),)


def make_spec(
    build: Callable[[], nn.Module],
    ops: tuple[str, ...] = (ATTEND,),
    names: tuple[str, ...] = ("x",),
    shape: tuple[int | str, ...] = ("tokens", WIDTH),
    config: Mapping[str, Any] | None = None,
) -> ModelSpec:
    inputs = tuple(TensorInput(n, shape, "float32") for n in names)
    return ModelSpec("small", build, inputs, ops, no_sample, config=dict(config or {}))


def trace_spec(spec: ModelSpec) -> TracedGraph:
    return trace(spec, build_for_tracing(spec), "cpu")


def split_spec(spec: ModelSpec) -> Split:
    traced = trace_spec(spec)
    return split(traced.graph_module, traced.inputs, traced.arguments, traced.result, spec.splitting_ops)


def resolve_op(name: str, overload: str) -> Any:
    namespace, _, op = name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), op), overload)


def as_is(piece: Piece) -> PieceCallable:
    """Run a piece's graph eagerly."""
    module = piece.graph_module
    return lambda inputs: module(*inputs)


def as_exported(piece: Piece) -> PieceCallable:
    """Run a piece as export sees it: functional, stored and read again, as a compile process gets it."""
    program = program_from(program_bytes(export_piece(piece.graph_module, 1, 512)))
    module = program.run_decompositions().module()
    return lambda inputs: module(*inputs)


def stitched_forward(
    made: Split, module: nn.Module, pieces: Mapping[str, PieceCallable] | None = None
) -> Callable[..., Any]:
    """Bind a split to a module's state; its pieces run eagerly when no other callables are given."""
    pieces = pieces or {p.key: as_is(p) for p in made.pieces}
    values = {i.name: reduce(getattr, i.source.split("."), module) for i in made.plan.inputs if i.kind == "state"}
    return bind(stitch(made.plan), pieces, values, resolve_op)


def assert_equal(found: Any, expected: Any) -> None:
    """Compare results of any form: containers and constants exactly, tensors closely."""
    assert type(found) is type(expected)
    if isinstance(expected, Tensor):
        torch.testing.assert_close(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        assert_equal(list(found.values()), list(expected.values()))
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for f, e in zip(found, expected, strict=True):
            assert_equal(f, e)
    else:
        assert found == expected


def assert_same_as_module(spec: ModelSpec, run: Callable[[Piece], PieceCallable] = as_is) -> Split:
    """Split a spec, and compare the stitched pieces with the module at several token counts, buffers included."""
    made = split_spec(spec)
    pieces = {p.key: run(p) for p in made.pieces}
    torch.manual_seed(0)
    fresh = spec.build().eval().requires_grad_(False)
    for tokens in TOKEN_COUNTS:
        eager, ours = copy.deepcopy(fresh), copy.deepcopy(fresh)
        args = [torch.randn([tokens if s == "tokens" else int(s) for s in i.shape]) for i in spec.inputs]
        expected = eager(*[a.clone() for a in args])
        found = stitched_forward(made, ours, pieces)(*[a.clone() for a in args])
        assert_equal(found, expected)
        torch.testing.assert_close(dict(ours.named_buffers()), dict(eager.named_buffers()))
    return made
