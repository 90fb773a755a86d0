"""Marks of the decorator: a cover stands for what it covers, and nothing else does."""

import functools

from precast.aot.covered import Covered, covered


def test_a_cover_is_what_it_covers_and_a_copy_of_its_fields_is_not() -> None:
    def forward() -> None: ...

    @functools.wraps(forward)
    def cover() -> None: ...

    Covered(cover, forward).note()

    @functools.wraps(cover)
    def other() -> None: ...

    assert covered(cover) is forward
    assert covered(other) is other
    assert covered(forward) is forward
