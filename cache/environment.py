"""The environment's part of the key: one factor for each variable that is set and may change generated code.

Values lose the folders of absolute paths, so that the same compiler in another place is the same value. A variable
whose name looks like that of a secret counts by the digest of its value.
"""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from types import MappingProxyType

from precast.cache.factors import Factor
from precast.cache.masking import is_secret_variable, seal
from precast.cache.variables import COUNTED, EXCLUDED, VariableRule, rule_for_variable

__all__ = [
    "COUNTED",
    "EXCLUDED",
    "VariableRule",
    "environment_factors",
    "ignored_variables",
    "portable_value",
    "rule_for_variable",
    "variable_factor",
]

# What torch (`_inductor.config.cpp.cxx`) and Triton (`runtime.build`) take on Linux where the variable is not set.
_DEFAULTS = MappingProxyType({"CC": "gcc", "CXX": "g++"})
# An absolute path begins a value, or follows a blank, a separator, or a compiler flag that takes one without a blank.
_FOLDERS = re.compile(r"(?P<before>^|[\s=:;,\"']|(?:^|\s)-(?:isystem|[ILBF]))/(?:[^\s:;,\"'/]*/)*")


def environment_factors(environ: Mapping[str, str]) -> tuple[Factor, ...]:
    """Return a factor for each variable that is set and counts, sorted by name.

    A compiler that is named although it is the default counts like one that is not named: images differ in that.

    Args:
        environ: The environment, such as `os.environ`.
    """
    factors = (variable_factor(name, environ) for name in sorted(environ) if _counts(name))
    return tuple(factor for factor in factors if _DEFAULTS.get(factor.name) != factor.value)


def ignored_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables that are set and that the register leaves out on purpose, sorted."""
    return tuple(name for name in sorted(environ) if (row := rule_for_variable(name)) is not None and not row[1])


def variable_factor(name: str, environ: Mapping[str, str]) -> Factor:
    """Return the factor of one variable, set or not: its portable value, or None for its absence.

    For variables that the model's own code reads; they count whatever the register says of them. No secret gets into
    a factor: its digest takes its place.
    """
    if name not in environ:
        return Factor("env", name, None)
    value = portable_value(name, environ[name])
    return Factor("env", name, seal(value) if is_secret_variable(name) else value)


def portable_value(name: str, value: str) -> str:
    """Return a variable's value without the folders of absolute paths.

    Args:
        name: The variable; `CC` and its like hold a command, of which every word is reduced to its last name.
        value: Its value.
    """
    if name in ("CC", "CXX", "CUDACXX", "PYTORCH_NVCC"):
        words = (word if word.startswith("-") else PurePosixPath(word).name for word in value.split())
        return " ".join(word for word in words if word)
    return _FOLDERS.sub(r"\g<before>", value)


def _counts(name: str) -> bool:
    row = rule_for_variable(name)
    return row is not None and row[1]
