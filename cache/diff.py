"""Differences between two sides, factor by factor: what changed, from what to what, and whether it moves the key.

Only what differs is listed, in the order of the groups and then of the names. Swapped sides give the mirrored list.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from precast.cache.canonical import Json
from precast.cache.environment import rule_for_variable
from precast.cache.factors import GROUPS, Factor, rule_for
from precast.cache.fields import HEX64
from precast.cache.leaves import ABSENT, Absent, leaf_changes
from precast.cache.lines import MAX_LINES, LineChange, line_changes, unified_patch
from precast.cache.manifest import SettingRecord
from precast.cache.masking import public_value
from precast.cache.told import Label, Values, comparable, is_traced

__all__ = ["BREAKING", "MAX_LINES", "NOISE", "Change", "Diff", "LineChange", "Side", "diff_sides", "shown_value"]

BREAKING, NOISE = "breaking", "noise"

_ADDED, _REMOVED, _CHANGED = "added", "removed", "changed"
_SWAPPED = {_ADDED: _REMOVED, _REMOVED: _ADDED, _CHANGED: _CHANGED}
_DIGITS = 12
_MODULE = "module:"
_SETTING = "settings."


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison.

    Attributes:
        label: What people call it: a short key, a tag, a file, `live`.
        key: The entry's key; empty where only a trace could tell it.
        factors: The factors that are known; a side without one of the graph counts as not traced.
        sources: Text of the model's own modules by module name, where it is known.
        settings: The settings as they were resolved.
        ignored: Names of variables that were set and deliberately not counted.
        foreign: Whether another tool wrote it; then precast's register decides which of its variables are noise.
    """

    label: str
    key: str
    factors: tuple[Factor, ...]
    sources: Mapping[str, str] = field(default_factory=dict)
    settings: tuple[SettingRecord, ...] = ()
    ignored: tuple[str, ...] = ()
    foreign: bool = False

    def values(self) -> Values:
        """Return the factors by group and name."""
        return {(factor.group, factor.name): factor.value for factor in self.factors}


@dataclass(frozen=True, slots=True)
class Change:
    """One factor, or one leaf of a mapping in it, that differs.

    Attributes:
        group: The factor's group.
        factor: Its name; a leaf's path follows after dots, as in `torch.version`.
        kind: `added` where only the second side has it, `removed` where only the first has it, else `changed`.
        a: The first side's value as people may see it: digests short, secrets masked.
        b: The second side's value, likewise.
        severity: `breaking` for a part of the key, `noise` for what differs without moving it.
        reason: Why it matters or why it does not, by the register.
        lines: The lines of a module that differ, the first `MAX_LINES`.
        rest: How many more lines differ.
    """

    group: str
    factor: str
    kind: str
    a: Json
    b: Json
    severity: str
    reason: str
    lines: tuple[LineChange, ...] = ()
    rest: int = 0

    @property
    def label(self) -> str:
        """Group and name in one word, such as `compiler/torch.version`."""
        return f"{self.group}/{self.factor}"

    def mirrored(self) -> "Change":
        """Return the same change with the sides swapped."""
        lines = tuple(line.mirrored() for line in self.lines)
        return replace(self, kind=_SWAPPED[self.kind], a=self.b, b=self.a, lines=lines)


@dataclass(frozen=True, slots=True)
class Diff:
    """All that differs between two sides.

    Attributes:
        a: The first side.
        b: The second side.
        changes: What differs, by group and then by name.
        unchanged: How many factors are equal, for each of `GROUPS`.
        untold: How many factors cannot be compared before a trace, by group.
    """

    a: Side
    b: Side
    changes: tuple[Change, ...]
    unchanged: Mapping[str, int]
    untold: Mapping[str, int] = field(default_factory=dict)

    @property
    def breaking(self) -> tuple[Change, ...]:
        """What moves the key."""
        return tuple(change for change in self.changes if change.severity == BREAKING)

    def mirrored(self) -> "Diff":
        """Return the same difference with the sides swapped."""
        changes = tuple(change.mirrored() for change in self.changes)
        return Diff(self.b, self.a, changes, self.unchanged, self.untold)

    def patch(self, module: str) -> tuple[str, ...]:
        """Return a unified diff of one module's texts, secrets masked; empty where a side stored none."""
        if module not in self.a.sources or module not in self.b.sources:
            return ()
        texts = self.a.sources[module], self.b.sources[module]
        return unified_patch(module, *texts, self.a.label, self.b.label)


def diff_sides(a: Side, b: Side, exclusions: Mapping[str, str] | None = None) -> Diff:
    """Compare two sides.

    Where only one of them was traced, what only a trace could tell of the other is counted as untold, not as changed.

    Args:
        a: The first side.
        b: The second side.
        exclusions: Why each setting that is no part of a key is none, by its name.
    """
    values_a, values_b, untold = _comparable(a, b)
    changes: list[tuple[Label, Change]] = []
    unchanged = dict.fromkeys(GROUPS, 0)
    for label in values_a.keys() | values_b.keys():
        found = list(_factor_changes(a, b, label, values_a.get(label, ABSENT), values_b.get(label, ABSENT)))
        changes += ((label, change) for change in found)
        unchanged[label[0]] = unchanged.get(label[0], 0) + (not found)
    changes += ((("config", change.factor), change) for change in _setting_changes(a, b, exclusions or {}))
    changes.sort(key=lambda item: (*_place(item[0]), item[1].factor))
    counts = {group: sum(label[0] == group for label in untold) for group in GROUPS}
    return Diff(a, b, tuple(change for _, change in changes), unchanged, {g: n for g, n in counts.items() if n})


