"""The records that a manifest is made of, each with its JSON form."""

import re
from dataclasses import dataclass

from precast.cache.canonical import Json
from precast.cache.factors import Factor
from precast.cache.fields import HEX64, Fields

__all__ = [
    "BuildRecord",
    "ConstantRecord",
    "LoweringRecord",
    "MegaRecord",
    "ModelRecord",
    "PayloadRecord",
    "SettingRecord",
    "SourcesRecord",
    "factor_json",
    "read_factor",
]

_RFC3339_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """The model that was compiled.

    Attributes:
        name: What people call it.
        reference: How it was named: a module, a file name or a repository. Never an absolute path.
        config: The values that its factory was given.
    """

    name: str
    reference: str
    config: dict[str, Json]

    def json(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {"name": self.name, "reference": self.reference, "config": self.config}

    @classmethod
    def read(cls, fields: Fields) -> "ModelRecord":
        """Read the JSON form."""
        return cls(fields.text("name"), fields.text("reference"), fields.mapping("config"))


@dataclass(frozen=True, slots=True)
class LoweringRecord:
    """One effect of one rule on a setting.

    Attributes:
        before: The value that the rule found.
        after: The value that it made.
        reason: Why, in one line.
    """

    before: Json
    after: Json
    reason: str

    def json(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {"from": self.before, "to": self.after, "reason": self.reason}

    @classmethod
    def read(cls, fields: Fields) -> "LoweringRecord":
        """Read the JSON form."""
        return cls(fields.get("from"), fields.get("to"), fields.text("reason"))


@dataclass(frozen=True, slots=True)
class SettingRecord:
    """One setting as it was resolved.

    Attributes:
        name: The field of the settings.
        value: The value in force.
        origin: Where it came from: a flag, the environment, a file, a level, or the default.
        lowered_from: The value that was asked for, where a rule lowered it; else None.
        reason: Why the last rule lowered it, or empty.
        steps: Each effect, where several rules lowered it; the JSON form has no such field where one did or none.
    """

    name: str
    value: Json
    origin: str
    lowered_from: Json = None
    reason: str = ""
    steps: tuple[LoweringRecord, ...] = ()

    @property
    def lowerings(self) -> tuple[LoweringRecord, ...]:
        """The effect of each rule, in order; empty where none lowered it."""
        if self.steps or self.lowered_from is None:
            return self.steps
        return (LoweringRecord(self.lowered_from, self.value, self.reason),)

    def lowered(self, value: Json, reason: str) -> "SettingRecord":
        """Return the record after one more rule lowered the value."""
        steps = (*self.lowerings, LoweringRecord(self.value, value, reason))
        return SettingRecord(self.name, value, self.origin, steps[0].before, reason, steps if len(steps) > 1 else ())

    def json(self) -> dict[str, Json]:
        """Return the JSON form."""
        form: dict[str, Json] = {
            "name": self.name,
            "value": self.value,
            "origin": self.origin,
            "lowered_from": self.lowered_from,
            "reason": self.reason,
        }
        return {**form, "steps": [step.json() for step in self.steps]} if self.steps else form

    @classmethod
    def read(cls, fields: Fields) -> "SettingRecord":
        """Read the JSON form."""
        return cls(
            name=fields.text("name"),
            value=fields.get("value"),
            origin=fields.text("origin"),
            lowered_from=fields.get("lowered_from"),
            reason=fields.text("reason"),
            steps=fields.records("steps", LoweringRecord.read) if fields.has("steps") else (),
        )


@dataclass(frozen=True, slots=True)
class PayloadRecord:
    """One compiled piece for one compile range.

    Attributes:
        name: `<structural key>:<lo>-<hi>`.
        kind: The kind of payload, such as `aoti`.
        object: SHA-256 of the raw bytes; it names the object in the store.
        bytes: Size of the raw bytes.
        stored_bytes: Size of the object as stored.
        seconds: How long it took to compile; the manifest keeps milliseconds.
        range: The compile range, both ends included.
        used_by: How many pieces of the graph use it.
    """

    name: str
    kind: str
    object: str
    bytes: int
    stored_bytes: int
    seconds: float
    range: tuple[int, int]
    used_by: int

    def json(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "kind": self.kind,
            "object": self.object,
            "bytes": self.bytes,
            "stored_bytes": self.stored_bytes,
            "milliseconds": _milliseconds(self.seconds),
            "range": list(self.range),
            "used_by": self.used_by,
        }

    @classmethod
    def read(cls, fields: Fields) -> "PayloadRecord":
        """Read the JSON form."""
        ends = fields.counts("range")
        if len(ends) != 2 or ends[0] > ends[1]:
            fields.problem("range", "is no range")
            ends = (0, 0)
        return cls(
            name=fields.text("name"),
            kind=fields.text("kind"),
            object=fields.text("object", HEX64),
            bytes=fields.count("bytes"),
            stored_bytes=fields.count("stored_bytes"),
            seconds=fields.count("milliseconds") / 1000,
            range=(ends[0], ends[1]),
            used_by=fields.count("used_by"),
        )


@dataclass(frozen=True, slots=True)
class SourcesRecord:
    """The text of the model's own traced modules, as one object: canonical JSON of module names and texts.

    Attributes:
        object: SHA-256 of the raw bytes; it names the object in the store.
        bytes: Size of the raw bytes.
        stored_bytes: Size of the object as stored.
    """

    object: str
    bytes: int
    stored_bytes: int

    def json(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {"object": self.object, "bytes": self.bytes, "stored_bytes": self.stored_bytes}

    @classmethod
    def read(cls, fields: Fields) -> "SourcesRecord":
        """Read the JSON form."""
        return cls(fields.text("object", HEX64), fields.count("bytes"), fields.count("stored_bytes"))


@dataclass(frozen=True, slots=True)
class ConstantRecord:
    """One tensor that tracing baked into the graph.

    Attributes:
        name: Its name in the plan.
        dtype: A torch dtype's name, such as `float32`.
        shape: Its sizes.
        sha256: Digest of its bytes, little-endian and contiguous.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: str

    def json(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), "sha256": self.sha256}

    @classmethod
    def read(cls, fields: Fields) -> "ConstantRecord":
        """Read the JSON form."""
        return cls(fields.text("name"), fields.text("dtype"), fields.counts("shape"), fields.text("sha256", HEX64))


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """When and by what the entry was built; nothing here takes part in a key.

    Attributes:
        created_at: RFC 3339, in UTC.
        seconds: Wall time of the whole build; the manifest keeps milliseconds.
        precast: Version of precast.
    """

    created_at: str
    seconds: float
    precast: str

    def json(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {
            "created_at": self.created_at,
            "milliseconds": _milliseconds(self.seconds),
            "precast": self.precast,
        }

    @classmethod
    def read(cls, fields: Fields) -> "BuildRecord":
        """Read the JSON form."""
        created_at = fields.text("created_at", _RFC3339_UTC)
        return cls(created_at, fields.count("milliseconds") / 1000, fields.text("precast"))


@dataclass(frozen=True, slots=True)
class MegaRecord:
    """The mega artifact beside the manifest.

    Attributes:
        sha256: Digest of the whole file.
        bytes: Its size.
    """

    sha256: str
    bytes: int

    def json(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {"sha256": self.sha256, "bytes": self.bytes}

    @classmethod
    def read(cls, fields: Fields) -> "MegaRecord":
        """Read the JSON form."""
        return cls(fields.text("sha256", HEX64), fields.count("bytes"))


def factor_json(factor: Factor) -> dict[str, Json]:
    """Return a factor's JSON form."""
    return {"group": factor.group, "name": factor.name, "value": factor.value}


def read_factor(fields: Fields) -> Factor:
    """Read a factor's JSON form. It need not be in today's register: another version may have written it."""
    return Factor(fields.text("group"), fields.text("name"), fields.get("value"))


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
