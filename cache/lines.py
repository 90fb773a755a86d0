"""Line changes of a module: which lines differ between two texts, by the numbers that an editor shows."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from precast.cache.masking import mask_source

__all__ = ["MAX_LINES", "LineChange", "line_changes", "unified_patch"]

MAX_LINES = 20

# Beyond this many lines difflib may take popular lines as junk: an exact comparison takes a square of time.
_EXACT = 2000


@dataclass(frozen=True, slots=True)
class LineChange:
    """One line that differs.

    Attributes:
        module: The module's full name.
        line_a: Its number in the first text, from 1; None where the first text has no such line.
        line_b: Its number in the second text, likewise.
        a: The line in the first text, secrets masked.
        b: The line in the second text, secrets masked.
    """

    module: str
    line_a: int | None
    line_b: int | None
    a: str | None
    b: str | None

    def mirrored(self) -> "LineChange":
        """Return the same change with the texts swapped."""
        return LineChange(self.module, self.line_b, self.line_a, self.b, self.a)


def line_changes(module: str, a: str, b: str) -> tuple[LineChange, ...]:
    """Return every line that differs between two texts of a module.

    What is compared is what people may see, because stored texts are masked already. Swapped texts give the mirrored
    changes: difflib alone does not promise that, so the texts are compared in an order of their own.
    """
    if a > b:
        return tuple(change.mirrored() for change in line_changes(module, b, a))
    shown_a, shown_b = mask_source(a), mask_source(b)
    return tuple(
        LineChange(
            module,
            None if i is None else i + 1,
            None if j is None else j + 1,
            None if i is None else shown_a[i],
            None if j is None else shown_b[j],
        )
        for i, j in _differing(shown_a, shown_b)
    )


def unified_patch(module: str, a: str, b: str, label_a: str, label_b: str) -> tuple[str, ...]:
    """Return a unified diff of two texts of a module, secrets masked, without line ends.

    Args:
        module: The module's full name.
        a: The first text.
        b: The second text.
        label_a: What the first side is called.
        label_b: What the second side is called.
    """
    names = (f"{label_a}/{module}", f"{label_b}/{module}")
    return tuple(difflib.unified_diff(mask_source(a), mask_source(b), *names, lineterm=""))


def _differing(a: list[str], b: list[str]) -> Iterator[tuple[int | None, int | None]]:
    """Yield the index pairs of lines that differ; a side without a line has None."""
    head = _common(a, b)
    tail = _common(a[head:][::-1], b[head:][::-1])
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    matcher = difflib.SequenceMatcher(None, middle_a, middle_b, autojunk=max(len(middle_a), len(middle_b)) > _EXACT)
    for tag, first_a, last_a, first_b, last_b in matcher.get_opcodes():
        if tag != "equal":
            yield from zip_longest(range(head + first_a, head + last_a), range(head + first_b, head + last_b))


def _common(a: list[str], b: list[str]) -> int:
    """Count the lines that two texts begin with alike."""
    pairs = zip(a, b, strict=False)
    return next((index for index, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
