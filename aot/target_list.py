"""Several targets in one call: how they are named, and the settings that each of them means.

Never imports torch.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precast.aot.settings import Settings, resolve_settings
from precast.aot.target import Target, named_target
from precast.cache.canonical import Json
from precast.errors import ConfigValueError, NoGpuError, UsageError

__all__ = [
    "TARGET_FIELD",
    "Wanted",
    "one_of_several",
    "settings_by_target",
    "target_names",
    "wanted_targets",
    "with_target",
]

TARGET_FIELD = "{target}"
"""What stands for a target's name in the name of a file or tag."""

_SETTING, _VARIABLE = "target", "PRECAST_TARGET"
_WHY_ONE = "this command looks at one target: this machine's where it is among them, else the first"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One target to compile for.

    Attributes:
        names: How it was named; more than one name where several mean the same target.
        target: The target.
        settings: The settings for it.
    """

    names: tuple[str, ...]
    target: Target
    settings: Settings


def target_names(value: object) -> tuple[str, ...]:
    """Read what names targets: one name, a list of them, or names between commas. A name counts once.

    A file's path may hold commas, so what is the path of a file is one name.
    """
    if isinstance(value, str):
        whole = "," not in value or Path(value).expanduser().is_file()
        words = [value] if whole else [word.strip() for word in value.split(",")]
    else:
        words = [w for v in value for w in target_names(v)] if isinstance(value, (list, tuple)) else [value]  # type: ignore[list-item]
    return tuple(dict.fromkeys(w for w in words if w != "")) or ("",)


def settings_by_target(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Mapping[str, object],
    *,
    detect_target: Callable[[], str] | None = None,
) -> tuple[Settings, ...]:
    """Resolve settings as `resolve_settings` does, once for each target that flags, environment or file name.

    Raises:
        ConfigKeyError: A name that is no setting.
        ConfigValueError: A value of the wrong type or out of range.
    """
    given: list[tuple[Mapping[str, Any], str]] = [(flags, _SETTING), (environ, _VARIABLE), (file, _SETTING)]
    at = next((i for i, (values, name) in enumerate(given) if values.get(name) is not None), None)
    if at is None:
        return (resolve_settings(flags, environ, file, detect_target=detect_target),)
    values, name = given[at]
    found = []
    for target in target_names(values[name]):
        sources: list[Any] = [dict(v) for v, _ in given]
        for source, field in zip(sources[at + 1 :], (n for _, n in given[at + 1 :]), strict=True):
            source.pop(field, None)  # overruled, and it may be a list
        sources[at][name] = target
        found.append(resolve_settings(*sources, detect_target=detect_target))
    return tuple(found)


def one_of_several(found: Sequence[Settings], environ: Mapping[str, str]) -> Settings:
    """Return the settings for a command that looks at one target; where there was a choice, its record says so."""
    if len(found) == 1:
        return found[0]
    here = _here(environ)
    chosen = next((s for s in found if named_target(s.target, environ).to_json() == here), found[0])
    names: list[Json] = [s.target for s in found]
    record = tuple(replace(r, lowered_from=names, reason=_WHY_ONE) if r.name == _SETTING else r for r in chosen.record)
    return replace(chosen, record=record)


def wanted_targets(found: Sequence[Settings], environ: Mapping[str, str] | None = None) -> tuple[Wanted, ...]:
    """Return the targets to compile for; names that mean equal targets become one.

    Raises:
        ConfigValueError: A description cannot be read; or GPUs of an architecture differ.
        NoGpuError: A target is `cuda`, and there is no GPU.
    """
    environ = os.environ if environ is None else environ
    wanted: dict[str, Wanted] = {}
    for settings in found:
        target = named_target(settings.target, environ)
        key = repr(target.to_json())
        first = wanted.get(key)
        names = (*first.names, settings.target) if first else (settings.target,)
        wanted[key] = Wanted(names, first.target if first else target, first.settings if first else settings)
    return tuple(wanted.values())


def with_target(what: str, pattern: str, names: Sequence[str]) -> tuple[str, ...]:
    """Put each target's name into a pattern; of the path of a description, the last part without its suffix.

    Args:
        what: What the pattern names, for the message, such as `--output`.
        pattern: A text with `{target}` in it, if there are several targets.
        names: The targets, by name.

    Raises:
        UsageError: Two targets would have one name.
    """
    made = tuple(pattern.replace(TARGET_FIELD, Path(name).name.removesuffix(".json")) for name in names)
    if len(set(made)) < len(made):
        raise UsageError(
            f"{what} {pattern} is one name for {len(made)} targets",
            f"they are {', '.join(names)}",
            f"write {TARGET_FIELD} where the target's name goes, and give two descriptions two names",
        )
    return made


def _here(environ: Mapping[str, str]) -> object:
    try:
        return named_target("auto", environ).to_json()
    except (NoGpuError, ConfigValueError):
        return None
