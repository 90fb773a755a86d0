"""A live module as a model that can be precompiled: a spec is made from the instance and its first call.

Its key is that of the graph that a trace of this very instance gives, so two instances share an entry only where their
graphs agree (W11). What the instance holds is digested to find that entry again without a trace, and is no part of the
key: an attribute that no forward reads makes no second entry.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from precast.aot.code import SCRIPTS
from precast.aot.constants import constant_form
from precast.aot.covered import STATE
from precast.aot.dynamic_dims import TOKENS, DynamicDims, symbolic_shape
from precast.aot.forward_call import ForwardCall
from precast.aot.identity import identity_of, own_modules
from precast.aot.spec import Json, ModelSpec, TensorInput
from precast.aot.torch_seams.twins import twin_of
from precast.cache.factors import Factor
from precast.cache.lookup import MissReason
from precast.cache.manifest import Manifest
from precast.cache.sources import hash_source
from precast.errors import ConfigKeyError, UsageError

if TYPE_CHECKING:
    from precast.aot.planning import BuiltModel

__all__ = ["InstanceReference", "refer_to"]

_CONSTANT = "constant:"
# What decides how a live module becomes a graph, and what stands for it; no part of a key, which has the graph.
_RULES = ("dynamic_dims.py", "forward_call.py", "identity.py", "instance.py", "torch_seams/twins.py")


@dataclass(frozen=True, slots=True)
class InstanceReference:
    """A module that a caller made, and one call of it; for `precompile`, in place of MODEL.

    Attributes:
        instance: The module; it is never changed.
        call: The call.
        inputs: The call's tensors, with dynamic dims.
        splitting_ops: Qualified names of the ops at which the graph is cut.
        identity: Digest of what the instance holds, or empty where that cannot be told without a trace.
    """

    instance: nn.Module
    call: ForwardCall
    inputs: tuple[TensorInput, ...]
    splitting_ops: tuple[str, ...]
    identity: str

    @property
    def text(self) -> str:
        """Return the name of the class: what people call it."""
        return type(self.instance).__qualname__

    @property
    def module(self) -> str:
        """Return the Python module of the class."""
        return type(self.instance).__module__

    @property
    def modules(self) -> tuple[str, ...]:
        """Return the Python modules of all classes in the instance's tree; some may register custom ops."""
        return own_modules(self.instance)

    @property
    def quick(self) -> bool:
        """Tell whether what the instance holds is known, so that a look-up needs no trace."""
        return bool(self.identity)

    @property
    def import_path(self) -> tuple[str, ...]:
        """Return where compile processes find the class's module, which may be a script's neighbor."""
        file = getattr(sys.modules.get(self.module), "__file__", None)
        if file is None or self.module in SCRIPTS:
            return ()
        path = Path(file)
        depth = self.module.count(".") + (path.name == "__init__.py")
        return (str(path.resolve().parents[depth]),)

    @property
    def data_path(self) -> tuple[str, ...]:
        """Return no folder beyond `sys.path`."""
        return ()

    @property
    def hint(self) -> dict[str, Json]:
        """Return nothing: a live module cannot be named."""
        return {}

    def factors(self, overrides: Mapping[str, Json]) -> tuple[Factor, ...]:  # noqa: ARG002 - as ModelReference
        """Return what a trace would depend on and not show: torch's default dtype, where that is not its own."""
        dtype = torch.get_default_dtype()
        if dtype is torch.float32:
            return ()
        return (Factor("config", "model.default_dtype", str(dtype).removeprefix("torch.")),)

    def spec(self, overrides: Mapping[str, Json]) -> ModelSpec:
        """Make the spec. What it builds is a twin of the instance, with parameters that take no memory.

        Raises:
            ConfigKeyError: Overrides were given, and the instance is built already.
        """
        if overrides:
            raise ConfigKeyError(f"`{self.text}` takes no config key", "it is built already", "build another instance")

        @contextmanager
        def sample(module: nn.Module, num_tokens: int, seed: int) -> Iterator[tuple[Tensor, ...]]:  # noqa: ARG001
            yield tuple(_random(given, num_tokens, seed) for given in self.inputs)

        def build() -> nn.Module:
            return self.twin()

        for function in (sample, build):  # precast's own module is no root of the model's code
            function.__module__ = self.module
        return ModelSpec(self.text, build, self.inputs, self.splitting_ops, sample)

    def twin(self) -> nn.Module:
        """Return a twin of the instance whose forward takes the call's tensors alone."""
        made = twin_of(self.instance)
        vars(made).pop(STATE, None)
        vars(made)["forward"] = MethodType(self.call.traced_forward(), made)
        return made

    def built(self) -> "BuiltModel":
        """Return what a plan traces: the twin in the mode, training or not, that the instance is in."""
        from precast.aot.observe import Observation
        from precast.aot.planning import BuiltModel

        return BuiltModel(Observation(imported_before=frozenset(sys.modules)), self.spec({}), self.twin())

    def unfit(self, manifest: Manifest) -> Iterator[MissReason]:
        """Say which tensors of the instance are not what an entry's trace saw: that is another key."""
        for factor in manifest.factors:
            if factor.group == "graph" and factor.name.startswith(_CONSTANT):
                now = self._constant(factor.name.removeprefix(_CONSTANT))
                if now != factor.value:
                    yield MissReason("factor_changed", manifest.key, factor.label, factor.value, now)

    def _constant(self, path: str) -> Json:
        try:
            tensor = reduce(getattr, path.split("."), self.instance)
        except AttributeError:
            return None
        if not isinstance(tensor, Tensor):
            return None
        return constant_form(tensor, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def refer_to(
    instance: nn.Module, call: ForwardCall, dims: DynamicDims, splitting_ops: Sequence[str]
) -> InstanceReference:
    """Refer to a module by one call of it.

    Args:
        instance: The module.
        call: The call.
        dims: Dynamic dims by parameter; parameters that were given no tensor do not count.
        splitting_ops: Qualified names of the ops at which the graph is cut.

    Raises:
        ConfigValueError: A tensor lacks a dynamic dim.
        UsageError: The dynamic dims have different sizes, there are none, or a parameter has no values yet.
    """
    _require_servable(instance, call)
    inputs = tuple(
        TensorInput(name, symbolic_shape(name, tensor.shape, dims.get(name, ())), _dtype(tensor))
        for name, tensor in call.tensors.items()
    )
    _require_one_size(inputs, call)
    given: dict[str, Json] = {
        "inputs": [[i.name, list(i.shape), i.dtype] for i in inputs],
        "splitting_ops": [*sorted(splitting_ops)],
        "constants": [[name, type(value).__name__, repr(value)] for name, value in call.constants.items()],
        "rules": [hash_source(Path(__file__).parent / name) for name in _RULES],
    }
    identity = identity_of(instance, call.forward, given) or ""
    return InstanceReference(instance, call, inputs, tuple(splitting_ops), identity)


def _require_servable(instance: nn.Module, call: ForwardCall) -> None:
    """Refuse a call from which no artifact can be made, before anything is looked up."""
    lazy = [name for name, parameter in instance.named_parameters() if nn.parameter.is_lazy(parameter)]
    if lazy:
        raise UsageError(
            f"`{lazy[0]}` has no shape yet", "it is a lazy parameter", "run the module eagerly once before"
        )
    for name, tensor in call.tensors.items():
        if type(tensor) not in (Tensor, nn.Parameter):
            why = "compiled code reads a tensor's memory, and a subclass may keep its values elsewhere"
            raise UsageError(f"`{name}` is a {type(tensor).__name__}", why, "pass a plain tensor")


def _require_one_size(inputs: Sequence[TensorInput], call: ForwardCall) -> None:
    """Refuse dynamic dims that cannot all be the token count."""
    sizes = {
        f"dim {dim} of `{given.name}`": call.tensors[given.name].shape[dim]
        for given in inputs
        for dim, size in enumerate(given.shape)
        if size == TOKENS
    }
    if not sizes:
        raise UsageError(
            "no tensor of this call has a dynamic dim",
            "the code would serve one token count alone",
            "annotate forward's tensors, or list them in dynamic_arg_dims",
        )
    first, *others = sizes
    differing = [other for other in others if sizes[other] != sizes[first]]
    if differing:
        raise UsageError(
            f"{first} is {sizes[first]}, and {differing[0]} is {sizes[differing[0]]}",
            "both are dynamic, and the token count is the one dynamic size",
            "list the dims that are the token count in dynamic_arg_dims",
        )


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _random(given: TensorInput, num_tokens: int, seed: int) -> Tensor:
    """Make an input: random numbers, or zeros for what may be an index."""
    shape = [num_tokens if isinstance(size, str) else size for size in given.shape]
    dtype = getattr(torch, given.dtype)
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
