"""What a live module holds, as one digest: equal digests and equal sources make equal traces.

A trace bakes in whatever forward reads that is no tensor: numbers of the module, of objects in it, of closures, of the
globals that its functions name (W11, W12). All of that is described, and contents of tensors are not: they are bound
again at load, and those that a graph uses are compared by themselves. What cannot be described (a lock, a socket, an
object of some C library) leaves the answer open, and the module is traced.
"""

import functools
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from enum import Enum
from hashlib import sha256
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from precast.aot.covered import STATE, covered
from precast.aot.observe import is_model_file
from precast.aot.reference import NO_CONFIG_FACTOR
from precast.aot.torch_seams.twins import HOOKS, UNREAD
from precast.cache.canonical import Json, digest

__all__ = ["identity_of", "own_modules"]


_PLAIN = (bool, int, str, types.NoneType)
# What its text tells in full; annotations are among it.
_CONSTANTS = (
    torch.dtype, torch.device, torch.layout, torch.memory_format, bytes, complex, range, slice, type(...),
    types.GenericAlias, types.UnionType, typing.TypeVar,
)  # fmt: skip
# Parts of types of C, and of slots: what they do is in their name.
_PARTS = (
    types.BuiltinFunctionType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
)
# Methods that run when a module is made or shown, and never while it is traced.
_NEVER_TRACED = frozenset({"__del__", "__init__", "__init_subclass__", "__new__", "__repr__", "__str__"})
_MOST = 200_000  # things; beyond, a trace is cheaper
# What no trace can read a number from, wherever it is held: by the package that its class is of.
_INERT = frozenset({"_thread", "logging", "threading"})
_OPS = ("torch._ops", "torch._library")
_TORCH = frozenset({"torch", "triton"})


class _OpenError(Exception):
    """There is something that cannot be described."""


def identity_of(module: nn.Module, forward: Callable[..., Any], given: Json) -> str | None:
    """Digest everything of a module that a trace of its forward can see.

    Args:
        module: The module.
        forward: The function that is traced.
        given: What is known of the call besides: inputs, constants.

    Returns:
        The digest, or None where something cannot be described.
    """
    if any(not getattr(sys.modules.get(name), "__file__", None) for name in own_modules(module)):
        return None  # typed at a prompt: no source would be compared at the next look-up
    describer = _Describer(frozenset({type(module).__module__.partition(".")[0]}))
    try:
        return digest({"given": given, "holds": describer.whole(module, forward)})
    except (_OpenError, RecursionError, ValueError):
        return None


def own_modules(module: nn.Module) -> tuple[str, ...]:
    """Name the Python modules of the classes that a module's tree is made of, the root's first, but torch's own."""
    names = (type(part).__module__ for part in module.modules())
    return tuple(dict.fromkeys(n for n in names if n.partition(".")[0] != "torch"))


