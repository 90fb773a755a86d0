"""Models that must be refused, each for one reason; used as `bad_models.py:NAME`."""

# mypy: allow-subclassing-any, allow-untyped-defs, allow-incomplete-defs

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from precast import ModelSpec, TensorInput

WIDTH = 8
LIBRARY = torch.library.Library("precast_bad", "FRAGMENT")
LIBRARY.define("no_fake(Tensor x) -> Tensor")
LIBRARY.impl("no_fake", lambda x: x + 1, "CPU")


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Prints(Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        print("a graph break")  # noqa: T201
        return y


class Branches(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if x.sum() > 0 else x


class NoFake(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.precast_bad.no_fake(self.linear(x))


class Fixed(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.view(7, WIDTH))


class Assigns(Linear):
    def forward(self, x: Tensor) -> Tensor:
        self.last = x * 2
        return self.linear(x)


class Raises(nn.Module):
    def __init__(self) -> None:
        raise RuntimeError("no such layer")


@contextmanager
def sample(module: nn.Module, tokens: int, seed: int) -> Iterator[tuple[Tensor, ...]]:
    yield (torch.randn(tokens, WIDTH, generator=torch.Generator().manual_seed(seed)),)


def spec(build: Callable[[], nn.Module], ops: tuple[str, ...] = ()) -> ModelSpec:
    return ModelSpec("bad", build, (TensorInput("x", ("tokens", WIDTH), "float32"),), ops, sample)


def good(width: int = WIDTH) -> ModelSpec:
    return spec(Linear)


def prints() -> ModelSpec:
    return spec(Prints)


def branches() -> ModelSpec:
    return spec(Branches)


def no_fake() -> ModelSpec:
    return spec(NoFake)


def fixed() -> ModelSpec:
    return spec(Fixed)


def assigns() -> ModelSpec:
    return spec(Assigns)


def constructor_raises() -> ModelSpec:
    return spec(Raises)


def factory_raises() -> ModelSpec:
    raise ValueError("boom")


def no_spec() -> int:
    return 3


def absent_op() -> ModelSpec:
    return spec(Linear, ("precast::paged_attention",))
