"""The opt-in decorator: a class whose instances run compiled code from their second call on, and never trace again.

    @support_torch_compile(splitting_ops=("shop::attention",))
    class Decoder(nn.Module):
        def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor: ...

The first call of an instance finds the artifact of its key, or compiles and publishes it (seed step 2). All later calls
go to the loaded artifact: guards are dropped, and what it cannot serve is an error. The decorator replaces `forward` of
the class and of its subclasses and nothing else, so hooks of the module run as always, around compiled code.
"""

import functools
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeVar, overload

import torch
from torch import nn

from precast.aot.compiled_call import CompiledCall, compile_call
from precast.aot.covered import STATE, Covered, covered
from precast.aot.dynamic_dims import DimsGiven, explicit_dims, inferred_dims
from precast.aot.first_call import ONE_AT_A_TIME, Place
from precast.aot.forward_call import ForwardCall
from precast.aot.instance import refer_to
from precast.aot.load import CompiledModel
from precast.aot.progress import Progress
from precast.aot.settings import Settings, settle_settings
from precast.cache.options import StoreOptions
from precast.errors import ConfigValueError

__all__ = ["compiled_model", "ignore_torch_compile", "support_torch_compile"]

C = TypeVar("C", bound=type[nn.Module])

_DECORATION = "_precast_decoration"  # of a class: how its instances are compiled; inherited
_IGNORED = "_precast_ignored"  # of a class: whether they are not, all the same; inherited


@dataclass(frozen=True, slots=True)
class Decoration:
    """How the instances of a class are compiled; see `support_torch_compile`."""

    dynamic_arg_dims: DimsGiven | None
    enable_if: Callable[[Any], bool] | None
    splitting_ops: tuple[str, ...]
    settings: Settings | Callable[[Any], Settings | None] | None
    place: Place
    progress: Progress | None

    def dims(self, forward: Callable[..., Any]) -> dict[str, tuple[int, ...]]:
        """Return the dynamic dims of a forward's parameters.

        Raises:
            ConfigValueError: None are found, or those that the user listed are wrong.
        """
        if self.dynamic_arg_dims is not None:
            return explicit_dims(self.dynamic_arg_dims, forward)
        found = inferred_dims(forward)
        if not found:
            raise ConfigValueError(
                f"`{forward.__qualname__}` has no dynamic dims",
                "none of its parameters is annotated as a tensor",
                'annotate them, or give dynamic_arg_dims, such as {"x": 0}',
            )
        return found

    def settled(self, instance: nn.Module, device: str) -> Settings:
        """Return the settings for an instance; a target that is left open is the device that it runs on."""
        given = self.settings(instance) if callable(self.settings) else self.settings
        return settle_settings(given, os.environ, detect_target=lambda: device)


@overload
def support_torch_compile(cls: C, /) -> C: ...


@overload
def support_torch_compile(
    *,
    dynamic_arg_dims: DimsGiven | None = None,
    enable_if: Callable[[Any], bool] | None = None,
    splitting_ops: Sequence[str] = (),
    settings: Settings | Callable[[Any], Settings | None] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    options: StoreOptions | None = None,
    progress: Progress | None = None,
) -> Callable[[C], C]: ...


def support_torch_compile(
    cls: C | None = None,
    /,
    *,
    dynamic_arg_dims: DimsGiven | None = None,
    enable_if: Callable[[Any], bool] | None = None,
    splitting_ops: Sequence[str] = (),
    settings: Settings | Callable[[Any], Settings | None] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    options: StoreOptions | None = None,
    progress: Progress | None = None,
) -> C | Callable[[C], C]:
    """Compile what the instances of a module class do, ahead of time, at the first call of each.

    A subclass is compiled like its base, whatever its own forward is; decorate it again to change how. It is meant for
    inference: results carry no gradients, and an instance that was compiled in one mode (`train` or `eval`) refuses to
    run in the other. Numbers and other attributes that forward reads are those of the first call: nothing looks at them
    again. Tensors are looked at by every call, and bound anew where they were replaced. A module that is traced as part
    of another one is traced as if it were not decorated.

    Args:
        cls: The class, where the decorator is written without parentheses.
        dynamic_arg_dims: The dims that are the token count: for each parameter of forward a dim, a list of dims, or a
            mapping of dims to one shape name; negative dims count from the end. By default dim 0 of every parameter
            that is annotated as a tensor or an optional tensor. All other sizes are those of the first call.
        enable_if: Is called with the instance at its first call; where it says no, the instance runs eagerly for good.
        splitting_ops: Qualified names of the ops at which the graph is cut, such as `precast::paged_attention`; those
            of the settings go before.
        settings: Settings, or a function of the instance that returns them; None takes the environment's. At level 0
            the instance runs eagerly, and so it does with `TORCH_COMPILE_DISABLE=1`.
        cache_dir: The cache root; by default `PRECAST_CACHE_DIR`, then the user's cache folder. With
            `PRECAST_DISABLE_CACHE=1` no store is used.
        options: How the store is opened; by default as the environment says. A read-only store must have the entry.
        progress: Is told what goes on in a first call.

    Raises:
        ConfigValueError: No dim is dynamic, or `dynamic_arg_dims` does not fit forward.
    """
    ops = tuple(splitting_ops)
    decoration = Decoration(dynamic_arg_dims, enable_if, ops, settings, Place(cache_dir, options), progress)

    def decorate(kind: C) -> C:
        given: object = kind
        if not (isinstance(given, type) and issubclass(given, nn.Module)):
            raise ConfigValueError(f"{kind!r} cannot be decorated", "it is no class of modules", "decorate a class")
        decoration.dims(covered(kind.forward))  # so that a mistake is told where it was made
        setattr(kind, _DECORATION, decoration)
        setattr(kind, _IGNORED, False)
        _cover(kind)
        _cover_subclasses_of(kind)
        return kind

    return decorate if cls is None else decorate(cls)