class _Describer:
    def __init__(self, homes: frozenset[str]) -> None:
        self._homes = homes
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []  # so that no id is used twice
        self._classes: dict[type, None] = {}
        self._known: set[type] = set()
        self._names: set[str] = set()  # what the code that was seen mentions

    def whole(self, module: nn.Module, forward: Any) -> Json:
        root = self.value(module)
        return [root, self.value(forward), *self._methods()]

    def value(self, value: Any) -> Json:
        """Describe anything."""
        if type(value) in _PLAIN:
            plain: Json = value if not isinstance(value, int) or abs(value) < 2**53 else ["int", str(value)]
            return plain
        if isinstance(value, float):
            return ["float", repr(value)]
        if isinstance(value, _CONSTANTS):
            return [_name(type(value)), repr(value)]
        if isinstance(value, Enum):
            return ["enum", _name(type(value)), value.name]
        if isinstance(value, (int, str)):
            return [_name(type(value)), str(value)]
        if _package(type(value)) in _INERT:
            return ["object", _name(type(value))]
        if id(value) in self._seen:
            return ["seen", self._seen[id(value)]]
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        if len(self._seen) > _MOST:
            raise _OpenError
        return self._thing(value)

    def _thing(self, value: Any) -> Json:
        if isinstance(value, Tensor):
            return ["tensor", _name(type(value)), str(value.dtype), list(value.shape), list(value.stride())]
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, ModuleType):
            return ["module", value.__name__]
        if isinstance(value, type):
            self._note_class(value)
            return ["class", _name(value)]
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return ["method", self.value(value.__func__), self.value(value.__self__)]
        if isinstance(value, (staticmethod, classmethod)):
            return ["method", self.value(value.__func__)]
        if isinstance(value, property):
            return ["property", *map(self.value, (value.fget, value.fset))]
        if isinstance(value, functools.partial):
            return ["partial", self.value(value.func), self.value(value.args), self.value(value.keywords)]
        if isinstance(value, re.Pattern):
            return ["pattern", self.value(value.pattern), value.flags]
        if isinstance(value, ContextVar):
            return ["context", value.name, self.value(value.get(None))]
        if isinstance(value, _PARTS):
            return ["builtin", getattr(value, "__module__", None) or "", value.__qualname__]
        if isinstance(value, (Mapping, tuple, list, set, frozenset)):
            return self._collection(value)
        return self._object(value)

    def _collection(self, value: Any) -> Json:
        kind = _name(type(value))
        self._note_class(type(value))
        if isinstance(value, (set, frozenset)):
            return [kind, *map(self.value, sorted(value, key=_shown))]
        if isinstance(value, Mapping):
            return [kind, *([self.value(k), self.value(v)] for k, v in value.items()), *self._fields(value, ())]
        return [kind, *map(self.value, value), *self._fields(value, ())]

    def _module(self, module: nn.Module) -> Json:
        """Describe a module; hooks without their numbers, which a process counts, and none of the root's own."""
        self._note_class(type(module))
        held = {} if self._seen[id(module)] == 0 else {name: vars(module).get(name) for name in HOOKS}
        hooks: list[Json] = [[name, *map(self.value, by_id.values())] for name, by_id in held.items() if by_id]
        return ["nn", _name(type(module)), hooks, *self._fields(module, (*HOOKS, *UNREAD, STATE))]

    def _object(self, value: Any) -> Json:
        """Describe an object by its class and its fields; what keeps its state elsewhere cannot be described."""
        if type(value) is object:
            return ["object", "only its identity counts"]
        if type(value).__module__.startswith(_OPS):
            return ["op", str(value)]
        if not hasattr(value, "__dict__") and not _slots(type(value)):
            raise _OpenError
        self._note_class(type(value))
        return ["object", _name(type(value)), *self._fields(value, ())]

    def _fields(self, value: Any, but: Iterable[str]) -> Iterator[Json]:
        fields = {**{n: getattr(value, n) for n in _slots(type(value)) if hasattr(value, n)}, **_dict_of(value)}
        for name in sorted(fields.keys() - set(but) - set(NO_CONFIG_FACTOR)):
            yield [name, self.value(fields[name])]

    def _function(self, function: FunctionType) -> Json:
        """Describe a function by its name, what it closes over, and the globals that the model's own functions read."""
        if covered(function) is not function:
            return self.value(covered(function))
        code = function.__code__
        made = code.co_filename.startswith("<")  # from text: no file's content stands for it
        name = ["function", function.__module__ or "", function.__qualname__, _code_digest(code) if made else ""]
        if not is_model_file(code.co_filename, self._homes) and not (made and self._is_own(function)):
            return [*name, self._attempt(lambda: list(self._bound(function)), _package(function) in _TORCH)]
        mentioned = set(_mentioned(code))
        self._names |= mentioned
        scope = function.__globals__
        read: list[Json] = [[n, self._global(scope[n], mentioned)] for n in sorted(mentioned) if n in scope]
        return [*name, read, *self._bound(function)]

    def _bound(self, function: FunctionType) -> Iterator[Json]:
        """Describe what a function carries: closure, defaults, and the function that it stands for."""
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not filled yet
                content = None
            yield self.value(content)
        yield self.value(function.__defaults__)
        yield self.value(function.__kwdefaults__)
        yield self.value(getattr(function, "__wrapped__", None))

    def _global(self, value: Any, mentioned: set[str]) -> Json:
        if isinstance(value, ModuleType):
            own = is_model_file(getattr(value, "__file__", None) or "<none>", self._homes)
            held = vars(value) if own else {}
            return ["module", value.__name__, *([n, self.value(held[n])] for n in sorted(mentioned & held.keys()))]
        ours = isinstance(value, (type, FunctionType, nn.Module, Tensor)) or _package(type(value)) not in _TORCH
        return self._attempt(lambda: self.value(value), not ours) or ["object", _name(type(value))]

    def _attempt(self, describe: Callable[[], Json], forgiven: bool) -> Json:
        """Describe what may be left out where it cannot be described; nothing is remembered of such a try."""
        before = len(self._seen), dict(self._classes), set(self._names), set(self._known)
        try:
            return describe()
        except _OpenError:
            if not forgiven:
                raise
            self._seen = {i: n for i, n in self._seen.items() if n < before[0]}
            self._classes, self._names, self._known = before[1:]
            return None

    def _note_class(self, kind: type) -> None:
        if kind in self._known:
            return
        self._known.add(kind)
        own = [base for base in kind.__mro__ if self._is_own(base)]
        self._classes.update(dict.fromkeys(own))
        for base in kind.__mro__ if own else ():
            if base not in own and _package(base) not in _TORCH and _package(base) not in sys.stdlib_module_names:
                functions = [f for f in vars(base).values() if isinstance(f, FunctionType)]
                self._names.update(name for f in functions for name in _mentioned(f.__code__))

    def _is_own(self, kind: type | FunctionType) -> bool:
        file = getattr(sys.modules.get(kind.__module__ or ""), "__file__", None)
        return is_model_file(file or "<none>", self._homes)

    def _methods(self) -> Iterator[Json]:
        """Describe what the model's classes hold under names that its code mentions, until nothing new is mentioned."""
        done: set[tuple[type, str]] = set()
        while True:
            waiting = [
                (kind, name)
                for kind in self._classes
                for name in sorted(vars(kind))
                if (kind, name) not in done and (name in self._names or _is_implicit(name))
            ]
            if not waiting:
                return
            for kind, name in waiting:
                done.add((kind, name))
                yield [_name(kind), name, self.value(vars(kind)[name])]


