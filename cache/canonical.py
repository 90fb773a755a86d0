"""Canonical JSON: one byte string for each value, on every machine and in every process.

Keys and digests are made of these bytes, so equal values must give equal bytes and different values different ones.
JSON numbers are integers only: a float travels as `{"$float": "<repr>"}`, because printers of floats differ between
libraries.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn, TypeAlias

__all__ = ["Json", "canonical_json", "decode_json", "digest", "sha256"]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_FLOAT = "$float"


def canonical_json(value: Any) -> bytes:
    """Encode a value as sorted, compact UTF-8 JSON.

    Args:
        value: None, booleans, integers, finite floats, strings, lists, tuples (encoded as lists) and mappings with
            string keys, nested in any way. Subclasses of the scalar types are refused: an enum member is not its
            value.

    Raises:
        ValueError: The value holds anything else, NaN, an infinity, a lone surrogate or a cycle.
    """
    try:
        plain = _plain(value)
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise ValueError("A value that contains itself, or is nested too deeply, has no canonical form") from None
    return text.encode("utf-8")


def decode_json(data: bytes) -> Json:
    """Decode what `canonical_json` wrote.

    Raises:
        ValueError: Not UTF-8, not JSON, a bare float, NaN, an infinity, or the same key twice in one object.
    """
    try:
        value: Json = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_float=_refuse_number,
            parse_constant=_refuse_number,
        )
    except RecursionError:
        raise ValueError("The JSON text is nested too deeply") from None
    return value


def digest(value: Any) -> str:
    """Return the full SHA-256 of a value's canonical JSON, as 64 hex digits."""
    return sha256(canonical_json(value))


def sha256(data: bytes) -> str:
    """Return the SHA-256 of some bytes, as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def _plain(value: Any) -> Json:
    if value is None or type(value) in (bool, int, str):
        plain: Json = value
        return plain
    if type(value) is float:
        if not math.isfinite(value):
            raise ValueError(f"{value!r} has no canonical form: only finite floats have one")
        return {_FLOAT: repr(value)}
    if type(value) in (list, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {_key(key): _plain(item) for key, item in value.items()}
    raise ValueError(f"A {type(value).__name__} has no canonical form")


def _key(key: Any) -> str:
    if type(key) is not str:
        raise ValueError(f"{key!r} is no canonical key: only strings are")
    if key == _FLOAT:
        # Otherwise the mapping {"$float": "1.0"} and the number 1.0 would share their bytes.
        raise ValueError(f"The key {_FLOAT!r} is taken by the encoding of floats")
    return key


def _object(pairs: list[tuple[str, Json]]) -> Json:
    decoded = dict(pairs)
    if len(decoded) != len(pairs):
        raise ValueError("The JSON text holds the same key twice in one object")
    if _FLOAT not in decoded:
        return decoded
    text = decoded[_FLOAT]
    if len(decoded) != 1 or not isinstance(text, str):
        raise ValueError("The JSON text holds a malformed float")
    number = float(text)
    if not math.isfinite(number) or repr(number) != text:
        raise ValueError(f"{text!r} is not the canonical form of a float")
    return number


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no canonical number: floats travel as strings")
