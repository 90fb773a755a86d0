"""The model spec: everything precast has to know about a model, and nothing about its architecture.

A spec names how to build the module, how it is called, at which ops its graph is cut, and how to make a batch that it
can run on. Tracing, splitting and loading work on specs alone.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from precast.cache.canonical import Json

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Json", "ModelSpec", "TensorInput"]


@dataclass(frozen=True, slots=True)
class TensorInput:
    """One tensor argument of the module's forward.

    Attributes:
        name: The parameter's name in `forward`.
        shape: Sizes; a string names a dynamic dim, and equal strings are equal sizes at run time. The dim named
            `tokens` is the one that compile ranges and capture sizes speak of.
        dtype: A torch dtype's name, such as `int64`.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str = "int64"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model that precast can trace, compile, load and check.

    Attributes:
        name: What people call the model; it is shown, never part of the key.
        build: Makes the module on torch's current default device. precast calls it with parameters diverted to fake
            tensors while it precompiles, so it must not read parameter values.
        inputs: The tensors that `forward` takes, in order.
        splitting_ops: Qualified names of the ops at which the graph is cut, such as `precast::paged_attention`.
        config: Every value that decides what the model computes; each becomes a factor of the key.
        sample: `sample(module, num_tokens, seed)` is a context in which the module can run; it yields the inputs for
            `num_tokens` tokens. State such as a KV cache is fresh at each entry, so equal seeds give equal results.
        load_weights: Fills the module's parameters in place, with real weights or seeded random ones. None keeps what
            `build` left.
    """

    name: str
    build: Callable[[], "nn.Module"]
    inputs: tuple[TensorInput, ...]
    splitting_ops: tuple[str, ...]
    sample: "Callable[[nn.Module, int, int], AbstractContextManager[tuple[Tensor, ...]]]"
    config: Mapping[str, Json] = field(default_factory=dict)
    load_weights: "Callable[[nn.Module], None] | None" = None
