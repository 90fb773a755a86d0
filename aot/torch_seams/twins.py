"""Seam to `nn.Module`'s own fields: a twin of a live module to trace, and where a module holds what a path names.

Tried on torch 2.11.0 and 2.13.0.
"""

import functools
from collections import OrderedDict
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode

__all__ = ["HOOKS", "UNREAD", "holders", "twin_of"]

# Fields that hold hooks by a number of the process; the module's own hooks run outside of what is compiled.
HOOKS = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_hooks_always_called",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
# Fields that no forward reads: what is done when a state dict is made or loaded.
UNREAD = ("_load_state_dict_post_hooks", "_load_state_dict_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks")


def twin_of(module: nn.Module) -> nn.Module:
    """Copy a module's tree, so that it can be traced while others use the module.

    Parameters become fake tensors on the CPU, as `build_for_tracing` makes them. Buffers and other tensors are the
    same objects: they may be large, and a trace writes to none. What else a module holds is shared too, but for
    modules, parameters and bound methods inside its lists, tuples, dicts and partial functions.

    Args:
        module: The module.
    """
    made = _Twins().of(module)
    assert isinstance(made, nn.Module)
    return made


def holders(module: nn.Module, path: str) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield, for each step of a dotted path, the dict that holds it, its name there, and what it is now.

    Raises:
        AttributeError: The path leads nowhere.
    """
    held: Any = module
    for name in path.split("."):
        fields = vars(held)
        places = (fields, fields.get("_parameters"), fields.get("_buffers"), fields.get("_modules"))
        place = next((p for p in places if p is not None and name in p), None)
        if place is None:
            getattr(held, name)  # a property, or an attribute of the class: it is not held, so it cannot be watched
            return
        held = place[name]
        yield place, name, held


class _Twins:
    """The twins that were made, by what they are of; the originals live as long, so that none's id is used again."""

    def __init__(self) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._made: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        if id(value) in self._made:
            return self._made[id(value)]
        if isinstance(value, nn.Parameter):
            return self._keep(value, self._parameter(value))
        if isinstance(value, nn.Module) and not isinstance(value, torch.jit.ScriptModule):
            return self._module(value)
        if type(value) in (dict, OrderedDict):
            made = self._keep(value, type(value)())
            made.update({key: self.of(item) for key, item in value.items()})
            return made
        if type(value) is list:
            made = self._keep(value, [])
            made += map(self.of, value)
            return made
        if type(value) is tuple:
            return tuple(map(self.of, value))
        if isinstance(value, MethodType):
            return MethodType(value.__func__, self.of(value.__self__))
        if isinstance(value, functools.partial):
            return functools.partial(self.of(value.func), *map(self.of, value.args), **self.of(value.keywords))
        return value

    def _keep(self, value: Any, made: Any) -> Any:
        self._made[id(value)] = made
        return made

    def _module(self, module: nn.Module) -> nn.Module:
        made: nn.Module = self._keep(module, object.__new__(type(module)))
        vars(made).update({name: self.of(value) for name, value in vars(module).items()})
        return made

    def _parameter(self, parameter: nn.Parameter) -> Tensor:
        if isinstance(parameter, FakeTensor) or isinstance(parameter.data, FakeTensor):
            return parameter
        with self._mode:
            made = torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype, device="cpu")
            return nn.Parameter(made, requires_grad=False)