def _is_implicit(name: str) -> bool:
    """Tell whether Python calls a method without its name being mentioned."""
    dunder = name.startswith("__") and name.endswith("__")
    return name == "forward" or (dunder and name not in _NEVER_TRACED and name not in _OF_ANY_CLASS)


_OF_ANY_CLASS = frozenset({*vars(type("_", (), {"__annotations__": {}})), "__static_attributes__", "__firstlineno__",
                           "__annotate__", "__annotate_func__", "__annotations_cache__", "__parameters__",
                           "__orig_bases__", "__slots__", "__dataclass_fields__", "__dataclass_params__",
                           "__match_args__", "__abstractmethods__"})  # fmt: skip


def _mentioned(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _mentioned(constant)
        elif isinstance(constant, str):
            yield constant  # getattr(self, "name")


def _code_digest(code: CodeType) -> str:
    constants = [_code_digest(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return sha256(repr([code.co_code, code.co_names, constants]).encode()).hexdigest()


def _slots(kind: type) -> tuple[str, ...]:
    """Name the fields that a class keeps in slots."""
    found = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    names = [n for slots in found for n in ((slots,) if isinstance(slots, str) else slots)]
    return tuple(n for n in names if n not in ("__dict__", "__weakref__"))


def _dict_of(value: Any) -> dict[str, Any]:
    return getattr(value, "__dict__", None) or {}


def _shown(item: object) -> tuple[str, str]:
    """Return an order for the items of a set that is the same in every process."""
    return _name(type(item)), str(
        getattr(item, "__qualname__", item if isinstance(item, (*_PLAIN, float, tuple)) else "")
    )


def _package(kind: type | FunctionType) -> str:
    return (kind.__module__ or "").partition(".")[0]


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
