"""The little language of `inspect ls --filter` and `--sort`: `size>1GB`, `model=llama*`, `used:desc`."""

import difflib
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from precast.cache.canonical import Json
from precast.cache.sizes import parse_age, parse_size
from precast.errors import UsageError

__all__ = ["FIELDS", "Filter", "keep", "parse_filter", "sort_rows"]

Row = dict[str, Json]

_EXPRESSION = re.compile(r"\s*(\w+)\s*(<=|>=|!=|=|<|>)\s*(.+?)\s*")
_ORDER: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"`{text}` is no whole number")
    return int(text)


# What people call a field, where it stands in a row, and how a number of it is read; None means text.
FIELDS: Mapping[str, tuple[str, Callable[[str], int] | None]] = {
    "key": ("key", None),
    "model": ("model", None),
    "target": ("target", None),
    "device": ("device", None),
    "arch": ("arch", None),
    "torch": ("torch", None),
    "precast": ("precast", None),
    "state": ("state", None),
    "kind": ("kinds", None),
    "tag": ("tags", None),
    "pieces": ("pieces", _whole),
    "size": ("bytes", parse_size),
    "age": ("age_seconds", parse_age),
    "used": ("unused_seconds", parse_age),
}


@dataclass(frozen=True, slots=True)
class Filter:
    """One condition on a row.

    Attributes:
        field: The row's field.
        sign: One of = != < <= > >=.
        operand: A pattern for text, else a number in the field's unit.
    """

    field: str
    sign: str
    operand: str | int

    def matches(self, row: Row) -> bool:
        """Tell whether a row meets the condition; a value that is not known meets none but `!=`."""
        value = row.get(self.field)
        if value is None:
            return self.sign == "!="
        if isinstance(self.operand, str):
            texts = value if isinstance(value, list) else [value]
            return any(self._fits(str(text), self.operand) for text in texts) is (self.sign == "=")
        return isinstance(value, int | float) and _ORDER[self.sign](value, self.operand)

    def _fits(self, text: str, pattern: str) -> bool:
        return fnmatchcase(text, pattern) or (self.field == "key" and text.startswith(pattern))


def parse_filter(text: str) -> Filter:
    """Read one condition.

    Raises:
        UsageError: If it is no condition, names no field, or compares text by size.
        ConfigValueError: If its operand is no size or age.
    """
    match = _EXPRESSION.fullmatch(text)
    if match is None:
        raise UsageError(f"--filter {text} is no condition", hint="Write one such as 'size>1GB' or 'model=llama*'")
    name, sign, operand = match.groups()
    field, read = _field("--filter", name)
    if read is not None:
        return Filter(field, sign, read(operand))
    if sign not in ("=", "!="):
        raise UsageError(f"--filter {text} compares text by size", hint=f"Use {name}=PATTERN or {name}!=PATTERN")
    return Filter(field, sign, operand)


def keep(rows: Iterable[Row], filters: Sequence[Filter]) -> list[Row]:
    """Give the rows that meet every condition, in their order."""
    return [row for row in rows if all(condition.matches(row) for condition in filters)]


def sort_rows(rows: Sequence[Row], text: str) -> list[Row]:
    """Sort rows by `FIELD` or `FIELD:asc|desc`; equal rows stay sorted by key, and unknown values come last.

    Raises:
        UsageError: If there is no such field or direction.
    """
    name, _, direction = text.partition(":")
    field, _ = _field("--sort", name)
    if direction not in ("", "asc", "desc"):
        raise UsageError(f"--sort {text} has no such direction", hint="Use asc or desc")
    by_key = sorted(rows, key=lambda row: str(row["key"]))
    known = [row for row in by_key if row.get(field) is not None]
    unknown = [row for row in by_key if row.get(field) is None]
    return [*sorted(known, key=lambda row: _order(row[field]), reverse=direction == "desc"), *unknown]


def _order(value: Json) -> tuple[float, str]:
    return (value, "") if isinstance(value, int | float) else (0, str(value))


def _field(flag: str, name: str) -> tuple[str, Callable[[str], int] | None]:
    if name in FIELDS:
        return FIELDS[name]
    near = difflib.get_close_matches(name, FIELDS, n=1)
    raise UsageError(
        f"{flag} knows no field `{name}`",
        f"the fields are {', '.join(FIELDS)}",
        f"Did you mean {near[0]}?" if near else "",
    )
