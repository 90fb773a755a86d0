"""Values of factors are worded on one line."""

import pytest

from precast.cache.canonical import Json
from precast.cli.values import printable, value_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "absent"),
        ("2.13.0+cpu", "2.13.0+cpu"),
        ("", '""'),
        ("two words", '"two words"'),
        ("line\nbreak", '"line\\nbreak"'),
        ("c4" * 32, "c4c4c4c4c4c4"),
        ("sha256:f52fbd32", "sha256:f52fbd32"),
        ("0", '"0"'),
        ("absent", '"absent"'),
        (4096, "4096"),
        (True, "true"),
        ([1, 2], "[1,2]"),
        ({"a": None}, '{"a":null}'),
    ],
)
def test_a_value_is_worded(value: Json, text: str) -> None:
    assert value_text(value) == text


def test_what_moves_a_cursor_is_escaped() -> None:
    assert value_text("a\x1b[31m\x9bb\udc80") == '"a\\u001b[31m\\x9bb\\udc80"'
    assert printable("a\tb\x1b") == "a\\tb\\x1b"


def test_a_long_value_is_cut() -> None:
    assert value_text("x" * 200) == "x" * 69 + "..."
