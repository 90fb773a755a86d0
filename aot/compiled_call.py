"""Calls of an instance that is compiled: each checks that the artifact may serve it, and none traces."""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from precast.aot.binding import bind_forward, bind_state
from precast.aot.first_call import Place, obtain
from precast.aot.instance import InstanceReference
from precast.aot.load import CompiledModel
from precast.aot.progress import Progress, Silent
from precast.aot.settings import Settings
from precast.aot.watched import Watched
from precast.errors import UsageError

__all__ = ["CompiledCall", "compile_call"]


class CompiledCall:
    """The compiled forward of one instance; it takes the module and the tensors of a call.

    Args:
        model: The loaded artifact, bound to the module.
        module: The module.

    Attributes:
        model: The artifact as it is bound now.
        rebinds: How often it was bound again because the module holds other tensors.
    """

    __slots__ = ("_bound", "_device", "_lock", "_paths", "_training", "model", "rebinds")

    def __init__(self, model: CompiledModel, module: nn.Module) -> None:
        assert model.bound is not None
        self.model = model
        self.rebinds = 0
        self._device = model.bound.device
        self._paths = tuple(i.source for i in model.bound.pieces.plan.inputs if i.kind == "state")
        self._training = module.training
        self._lock = threading.Lock()
        self._bound: tuple[Watched, Callable[..., Any]] = (Watched(module, self._paths), model)

    def __call__(self, module: nn.Module, *tensors: Tensor) -> Any:
        """Run the compiled forward.

        Raises:
            TypeError: A tensor has another dtype, rank or device than the artifact was compiled for, or is none.
            ValueError: A tensor has another static size, is not contiguous, or there are more tokens than the ranges.
            UsageError: The module is in another mode than at its first call, or autocast is on.
            WeightError: A tensor of the module was replaced by one that the artifact cannot use.
        """
        watched, run = self._bound
        if not watched.unchanged():
            run = self._bind_again(module)
        if module.training is not self._training:
            raise _other_mode(module)
        require_no_autocast(self._device)
        with torch.no_grad():
            return run(*tensors)

    def _bind_again(self, module: nn.Module) -> Callable[..., Any]:
        """Bind to the tensors that the module holds now: values must never be stale."""
        with self._lock:
            watched, run = self._bound
            if watched.unchanged():  # another thread did it
                return run
            assert self.model.bound is not None
            watched = Watched(module, self._paths)
            bound = bind_state(self.model.bound.pieces, module)
            self.model = CompiledModel(self.model.manifest, bind_forward(bound), self.model.degraded, bound)
            self._bound = (watched, self.model)
            self.rebinds += 1
            return self.model


def compile_call(
    reference: InstanceReference, settings: Settings, place: Place, progress: Progress | None = None
) -> CompiledCall:
    """Obtain the artifact of an instance, and return what its calls run.

    Raises:
        PrecastError: As `obtain`.
        UsageError: Autocast is on.
    """
    module = reference.instance
    require_no_autocast(next((t.device.type for t in reference.call.tensors.values()), "cpu"))
    progress = progress or Silent()
    if module.training and torch.is_grad_enabled():
        progress.warning(
            "decorator.no_gradients",
            f"`{reference.text}` is called in training mode with gradients on, and compiled results carry none",
            "call .eval() on it, or call it under torch.inference_mode()",
        )
    with torch.inference_mode(mode=False):  # a trace must not depend on where the first call comes from
        model = obtain(reference, settings, place, progress)
    return CompiledCall(model, module)


def require_no_autocast(device: str) -> None:
    """Refuse a call under autocast: what it changes about an op is no part of a graph."""
    if torch.is_autocast_enabled(device):
        raise UsageError(
            "a compiled module is called under autocast",
            "the artifact computes in the dtypes that forward names, so autocast would be ignored",
            "leave autocast around this module, or give the module the dtype",
        )


def _other_mode(module: nn.Module) -> UsageError:
    now, then = ("training", "evaluation") if module.training else ("evaluation", "training")
    return UsageError(
        f"`{type(module).__qualname__}` is in {now} mode, and was compiled in {then} mode",
        "the mode of the first call is baked into the artifact",
        "set it before the first call, or make another instance for the other mode",
    )
