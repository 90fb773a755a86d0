"""Optimization levels and lowering rules, as two tables (seed step 1, vllm-behaviour.md 1.1 and 1.3).

A level fills only what the user left open. A rule lowers a value that cannot hold, and leaves a record of from what, to
what and why.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from precast.aot.target import device_of

__all__ = ["DEFAULT_LEVEL", "LEVELS", "RULES", "Rule"]

DEFAULT_LEVEL = 2

# O3 equals O2, as in the system that these levels come from.
LEVELS: Mapping[int, Mapping[str, Any]] = MappingProxyType(
    {
        0: MappingProxyType({"compile": False, "cudagraph_mode": "NONE"}),
        1: MappingProxyType({"compile": True, "cudagraph_mode": "PIECEWISE"}),
        2: MappingProxyType({"compile": True, "cudagraph_mode": "FULL_AND_PIECEWISE"}),
        3: MappingProxyType({"compile": True, "cudagraph_mode": "FULL_AND_PIECEWISE"}),
    }
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One way in which a setting is lowered.

    Attributes:
        setting: Name of the field.
        lower: Returns the new value for (current value, all values), or None when the rule does not apply.
        reason: Why, in one line.
    """

    setting: str
    lower: Callable[[Any, Mapping[str, Any]], Any]
    reason: str


def _payload(value: Any, _: Mapping[str, Any]) -> Any:
    return "aoti" if value == "auto" else None


def _graphs_on_cpu(value: Any, values: Mapping[str, Any]) -> Any:
    return "NONE" if device_of(values["target"]) == "cpu" and value != "NONE" else None


def _piecewise_without_compile(value: Any, values: Mapping[str, Any]) -> Any:
    if values["compile"]:
        return None
    return {"PIECEWISE": "NONE", "FULL_AND_PIECEWISE": "FULL_DECODE_ONLY"}.get(value)


def _piecewise_without_split(value: Any, values: Mapping[str, Any]) -> Any:
    if values["splitting_ops"] != ():
        return None
    return {"PIECEWISE": "NONE", "FULL_AND_PIECEWISE": "FULL"}.get(value)


# In order of effect; a later rule sees what an earlier one made.
RULES: tuple[Rule, ...] = (
    Rule("payload", _payload, "aoti loads in milliseconds, with torch alone"),
    Rule("cudagraph_mode", _graphs_on_cpu, "a CPU has no CUDA graphs"),
    Rule("cudagraph_mode", _piecewise_without_compile, "piecewise graphs need compiled pieces"),
    Rule("cudagraph_mode", _piecewise_without_split, "with no splitting ops the whole graph is one piece"),
)
