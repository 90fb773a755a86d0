"""Settings: one frozen value for each choice, and the record of where it came from and what lowered it.

Order: flag, environment, file, level, default. Only what changes generated code goes into the key; every field is
either in `KEY_FIELDS` or in `EXCLUDED` with a reason, and a test holds that.
"""

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from precast.aot.levels import DEFAULT_LEVEL, LEVELS, RULES
from precast.aot.target import is_target_name, unknown_target
from precast.cache.manifest import SettingRecord
from precast.errors import ConfigKeyError, ConfigValueError

__all__ = ["EXCLUDED", "KEY_FIELDS", "SETTING_NAMES", "Settings", "resolve_settings", "settle_settings"]

OPEN = ""  # left for the level to fill
_PAYLOADS = ("auto", "aoti", "inductor")
_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")

KEY_FIELDS = (
    "payload",
    "max_num_batched_tokens",
    "compile_range_endpoints",
    "compile_sizes",
    "splitting_ops",
    "inductor_config",
)

EXCLUDED: Mapping[str, str] = MappingProxyType(
    {
        "optimization_level": "what the level decides is in the key, the level itself is not",
        "compile": "without it there is no entry",
        "cudagraph_mode": "graphs are captured from the same code whatever the mode",
        "target": "the target's own description is a compiler factor",
        "jobs": "how many processes compile does not change what they make",
        "record": "where a value came from does not change it",
    }
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a user can choose about compilation.

    Attributes:
        optimization_level: 0 to 3; fills what is left open.
        compile: Whether pieces are compiled at all; open for the level to fill, which says no only at level 0.
        cudagraph_mode: Which CUDA graphs a serving process captures; open for the level to fill.
        payload: `aoti` or `inductor`; `auto` takes the target's default.
        target: `cpu`, `cuda`, a described GPU such as `h200`, the path of a description, an architecture such as
            `x86-64-v3` or `sm_90`, or `auto` for this machine.
        max_num_batched_tokens: Largest token count of a step.
        compile_range_endpoints: Token counts at which a compile range ends, besides the largest.
        compile_sizes: Token counts that get code of their own, with static shapes.
        splitting_ops: Ops at which the graph is cut; None takes the spec's.
        inductor_config: Inductor options, by dotted name.
        jobs: Compile processes at a time; 0 takes one a usable core.
        record: Where each value came from, and what lowered it.
    """

    optimization_level: int = DEFAULT_LEVEL
    compile: bool | None = None
    cudagraph_mode: str = OPEN
    payload: str = "auto"
    target: str = "auto"
    max_num_batched_tokens: int = 8192
    compile_range_endpoints: tuple[int, ...] = ()
    compile_sizes: tuple[int, ...] = ()
    splitting_ops: tuple[str, ...] | None = None
    inductor_config: Mapping[str, Any] = field(default_factory=dict)
    jobs: int = 0
    record: tuple[SettingRecord, ...] = field(default=(), compare=False)

    def key_values(self) -> dict[str, Any]:
        """Return the fields that go into the key, in the form in which they do; order counts nowhere (W6)."""
        return {
            "payload": self.payload,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "compile_range_endpoints": sorted(set(self.compile_range_endpoints)),
            "compile_sizes": sorted(set(self.compile_sizes)),
            "splitting_ops": None if self.splitting_ops is None else sorted(set(self.splitting_ops)),
            "inductor_config": dict(sorted(self.inductor_config.items())),
        }

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Return the compile ranges, inclusive, then the single sizes (vllm-behaviour.md step 5)."""
        ends = sorted({*self.compile_range_endpoints, self.max_num_batched_tokens})
        starts = [1, *(e + 1 for e in ends[:-1])]
        return tuple(
            dict.fromkeys((*zip(starts, ends, strict=True), *((s, s) for s in sorted(set(self.compile_sizes)))))
        )


SETTING_NAMES = tuple(f.name for f in dataclasses.fields(Settings) if f.name != "record")


def resolve_settings(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Mapping[str, object] | None = None,
    *,
    detect_target: Callable[[], str] | None = None,
) -> Settings:
    """Merge what the user gave into one record, then fill by level and lower by rule.

    Args:
        flags: Values given on the command line, or by a caller; by field name.
        environ: Environment; `PRECAST_<FIELD>` gives a field.
        file: Values of a configuration file, by field name.
        detect_target: Returns `cpu` or `cuda` for a target left at `auto`; by default this machine is asked.

    Raises:
        ConfigKeyError: A name that is no setting.
        ConfigValueError: A value of the wrong type or out of range.
    """
    found: dict[str, tuple[Any, str]] = {}
    for origin, values in (
        ("file", file or {}),
        ("environment", _from_environment(environ or {})),
        ("flag", flags or {}),
    ):
        for name, value in values.items():
            _require_known(name, origin)
            found[name] = (_parse(name, value), origin)
    level, _ = found.get("optimization_level", (DEFAULT_LEVEL, "default"))
    for name, value in LEVELS[level].items():
        found.setdefault(name, (value, "level"))
    values = {n: found[n][0] if n in found else _default(n) for n in SETTING_NAMES}
    _check_bounds(values)
    if values["target"] == "auto":
        values["target"] = (detect_target or _detect)()
    return _lowered(values, {n: found[n][1] if n in found else "default" for n in SETTING_NAMES})


def settle_settings(settings: Settings | None, environ: Mapping[str, str]) -> Settings:
    """Return settings that are resolved.

    A caller's own settings are complete: the environment does not change them, and the level fills only what was left
    open. With none given, the environment decides.
    """
    if settings is None:
        return resolve_settings({}, environ)
    if settings.record:
        return settings
    given = {n: v for n in SETTING_NAMES if (v := getattr(settings, n)) not in (OPEN, None)}
    return resolve_settings(given, {})


def _lowered(values: dict[str, Any], origins: Mapping[str, str]) -> Settings:
    lowered: dict[str, tuple[Any, str]] = {}
    for rule in RULES:
        new = rule.lower(values[rule.setting], values)
        if new is not None:
            first = lowered[rule.setting][0] if rule.setting in lowered else values[rule.setting]
            lowered[rule.setting] = (first, rule.reason)
            values[rule.setting] = new
    record = tuple(
        SettingRecord(n, _plain(values[n]), origins[n], _plain(lowered[n][0]) if n in lowered else None,
                      lowered[n][1] if n in lowered else "")
        for n in SETTING_NAMES
    )  # fmt: skip
    return Settings(**values, record=record)


def _check_bounds(values: Mapping[str, Any]) -> None:
    """Refuse ranges and sizes that no step can reach."""
    largest = values["max_num_batched_tokens"]
    for name in ("compile_range_endpoints", "compile_sizes"):
        beyond = [n for n in values[name] if n > largest]
        if beyond:
            raise ConfigValueError(
                f"`{name}` holds {beyond[0]}",
                f"a step has at most {largest} tokens (`max_num_batched_tokens`)",
                f"leave out {beyond[0]}, or raise max_num_batched_tokens",
            )


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {n: environ[v] for n in SETTING_NAMES if (v := f"PRECAST_{n.upper()}") in environ}


def _require_known(name: str, origin: str) -> None:
    if name in SETTING_NAMES:
        return
    near = difflib.get_close_matches(name, SETTING_NAMES, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"settings: {', '.join(SETTING_NAMES)}"
    raise ConfigKeyError(f"unknown setting `{name}`", f"given by {origin}", hint)


def _default(name: str) -> Any:
    spec = next(f for f in dataclasses.fields(Settings) if f.name == name)
    return spec.default if spec.default is not dataclasses.MISSING else {}


def _parse(name: str, value: Any) -> Any:
    match name:
        case "optimization_level":
            return _integer(name, value, low=0, high=max(LEVELS))
        case "max_num_batched_tokens":
            return _integer(name, value, low=1)
        case "jobs":
            return _integer(name, value, low=0)
        case "compile_range_endpoints" | "compile_sizes":
            return tuple(sorted({_integer(name, v, low=1) for v in _items(value)}))
        case "splitting_ops":
            return tuple(dict.fromkeys(str(v) for v in _items(value)))
        case "payload":
            return _choice(name, value, _PAYLOADS)
        case "target":
            return _target(value)
        case "cudagraph_mode":
            return _choice(name, str(value).upper(), _MODES)
        case "compile":
            return _choice(name, str(value).lower(), ("true", "false")) == "true"
    if not isinstance(value, Mapping):
        raise ConfigValueError(f"`{name}` must be a table of options", f"got {value!r}", "give KEY=VALUE pairs")
    return dict(value)


def _items(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [v.strip() for v in value.split(",") if v.strip()]
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]


def _integer(name: str, value: Any, *, low: int, high: int | None = None) -> int:
    try:
        number = int(str(value)) if not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None or number < low or (high is not None and number > high):
        wanted = f"a whole number from {low}" + (f" to {high}" if high is not None else "")
        raise ConfigValueError(f"`{name}` must be {wanted}", f"got {value!r}", f"give {wanted}")
    return number


def _choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ConfigValueError(f"`{name}` cannot be {value!r}", f"choices: {', '.join(choices)}", "choose one of these")
    return str(value)


def _target(value: Any) -> str:
    if not isinstance(value, str) or not is_target_name(value):
        raise unknown_target(value)
    return value


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def _detect() -> str:
    from precast.aot.target import detect_device

    return detect_device(os.environ)
