"""How values of factors and settings are worded for people."""

import json
import re

from precast.cache.canonical import Json
from precast.cli.wording import short

__all__ = ["printable", "value_text"]

_WIDEST = 72
_DIGEST = re.compile(r"[0-9a-f]{32,}")
_AMBIGUOUS = re.compile(r"-?\d+(\.\d+)?([eE]-?\d+)?|true|false|null|absent")
_BARE = re.compile(r"[\w.+:/@%=,<>~*()-]+")


def printable(text: str) -> str:
    """Escape what would move a terminal's cursor or break the line; source text and variables may hold anything."""
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape", "replace").decode() for mark in text)


def value_text(value: Json) -> str:
    """Word a value on one line: plain words bare, digests short, everything else as JSON, as is text that looks so."""
    if value is None:
        return "absent"
    if isinstance(value, str):
        if _DIGEST.fullmatch(value):
            return short(value)
        text = (
            value
            if _BARE.fullmatch(value) and not _AMBIGUOUS.fullmatch(value)
            else json.dumps(value, ensure_ascii=False)
        )
    else:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text = printable(text)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
