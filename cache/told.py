"""What can be told before tracing: a request lacks what only a trace finds out, and that is no difference.

A side without a graph factor was not traced. It says everything about registered variables, settings and the compiler,
it names the model's config by overrides only, and of code and of the variables that the model's code reads it knows
what somebody looked up for it.
"""

from collections.abc import Iterable, Mapping

from precast.cache.canonical import Json, canonical_json
from precast.cache.factors import Factor
from precast.cache.variables import rule_for_variable

__all__ = ["Label", "Values", "comparable", "is_traced", "needs_trace", "override_values"]

Label = tuple[str, str]
Values = dict[Label, Json]

_OVERRIDES = ("config", "model.overrides")
# A request names the model by these; a key has the values themselves.
_REQUEST_ONLY = (_OVERRIDES, ("config", "model.identity"))
_TRACED = (("code", ""), ("graph", ""), ("config", "model."), ("config", "signature."), ("compiler", "pass:"))


def is_traced(factors: Iterable[Factor]) -> bool:
    """Tell whether a trace found these factors."""
    return any(factor.group == "graph" for factor in factors)


def needs_trace(label: Label) -> bool:
    """Tell whether a factor may be unknown before tracing; so may a variable that only the model's own code reads."""
    group, name = label
    if group == "env":
        row = rule_for_variable(name)
        return row is None or not row[1]
    return any(group == traced and name.startswith(prefix) for traced, prefix in _TRACED)


def override_values(values: Mapping[Label, Json]) -> dict[str, Json]:
    """Return the config values that a request gives, by their names."""
    given = values.get(_OVERRIDES)
    return given if isinstance(given, dict) else {}


def comparable(
    traced: Mapping[Label, Json], untraced: Mapping[Label, Json], overrides: Mapping[str, Json]
) -> tuple[Values, Values, tuple[Label, ...]]:
    """Reduce a traced and an untraced side to what can be compared.

    Args:
        traced: The factors of the traced side by group and name.
        untraced: Those of the untraced side.
        overrides: The config values that the traced side was given.

    Returns:
        What is left of both, and the traced side's factors that cannot be told.
    """
    asked = {label: value for label, value in untraced.items() if label not in _REQUEST_ONLY}
    found = dict(traced)
    # Code and reads are added by tracing only; what else is known of them was looked up for another entry.
    for label in [label for label in asked if label not in found and (label[0] == "code" or _is_unset(label, asked))]:
        del asked[label]
    told = _project(found, asked, override_values(untraced), overrides)
    untold = tuple(label for label in found if label not in asked and label not in told and needs_trace(label))
    for label in untold:
        del found[label]
    for label, value in traced.items():
        if label[0] == "env" and value is None:
            # A variable that was read and not set: leaving it out says that it is not set.
            asked.setdefault(label, None)
    return found, asked, untold


def _is_unset(label: Label, values: Values) -> bool:
    return label[0] == "env" and values[label] is None


def _project(found: Values, asked: Values, wanted: Mapping[str, Json], given: Mapping[str, Json]) -> set[Label]:
    """Turn overrides into the config values that they stand for; return the labels that both sides speak of."""
    for name, value in wanted.items():
        label = ("config", f"model.{name}")
        if name in given and canonical_json(given[name]) == canonical_json(value):
            # The same override gives the same value, whatever the model's code makes of it.
            asked[label] = found.setdefault(label, value)
        else:
            asked[label] = value
    # Without an override a request takes the model's default, which only the model's code knows.
    defaults = {("config", f"model.{name}"): value for name, value in given.items() if name not in wanted}
    for label, value in defaults.items():
        found.setdefault(label, value)
    return set(defaults)
