"""The JSON Schemas of the answers: one file for the envelope, one for each command's `data`."""

import json
from pathlib import Path
from typing import Any

from precast.errors import UsageError

__all__ = ["document", "names"]

_FOLDER = Path(__file__).parent / "schemas"
_ENVELOPE = "envelope"
_USES = "x-precast-uses"  # definitions that are the `data` of another command


def names() -> tuple[str, ...]:
    """Give the names of the commands that have a schema, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json") if path.stem != _ENVELOPE))


def document(name: str) -> dict[str, Any]:
    """Give the schema of a command's whole answer: the envelope around its `data`.

    `data` may also be empty, which it is when the command failed before it had an answer.

    Args:
        name: The command, such as `precompile` or `inspect.ls`.

    Raises:
        UsageError: If no command of that name has a schema.
    """
    if name not in names():
        raise UsageError(f"No schema is called {name}", f"there are {', '.join(names())}", "Name one of those")
    whole, data = _read(_ENVELOPE), _read(name)
    definitions = {**whole.get("$defs", {}), **data.pop("$defs", {})}
    for inner, other in data.pop(_USES, {}).items():
        used = _read(other)
        definitions |= {**used.pop("$defs", {}), inner: used}
    whole["title"] = f"Answer of precast {name.replace('.', ' ')}"
    whole["$defs"] = {**definitions, "data": data}
    whole["properties"]["schema"] = {"const": f"precast.{name}/1"}
    whole["properties"]["data"] = {"anyOf": [{"type": "object", "maxProperties": 0}, {"$ref": "#/$defs/data"}]}
    return whole


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content
