"""A request: everything that is known about a compile before the model is imported, as key factors.

Its digest names candidate entries (ccache's direct mode): a lookup needs neither torch nor a trace.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precast.aot.code import own_sources
from precast.aot.node import system
from precast.aot.passes import pass_names, pass_source
from precast.aot.payloads import payload_kind
from precast.aot.settings import Settings
from precast.aot.spec import Json
from precast.aot.target import Target, named_target
from precast.cache.environment import environment_factors
from precast.cache.factors import Factor
from precast.cache.lookup import Request
from precast.cache.sources import distribution_content
from precast.errors import IncompatibleError

__all__ = ["CompileInput", "compile_input", "compiler_factors", "settings_factors"]


@dataclass(frozen=True, slots=True)
class CompileInput:
    """A compile, before anything is imported.

    Attributes:
        request: The factors known so far; all of them are part of the key too.
        target: What the code runs on.
        settings: The settings in force.
    """

    request: Request
    target: Target
    settings: Settings


def compile_input(
    model: Sequence[Factor],
    settings: Settings,
    environ: Mapping[str, str] | None = None,
    *,
    target: Target | None = None,
) -> CompileInput:
    """Form the request of a compile without importing torch.

    Args:
        model: What distinguishes the model: `ModelReference.factors`.
        settings: The settings in force; the target is no longer `auto`.
        environ: Environment; this process's by default.
        target: What the code runs on; by default what the settings name.

    Raises:
        NoGpuError: A CUDA target, and no GPU.
        IncompatibleError: torch is not installed.
    """
    environ = os.environ if environ is None else environ
    target = target or named_target(settings.target, environ)
    built = (*environment_factors(environ), *settings_factors(settings), *compiler_factors(settings, target))
    return CompileInput(Request((*built, *model)), target, settings)


def settings_factors(settings: Settings) -> tuple[Factor, ...]:
    """Return the settings that change generated code, one factor a field."""
    return tuple(Factor("config", f"settings.{name}", value) for name, value in settings.key_values().items())


def compiler_factors(settings: Settings, target: Target) -> tuple[Factor, ...]:
    """Return torch, Triton, the target, the payload's options and precast's own sources as factors."""
    kind = payload_kind(settings.payload)
    options: dict[str, Any] = {**kind.options(target), **settings.inductor_options()}
    factors = [
        Factor("compiler", "torch", _distribution("torch")),
        Factor("compiler", "target", target.to_json()),
        Factor("compiler", "payload", kind.name),
        Factor("compiler", "inductor_config", dict(sorted(options.items()))),
    ]
    if target.device == "cuda":
        factors.append(Factor("compiler", "triton", _distribution("triton")))
        factors.append(Factor("compiler", "system", system()))  # on a CPU the target says it
        factors += [Factor("compiler", f"pass:{name}", pass_source(name)) for name in pass_names(target)]
    if kind.name == "inductor":  # a pickle; an AOTInductor package does not depend on Python
        factors.append(Factor("compiler", "python", f"{sys.version_info.major}.{sys.version_info.minor}"))
    return (*factors, *own_sources())


def _distribution(name: str) -> dict[str, Json]:
    content = distribution_content(name)
    if content is None:
        raise IncompatibleError(f"`{name}` is not installed", "a key needs its version and content", f"install {name}")
    return {"version": content.version, "digest": content.digest}