def ignore_torch_compile(cls: C) -> C:
    """Let the instances of a class run eagerly, though a base of it is decorated; so do those of its subclasses.

    A subclass that is decorated itself is compiled again.
    """
    setattr(cls, _IGNORED, True)
    return cls


def compiled_model(instance: nn.Module) -> CompiledModel | None:
    """Return the artifact that an instance runs, for what works on loaded models, such as a graph manager.

    Returns:
        The artifact; None before the first call, and where the instance runs eagerly.
    """
    state = _state_of(instance)
    return state.call.model if state.call is not None else None


class _State:
    """What the first call of one instance decided. A copy of the instance, and a pickle, start without it."""

    __slots__ = ("__weakref__", "call", "decided", "entrance", "forward", "owner")

    def __init__(self, owner: nn.Module) -> None:
        self.owner = weakref.ref(owner)
        self.decided = False
        self.forward: Callable[..., Any] | None = None  # the one that is compiled
        self.entrance: Callable[..., Any] | None = None  # None to run eagerly
        self.call: CompiledCall | None = None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return (NoneType, ())


def _state_of(instance: nn.Module) -> _State:
    fields = vars(instance)
    state = fields.get(STATE)
    if state is None or state.owner() is not instance:  # a copy took its original's along
        with ONE_AT_A_TIME:
            state = fields.get(STATE)
            if state is None or state.owner() is not instance:
                state = fields[STATE] = _State(instance)
    made: _State = state
    return made


def _cover(kind: type[nn.Module]) -> None:
    """Put a function that decides in the place of a class's forward, unless it is one already."""
    forward = kind.forward
    if covered(forward) is not forward:
        return

    @functools.wraps(forward)
    def decided_forward(self: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return forward(self, *args, **kwargs)
        state = _state_of(self)
        if not state.decided:
            _decide(self, state, args, kwargs)
        if state.entrance is None or state.forward is not forward:  # eager, or called by a subclass's own forward
            return forward(self, *args, **kwargs)
        return state.entrance(self, *args, **kwargs)

    Covered(decided_forward, forward).note()
    kind.forward = decided_forward


def _cover_subclasses_of(kind: type[nn.Module]) -> None:
    """Cover subclasses that there are, and those that will be: a forward of their own is compiled too."""
    waiting = kind.__subclasses__()
    while waiting:
        found = waiting.pop()
        _cover(found)
        waiting += found.__subclasses__()
    made = vars(kind).get("__init_subclass__")
    if made is not None and made.__func__.__module__ == __name__:
        return

    def __init_subclass__(cls: type[nn.Module], /, **kwargs: Any) -> None:  # noqa: N807 - it becomes that method
        if made is None:
            super(kind, cls).__init_subclass__(**kwargs)
        else:
            made.__func__(cls, **kwargs)
        _cover(cls)

    kind.__init_subclass__ = classmethod(__init_subclass__)  # type: ignore[assignment]


def _decide(instance: nn.Module, state: _State, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Decide once how an instance runs; where that fails, the next call tries again."""
    with ONE_AT_A_TIME:
        if state.decided:
            return
        kind = type(instance)
        decoration: Decoration = getattr(kind, _DECORATION)
        forward = covered(kind.forward)
        if _is_wanted(instance, decoration):
            call = ForwardCall.of(forward, instance, *args, **kwargs)
            device = next((t.device.type for t in call.tensors.values()), "cpu")
            settings = decoration.settled(instance, device)
            if settings.compile:
                reference = refer_to(instance, call, decoration.dims(forward), decoration.splitting_ops)
                state.call = compile_call(reference, settings, decoration.place, decoration.progress)
                state.entrance = call.entrance(state.call)
        state.forward = forward
        state.decided = True


def _is_wanted(instance: nn.Module, decoration: Decoration) -> bool:
    if getattr(type(instance), _IGNORED) or os.environ.get("TORCH_COMPILE_DISABLE") == "1":
        return False
    return decoration.enable_if is None or bool(decoration.enable_if(instance))