def shown_value(group: str, name: str, value: Json) -> Json:
    """Return a factor's value as people see it: digests by their first digits, secrets masked."""
    return _shortened(public_value(group, name, value))


def _comparable(a: Side, b: Side) -> tuple[Values, Values, tuple[Label, ...]]:
    values_a, values_b = a.values(), b.values()
    if is_traced(a.factors) and not is_traced(b.factors):
        return comparable(values_a, values_b)
    if is_traced(b.factors) and not is_traced(a.factors):
        values_b, values_a, untold = comparable(values_b, values_a)
        return values_a, values_b, untold
    return values_a, values_b, ()


def _place(label: Label) -> tuple[int, str, str]:
    group, name = label
    return (GROUPS.index(group) if group in GROUPS else len(GROUPS)), group, name


def _factor_changes(a: Side, b: Side, label: Label, old: "Json | Absent", new: "Json | Absent") -> Iterator[Change]:
    group, name = label
    severity, reason = _judged(label, foreign=a.foreign or b.foreign)
    for path, leaf_a, leaf_b in leaf_changes(old, new):
        dotted = ".".join((name, *path))
        shown = (_shown(group, dotted, leaf_a), _shown(group, dotted, leaf_b))
        change = Change(group, dotted, _kind(leaf_a, leaf_b), *shown, severity, reason)
        yield _with_lines(change, a, b)


def _kind(a: "Json | Absent", b: "Json | Absent") -> str:
    nothing_a, nothing_b = isinstance(a, Absent), isinstance(b, Absent)
    if nothing_a == nothing_b:
        # Null is how a variable, a module or a file that is not there is written.
        nothing_a, nothing_b = a is None, b is None
    return _ADDED if nothing_a and not nothing_b else _REMOVED if nothing_b and not nothing_a else _CHANGED


def _shown(group: str, name: str, value: "Json | Absent") -> Json:
    return None if isinstance(value, Absent) else shown_value(group, name, value)


def _shortened(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: _shortened(inner) for name, inner in value.items()}
    return value[:_DIGITS] if isinstance(value, str) and HEX64.fullmatch(value) else value


def _judged(label: Label, *, foreign: bool) -> tuple[str, str]:
    """Return a factor's severity and the reason for it."""
    group, name = label
    if group == "env":
        row = rule_for_variable(name)
        if row is None:
            reason = "vLLM counts it" if foreign else "The model's own code reads it while it is built"
            return BREAKING, reason
        rule, counted = row
        if counted or foreign:
            return (BREAKING if counted else NOISE), rule.reason
        return BREAKING, "The model's own code reads it while it is built"
    if foreign:
        return BREAKING, "vLLM stores only a digest of it, so which part of it changed cannot be seen"
    registered = rule_for(Factor(group, name, None))
    return BREAKING, registered.reason if registered else "Another version of precast counts it"


def _with_lines(change: Change, a: Side, b: Side) -> Change:
    """Add to a changed module the lines that differ, or why they cannot be told."""
    module = change.factor.removeprefix(_MODULE)
    if change.group != "code" or module == change.factor or change.kind != _CHANGED:
        return change
    silent = sorted({side.label for side in (a, b) if module not in side.sources})
    if silent:
        why = f"{' and '.join(silent)} stored no text of it, so its lines cannot be compared"
        return replace(change, reason=f"{change.reason}; {why}")
    lines = line_changes(module, a.sources[module], b.sources[module])
    if not lines:
        return replace(change, reason=f"{change.reason}; its lines are equal, so line ends or the encoding differ")
    return replace(change, lines=lines[:MAX_LINES], rest=len(lines[MAX_LINES:]))


def _setting_changes(a: Side, b: Side, exclusions: Mapping[str, str]) -> Iterator[Change]:
    """Compare the settings that are no part of a key; a side without any says nothing."""
    if not a.settings or not b.settings:
        return
    counted = {factor.name for side in (a, b) for factor in side.factors if factor.group == "config"}
    old = {setting.name: setting.value for setting in a.settings}
    new = {setting.name: setting.value for setting in b.settings}
    for name in sorted(old.keys() | new.keys()):
        factor = _SETTING + name
        if factor in counted:
            continue
        reason = exclusions.get(name, "It does not change the generated code, so it is no part of the key")
        for path, leaf_a, leaf_b in leaf_changes(old.get(name, ABSENT), new.get(name, ABSENT)):
            dotted = ".".join((factor, *path))
            shown = (_shown("config", dotted, leaf_a), _shown("config", dotted, leaf_b))
            yield Change("config", dotted, _kind(leaf_a, leaf_b), *shown, NOISE, reason)
