"""The one JSON shape that every command answers with, in every outcome."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from precast import __version__
from precast.cache.canonical import Json

__all__ = ["Envelope", "Remark"]


@dataclass(frozen=True, slots=True)
class Remark:
    """One warning or error of an envelope.

    Attributes:
        code: A dotted, stable name that programs match on.
        message: One line that says what happened.
        why: One line that says why, or empty.
        hint: One line that says what to do next, or empty.
        entry: Key of the entry concerned, or empty.
        path: File or folder concerned, or empty.
        details: More of it for programs, or empty.
    """

    code: str
    message: str
    why: str = ""
    hint: str = ""
    entry: str = ""
    path: str = ""
    details: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """Give the remark as JSON, without its empty parts."""
        optional: dict[str, Json] = {
            "why": self.why,
            "hint": self.hint,
            "entry": self.entry,
            "path": self.path,
            "details": dict(self.details),
        }
        return {"code": self.code, "message": self.message, **{k: v for k, v in optional.items() if v}}


@dataclass(frozen=True, slots=True)
class Envelope:
    """The answer of one command.

    Attributes:
        schema: Name and version of the shape of `data`, such as `precast.verify/1`.
        exit_code: Exit status of the process.
        started_at: When the command began, in UTC.
        seconds: How long it took.
        data: The command's own object; empty when there is no answer.
        warnings: What the user should know although the command went on.
        errors: Why the command failed.
    """

    schema: str
    exit_code: int
    started_at: datetime
    seconds: float
    data: Mapping[str, Json]
    warnings: Sequence[Remark] = ()
    errors: Sequence[Remark] = ()

    def to_json(self) -> dict[str, Json]:
        """Give the whole document, every field present."""
        return {
            "schema": self.schema,
            "tool": {"name": "precast", "version": __version__},
            "ok": self.exit_code == 0,
            "exit_code": int(self.exit_code),
            "started_at": self.started_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "seconds": round(self.seconds, 3),
            "data": dict(self.data),
            "warnings": [remark.to_json() for remark in self.warnings],
            "errors": [remark.to_json() for remark in self.errors],
        }
