"""Values of settings: what a flag, a variable or a file may say for each, and in which words it is refused."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from precast.aot.levels import LEVELS
from precast.aot.target import is_target_name, unknown_target
from precast.cache.canonical import canonical_json
from precast.capture.modes import CUDAGraphMode
from precast.capture.ranges import CAPTURE_SIZES
from precast.errors import ConfigValueError

__all__ = ["parse_value"]


def parse_value(name: str, value: Any) -> Any:
    """Read the value of a setting, given as text or as itself.

    Args:
        name: The field of the settings.
        value: What was given.

    Raises:
        ConfigValueError: The value is of the wrong type or out of range.
    """
    return _PARSERS[name](name, value)


def _integer(name: str, value: Any, *, low: int, high: int | None = None) -> int:
    try:
        number = int(str(value)) if not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None or number < low or (high is not None and number > high):
        wanted = f"a whole number from {low}" + (f" to {high}" if high is not None else "")
        raise ConfigValueError(f"`{name}` must be {wanted}", f"got {value!r}", f"give {wanted}")
    return number


def _sizes(name: str, value: Any) -> tuple[int, ...]:
    return tuple(sorted({_integer(name, v, low=1) for v in _items(value)}))


def _some_sizes(name: str, value: Any) -> tuple[int, ...]:
    sizes = _sizes(name, value)
    if not sizes:
        raise ConfigValueError(f"`{name}` is empty", "a graph needs a size", "use cudagraph_mode NONE to capture none")
    return sizes


def _sizes_or_captured(name: str, value: Any) -> tuple[int | str, ...]:
    items = _items(value)
    numbers = _sizes(name, [item for item in items if item != CAPTURE_SIZES])
    return (*numbers, CAPTURE_SIZES) if CAPTURE_SIZES in items else numbers


def _tiers(name: str, value: Any) -> tuple[tuple[int, int], ...]:
    found = []
    for item in _items(value):
        pair = item.split(":") if isinstance(item, str) else item
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            why, hint = f"got {item!r}", "give the most requests and their drafts, such as 8:3,32:1"
            raise ConfigValueError(f"`{name}` must be pairs of numbers", why, hint)
        found.append((_integer(name, pair[0], low=1), _integer(name, pair[1], low=0)))
    return tuple(sorted(found))


def _names(_: str, value: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(v) for v in _items(value)))


def _items(value: Any) -> list[Any]:
    if isinstance(value, str):
        return [v.strip() for v in value.split(",") if v.strip()]
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]


def _choice(name: str, value: Any, *, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ConfigValueError(f"`{name}` cannot be {value!r}", f"choices: {', '.join(choices)}", "choose one of these")
    return str(value)


def _mode(name: str, value: Any) -> str:
    return _choice(name, str(value).upper(), choices=tuple(CUDAGraphMode.__members__))


def _yes_or_no(name: str, value: Any) -> bool:
    return _choice(name, str(value).lower(), choices=("true", "false")) == "true"


def _target(_: str, value: Any) -> str:
    if not isinstance(value, str) or not is_target_name(value):
        raise unknown_target(value)
    return value


def _table(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigValueError(f"`{name}` must be a table of options", f"got {value!r}", "give KEY=VALUE pairs")
    try:
        canonical_json(dict(value))
    except ValueError as error:
        what = f"`{name}` holds what cannot be part of a key"
        raise ConfigValueError(what, str(error), "give numbers, texts, true, false, or lists of them") from error
    return dict(value)


_PARSERS: Mapping[str, Callable[[str, Any], Any]] = {
    "optimization_level": partial(_integer, low=0, high=max(LEVELS)),
    "compile": _yes_or_no,
    "enforce_eager": _yes_or_no,
    "payload": partial(_choice, choices=("auto", "aoti", "inductor")),
    "tune": partial(_choice, choices=("static", "keep")),
    "target": _target,
    "max_num_batched_tokens": partial(_integer, low=1),
    "compile_range_endpoints": _sizes,
    "compile_sizes": _sizes_or_captured,
    "splitting_ops": _names,
    "inductor_config": _table,
    "jobs": partial(_integer, low=0),
    "cudagraph_mode": _mode,
    "cudagraph_capture_sizes": _some_sizes,
    "max_cudagraph_capture_size": partial(_integer, low=1),
    "interactivity": _yes_or_no,
    "max_num_seqs": partial(_integer, low=1),
    "drafts": partial(_integer, low=0),
    "draft_schedule": _tiers,
    "adaptive_verification": _yes_or_no,
    "max_loras": partial(_integer, low=0),
    "specialize_lora": _yes_or_no,
    "specialize_active_lora": _yes_or_no,
    "num_ubatches": partial(_integer, low=1),
    "ubatch_decode_tokens": partial(_integer, low=1),
}
