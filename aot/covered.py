"""The marks that the decorator leaves: on a function that it put in place of another, and on a module."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["STATE", "Covered", "covered"]

STATE = "_precast_state"  # field of a module, for what its first call made
_COVERED = "_precast_covered"


@dataclass(frozen=True, slots=True)
class Covered:
    """What a function that the decorator made stands for.

    Attributes:
        cover: That function; `functools.wraps` copies a function's fields to others, for which they are not meant.
        forward: The function that it stands for.
    """

    cover: Callable[..., Any]
    forward: Callable[..., Any]

    def note(self) -> None:
        """Note it in a field of the function."""
        setattr(self.cover, _COVERED, self)


def covered(function: Any) -> Any:
    """Return the function that another stands for; any other function as it is."""
    found = getattr(function, "__dict__", {}).get(_COVERED)
    return found.forward if found is not None and found.cover is function else function
