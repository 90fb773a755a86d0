"""How keys, ranges and groups of things are worded for people."""

from collections.abc import Mapping

from precast.cache.canonical import Json
from precast.cli.terminal import DASH

__all__ = ["KEY_DIGITS", "counted", "joined", "range_text", "short", "target_text"]

KEY_DIGITS = 12


def short(key: str, digits: int = KEY_DIGITS) -> str:
    """Shorten a key or digest to what people compare."""
    return key[:digits]


def counted(number: int, noun: str, plural: str = "") -> str:
    """Word a number of things: `1 piece`, `2 pieces`, `3 entries`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def joined(parts: list[str]) -> str:
    """Join the parts of a line, leaving out empty ones."""
    return " · ".join(part for part in parts if part)


def range_text(ends: tuple[int, int]) -> str:
    """Word a compile range; a single size is one number."""
    low, high = ends
    return str(low) if low == high else f"{low}{DASH}{high}"


def target_text(target: Mapping[str, Json]) -> str:
    """Word a target description, device first: `cpu x86-64-v3`."""
    device = str(target.get("device", ""))
    rest = [str(value) for name, value in sorted(target.items()) if name != "device" and isinstance(value, str)]
    return " ".join([device, *rest]).strip()
