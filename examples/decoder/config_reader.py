"""A reader of configuration values that gathers what is wrong instead of raising at the first fault."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from precast.aot.spec import Json

__all__ = ["ConfigReader"]


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """Typed access to the values of a configuration; a fault is noted, and a stand-in given.

    Attributes:
        values: The values by key; null counts as absent.
        problems: What is wrong with them, in words; grows with every read.
    """

    values: Mapping[str, Json]
    problems: list[str] = field(default_factory=list)

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """Read a whole number that is not below the minimum."""
        value = self._value(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            self.problems.append(f"`{key}` must be an integer of at least {minimum}, got {value!r}")
            return minimum
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Read a number above zero."""
        value = self._value(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            self.problems.append(f"`{key}` must be a number above 0, got {value!r}")
            return 1.0
        return float(value)

    def flag(self, key: str) -> bool:
        """Read a truth value; absent means false."""
        value = self._value(key, False)
        if not isinstance(value, bool):
            self.problems.append(f"`{key}` must be true or false, got {value!r}")
            return False
        return value

    def text(self, key: str, default: str) -> str:
        """Read a string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            self.problems.append(f"`{key}` must be a string, got {value!r}")
            return default
        return value

    def _value(self, key: str, default: Json) -> Json:
        value = self.values.get(key)
        return default if value is None else value
