"""Sizes and ages as people write and read them: `1.5GB`, `30d`."""

import re
from fractions import Fraction

from precast.errors import ConfigValueError

__all__ = ["format_age", "format_size", "parse_age", "parse_size"]

_SIZES = {"": 1, "B": 1}
_SIZES |= {f"{letter}B": 1000**power for power, letter in enumerate("KMGT", start=1)}
_SIZES |= {f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", start=1)}
_SIZES |= {letter: 1000**power for power, letter in enumerate("KMGT", start=1)}
_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_size(text: str) -> int:
    """Return the bytes that a text such as `500`, `1.5GB` (decimal) or `2GiB` (binary) means.

    Raises:
        ConfigValueError: The text is no size.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].upper() not in _SIZES:
        raise ConfigValueError(f"`{text}` is no size", hint="Write a size such as 500MB, 1.5GB or 2GiB")
    # Fractions, because 1.1 GB as a float is not a whole number of bytes.
    return int(Fraction(match[1]) * _SIZES[match[2].upper()])


def parse_age(text: str) -> int:
    """Return the seconds that a text such as `90s`, `15m`, `12h`, `30d` or `2w` means.

    Raises:
        ConfigValueError: The text is no age; a bare number is none, because its unit would be a guess.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in _AGES:
        raise ConfigValueError(f"`{text}` is no age", hint="Write an age such as 12h, 30d or 2w")
    return int(Fraction(match[1]) * _AGES[match[2].lower()])


def format_size(size: int) -> str:
    """Return a size in bytes as text with a decimal unit, such as `1.5 GB`."""
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} TB"


def format_age(seconds: float) -> str:
    """Return an age in seconds as text in its largest fitting unit, such as `9 d` or `0 s`."""
    whole = max(0, int(seconds))
    for unit, size in (("d", _AGES["d"]), ("h", _AGES["h"]), ("min", _AGES["m"])):
        if whole >= size:
            return f"{whole // size} {unit}"
    return f"{whole} s"
