"""Typed reading of decoded JSON: every problem is collected, so that one error can name them all."""

import re
from collections.abc import Callable
from typing import TypeVar

from precast.cache.canonical import Json

__all__ = ["HEX64", "Fields"]

HEX64 = re.compile(r"[0-9a-f]{64}")

_T = TypeVar("_T")


class Fields:
    """The fields of one JSON object.

    A getter that finds the wrong thing notes a problem and returns a harmless value, so that reading goes on. Whoever
    made the list of problems must look at it before using what was read.

    Args:
        value: The decoded JSON, hopefully an object.
        path: Where it stands, such as `payloads[3]`; empty for the document itself.
        problems: The list that collects what is wrong; shared by all nested objects.
    """

    def __init__(self, value: Json, path: str, problems: list[str]) -> None:
        self._path = path
        self._problems = problems
        self._values: dict[str, Json] = value if isinstance(value, dict) else {}
        if not isinstance(value, dict):
            self.problem("", "is not an object")

    def problem(self, name: str, text: str) -> None:
        """Note that the field `name` is wrong."""
        where = ".".join(part for part in (self._path, name) if part)
        self._problems.append(f"{where or 'the document'} {text}")

    def get(self, name: str) -> Json:
        """Return any JSON value; a missing field is a problem."""
        if name not in self._values:
            self.problem(name, "is missing")
        return self._values.get(name)

    def has(self, name: str) -> bool:
        """Tell whether a field is there and not null; for fields that older documents lack."""
        return self._values.get(name) is not None

    def text(self, name: str, pattern: re.Pattern[str] | None = None) -> str:
        """Return a string, which must match the whole `pattern` if one is given."""
        value = self.get(name)
        if isinstance(value, str) and (pattern is None or pattern.fullmatch(value)):
            return value
        if name in self._values:
            self.problem(name, "is not text" if pattern is None else "is malformed")
        return ""

    def count(self, name: str) -> int:
        """Return an integer that is not negative."""
        value = self.get(name)
        if type(value) is int and value >= 0:
            return value
        if name in self._values:
            self.problem(name, "is not a count")
        return 0

    def counts(self, name: str) -> tuple[int, ...]:
        """Return a list of integers that are not negative."""
        values = self.sequence(name)
        counts = tuple(item for item in values if type(item) is int and item >= 0)
        if len(counts) != len(values):
            self.problem(name, "holds something else than counts")
        return counts

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings."""
        values = self.sequence(name)
        texts = tuple(item for item in values if isinstance(item, str))
        if len(texts) != len(values):
            self.problem(name, "holds something else than text")
        return texts

    def mapping(self, name: str) -> dict[str, Json]:
        """Return an object as it is."""
        value = self.get(name)
        if isinstance(value, dict):
            return value
        if name in self._values:
            self.problem(name, "is not an object")
        return {}

    def sequence(self, name: str) -> list[Json]:
        """Return a list as it is."""
        value = self.get(name)
        if isinstance(value, list):
            return value
        if name in self._values:
            self.problem(name, "is not a list")
        return []

    def record(self, name: str, read: "Callable[[Fields], _T]") -> _T:
        """Read a nested object with `read`."""
        return read(Fields(self.get(name), self._nested(name), self._problems))

    def records(self, name: str, read: "Callable[[Fields], _T]") -> tuple[_T, ...]:
        """Read a list of nested objects with `read`."""
        path = self._nested(name)
        return tuple(
            read(Fields(item, f"{path}[{index}]", self._problems)) for index, item in enumerate(self.sequence(name))
        )

    def _nested(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name
