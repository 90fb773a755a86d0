"""What can be told before tracing: a request lacks what only a trace finds out, and that is no difference.

A side without a graph factor was not traced. It holds every request factor: registered variables, settings, the
compiler, and the model's name and config; of these, what it lacks is absent. Of code and of the variables that the
model's code reads it knows what somebody looked up for it.
"""

from collections.abc import Iterable, Mapping

from precast.cache.canonical import Json
from precast.cache.factors import Factor
from precast.cache.variables import rule_for_variable

__all__ = ["Label", "Values", "comparable", "is_traced", "needs_trace"]

Label = tuple[str, str]
Values = dict[Label, Json]

_TRACED = (("code", ""), ("graph", ""), ("config", "model.spec."), ("config", "signature."), ("compiler", "pass:"))


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


def comparable(
    traced: Mapping[Label, Json], untraced: Mapping[Label, Json]
) -> tuple[Values, Values, tuple[Label, ...]]:
    """Reduce a traced and an untraced side to what can be compared.

    Args:
        traced: The factors of the traced side by group and name.
        untraced: Those of the untraced side.

    Returns:
        What is left of both, and the traced side's factors that cannot be told.
    """
    # Only an import adds code or reads of variables; what else is known of them was looked up for another entry.
    foreign = {
        label for label in untraced if label not in traced and (label[0] == "code" or _is_unset(label, untraced))
    }
    asked = {label: value for label, value in untraced.items() if label not in foreign}
    silent = [label for label in traced if label not in asked]
    untold = tuple(label for label in silent if needs_trace(label))
    # Of a registered variable a request says by its silence that it is not set.
    asked |= {label: None for label in silent if not needs_trace(label) and _is_unset(label, traced)}
    return {label: value for label, value in traced.items() if label not in untold}, asked, untold


def _is_unset(label: Label, values: Mapping[Label, Json]) -> bool:
    return label[0] == "env" and values[label] is None
