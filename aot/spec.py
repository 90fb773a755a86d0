"""The model spec: everything precast has to know about a model, and nothing about its architecture.

A spec names how to build the module, how it is called, at which ops its graph is cut, and how to make a batch that it
can run on. Tracing, splitting and loading work on specs alone.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from precast.cache.canonical import Json, canonical_json
from precast.capture.support import AttentionGraphSupport
from precast.errors import ConfigValueError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from precast.capture.limits import BatchLimits
    from precast.capture.state import GraphState

__all__ = ["MODEL_KINDS", "Json", "ModelSpec", "TensorInput"]

MODEL_KINDS = ("decoder", "encoder_decoder", "pooling")

_A_NAME = "the name of a parameter of forward"
_PLAIN = "give numbers, texts, lists and dicts of them; a dtype by its name"
# torch's own names, written out so that a spec can be made without importing torch.
_DTYPES = (
    "bfloat16", "bool", "complex64", "complex128", "float16", "float32", "float64", "float8_e4m3fn",
    "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "int8", "int16", "int32", "int64", "uint8",
    "uint16", "uint32", "uint64",
)  # fmt: skip


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

    def __post_init__(self) -> None:
        """Refuse values that would fail later, far from the model's code.

        Raises:
            ConfigValueError: A field has a wrong type or value; the error names it.
        """
        _require(_is_text(self.name) and self.name.isidentifier(), "TensorInput.name", self.name, _A_NAME)
        field_of = f"TensorInput({self.name!r})"
        sizes = _is_sequence(self.shape) and all(map(_is_size, self.shape))
        _require(sizes, f"{field_of}.shape", self.shape, "a tuple of sizes from 0 up and names of dynamic dims")
        _require(self.dtype in _DTYPES, f"{field_of}.dtype", self.dtype, f"one of {', '.join(_DTYPES)}")


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
        state: `state(module, num_tokens)` is a context with everything that the splitting ops read, such as a KV cache
            and its metadata, allocated on the module's device and for that many tokens; nobody reads what it holds.
            With it the Triton kernels that the ops launch are compiled ahead of time; None leaves that to the node.
        graph_state: `graph_state(module, limits)` allocates what CUDA graphs are captured over: inputs, KV cache and
            metadata for a serving process with these limits. None for a model that is not captured by precast.
        graph_support: What each splitting op can be captured for inside of a FULL graph, by qualified name. A
            splitting op that is left out counts as NEVER: a graph around an op that nobody vouched for could compute
            wrong numbers. Neither this nor `kind` is part of the key; they decide which graphs are captured.
        kind: `decoder`; `pooling` for a model that has no decode steps; `encoder_decoder` for one whose prompt steps
            also run an encoder.
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
    state: "Callable[[nn.Module, int], AbstractContextManager[None]] | None" = None
    graph_state: "Callable[[nn.Module, BatchLimits], GraphState] | None" = None
    graph_support: Mapping[str, AttentionGraphSupport] = field(default_factory=dict)
    kind: str = "decoder"

    def __post_init__(self) -> None:
        """Refuse values that would fail later, far from the model's code.

        Raises:
            ConfigValueError: A field has a wrong type or value; the error names it.
        """
        _require(_is_text(self.name) and bool(self.name), "ModelSpec.name", self.name, "a text")
        _require(_all_of(self.inputs, TensorInput), "ModelSpec.inputs", self.inputs, "a tuple of TensorInput")
        _require(_all_of(self.splitting_ops, str), "ModelSpec.splitting_ops", self.splitting_ops, "a tuple of op names")
        for part in ("build", "sample"):
            _require(callable(getattr(self, part)), f"ModelSpec.{part}", getattr(self, part), "something to call")
        for part in ("load_weights", "state", "graph_state"):
            value = getattr(self, part)
            _require(value is None or callable(value), f"ModelSpec.{part}", value, "something to call, or None")
        _require(self.kind in MODEL_KINDS, "ModelSpec.kind", self.kind, f"one of {', '.join(MODEL_KINDS)}")
        self._check_support()
        _require(isinstance(self.config, Mapping), "ModelSpec.config", self.config, "a mapping")
        for key, value in self.config.items():
            _require(isinstance(key, str), "ModelSpec.config", key, "a mapping with texts as keys")
            _require_json(f"ModelSpec.config[{key!r}]", value)

    def _check_support(self) -> None:
        """Refuse support of what is no splitting op: a name written wrong would leave the op itself at NEVER."""
        _require(isinstance(self.graph_support, Mapping), "ModelSpec.graph_support", self.graph_support, "a mapping")
        for op, support in self.graph_support.items():
            names = ", ".join(self.splitting_ops) or "none, as the spec has no splitting ops"
            _require(op in self.splitting_ops, "ModelSpec.graph_support", op, f"names of splitting ops: {names}")
            name, wanted = f"ModelSpec.graph_support[{op!r}]", ", ".join(AttentionGraphSupport.__members__)
            _require(isinstance(support, AttentionGraphSupport), name, support, f"an AttentionGraphSupport: {wanted}")


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ConfigValueError(f"`{name}` cannot be {value!r}", "the model's spec is wrong", f"give {wanted}")


def _require_json(name: str, value: object) -> None:
    """Refuse what cannot be part of a key, and name the innermost value that it is about."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _require_json(f"{name}[{key!r}]", item)
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            _require_json(f"{name}[{at}]", item)
    try:
        canonical_json(value)
    except ValueError as error:
        raise ConfigValueError(f"`{name}` cannot be {value!r}", str(error), _PLAIN) from error


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_sequence(value: object) -> bool:
    return isinstance(value, (tuple, list))


def _is_size(size: object) -> bool:
    return (type(size) is int and size >= 0) or (isinstance(size, str) and size.isidentifier())


def _all_of(values: object, kind: type) -> bool:
    return isinstance(values, (tuple, list)) and all(isinstance(v, kind) for v in values)
