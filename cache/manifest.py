"""The manifest of an entry: what was compiled, from what, into which objects, under one digest.

The file is canonical JSON. The digest covers the whole document but itself, fields that a later version added
included, so a changed byte anywhere is found. Fields may be added at any time; a reader leaves out what it does not
know.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath, PureWindowsPath

from precast.cache.canonical import Json, decode_json, digest, sha256
from precast.cache.canonical import canonical_json as encode
from precast.cache.factors import Factor
from precast.cache.fields import HEX64, Fields
from precast.cache.records import (
    BuildRecord,
    ConstantRecord,
    MegaRecord,
    ModelRecord,
    PayloadRecord,
    SettingRecord,
    SourcesRecord,
    factor_json,
    read_factor,
)
from precast.errors import CorruptError, FormatError

__all__ = [
    "SCHEMA",
    "TOO_NEW",
    "TOO_OLD",
    "BuildRecord",
    "ConstantRecord",
    "Manifest",
    "MegaRecord",
    "ModelRecord",
    "PayloadRecord",
    "SettingRecord",
    "SourcesRecord",
    "check_schema",
]

SCHEMA = "precast.manifest/1"

TOO_NEW = "The manifest's format is too new"
TOO_OLD = "The manifest's format is too old"

_SCHEMA_NAME, _, _SCHEMA_VERSION = SCHEMA.partition("/")
_SCHEMA_PATTERN = re.compile(rf"{re.escape(_SCHEMA_NAME)}/(\d{{1,9}})")
_REBUILD = "Run `precast precompile` again: it rebuilds a damaged entry"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that is known about an entry.

    Attributes:
        key: The entry's key.
        model: The model that was compiled.
        factors: All factors of the key.
        settings: The settings as they were resolved.
        target: What the code was generated for, such as `{"device": "cpu", "isa": "x86-64-v3"}`.
        stamps: For each kind of payload, what it needs of the node that loads it.
        plan: The split plan; its meaning is the splitter's.
        code: Source text of the stitched code.
        payloads: The compiled pieces.
        constants: The baked constants.
        build: When and by what it was built.
        mega: The mega artifact beside the manifest; the store fills it in.
        digest: Digest over everything else; `sealed` fills it in.
        content_digest: The digest that the manifest inside a mega file carries: of the same content, the record of the
            mega artifact left out. It is what signatures are over; `sealed` fills it in.
        sources: The text of the model's own modules, where it was kept.
        ignored: Names of the variables that were set and deliberately not counted.
    """

    key: str
    model: ModelRecord
    factors: tuple[Factor, ...]
    settings: tuple[SettingRecord, ...]
    target: dict[str, Json]
    stamps: dict[str, dict[str, str]]
    plan: dict[str, Json]
    code: str
    payloads: tuple[PayloadRecord, ...]
    constants: tuple[ConstantRecord, ...]
    build: BuildRecord
    mega: MegaRecord | None = None
    digest: str = ""
    sources: SourcesRecord | None = None
    ignored: tuple[str, ...] = ()
    content_digest: str = ""

    @property
    def objects(self) -> dict[str, int]:
        """Every object that the entry needs, payloads and sources, with the size of its raw bytes; each once."""
        named = {payload.object: payload.bytes for payload in self.payloads}
        return named if self.sources is None else {**named, self.sources.object: self.sources.bytes}

    def sealed(self) -> "Manifest":
        """Return the same manifest with its digests filled in.

        Raises:
            ValueError: The model's reference is an absolute path, or a value has no canonical form.
        """
        whole, content = _digests(self._body())
        return replace(self, digest=whole, content_digest=content)

    def to_json(self) -> bytes:
        """Encode the manifest, with its digest, as canonical JSON.

        Raises:
            ValueError: As `sealed`.
        """
        body = self._body()
        return encode({**body, "digest": digest(body)})

    @classmethod
    def from_json(cls, data: bytes) -> "Manifest":
        """Decode a manifest and check its digest.

        Raises:
            CorruptError: The bytes are damaged; one error names every problem.
            FormatError: Another version of precast wrote it in a format that this one does not read.
        """
        try:
            document = decode_json(data)
        except ValueError as error:
            raise _corrupt("", [f"it is not canonical JSON ({error})"]) from error
        check_schema(document)
        problems: list[str] = []
        manifest = _read(Fields(document, "", problems))
        if isinstance(document, dict):
            # Of the document as it stands: a field that this version does not know is part of what was signed.
            whole, content = _digests({name: value for name, value in document.items() if name != "digest"})
            if document.get("digest") != whole:
                problems.append("the digest does not fit the content")
            manifest = replace(manifest, content_digest=content)
        if problems:
            raise _corrupt(manifest.key, problems)
        return manifest

    def _body(self) -> dict[str, Json]:
        reference = self.model.reference
        if PurePosixPath(reference).is_absolute() or PureWindowsPath(reference).is_absolute():
            raise ValueError(f"A manifest holds no absolute path, but the model's reference is {reference}")
        # Fields that came later are left out where they say nothing, so that older manifests keep their bytes.
        later: dict[str, Json] = {}
        if self.sources is not None:
            later["sources"] = self.sources.json()
        if self.ignored:
            later["ignored"] = list(self.ignored)
        return {
            **later,
            "schema": SCHEMA,
            "key": self.key,
            "model": self.model.json(),
            "factors": [factor_json(factor) for factor in self.factors],
            "settings": [setting.json() for setting in self.settings],
            "target": self.target,
            "stamps": {kind: dict(values) for kind, values in self.stamps.items()},
            "plan": self.plan,
            "code": self.code,
            "payloads": [payload.json() for payload in self.payloads],
            "constants": [constant.json() for constant in self.constants],
            "build": self.build.json(),
            "mega": None if self.mega is None else self.mega.json(),
        }


def check_schema(document: Json) -> None:
    """Refuse a document that is no manifest of this format.

    Raises:
        CorruptError: It names no manifest's schema.
        FormatError: It has a format that this version does not read.
    """
    schema = document.get("schema") if isinstance(document, dict) else None
    match = _SCHEMA_PATTERN.fullmatch(schema) if isinstance(schema, str) else None
    if match is None:
        raise _corrupt("", ["it does not name a manifest's schema"])
    written, read = int(match[1]), int(_SCHEMA_VERSION)
    if written == read:
        return
    why = f"it is {schema}, and this version of precast reads {SCHEMA}"
    if written > read:
        raise FormatError(TOO_NEW, why, "Update precast, or compile again into another cache folder")
    raise FormatError(TOO_OLD, why, "Run `precast precompile` again")


def _digests(body: Mapping[str, Json]) -> tuple[str, str]:
    """Return the digests of a body as it is, and without the record of its mega artifact; each value encoded once."""
    members = {name: encode({name: value})[1:-1] for name, value in sorted(body.items())}
    whole = sha256(b"{%b}" % b",".join(members.values()))
    if body.get("mega") is None:
        return whole, whole
    return whole, sha256(b"{%b}" % b",".join((members | {"mega": b'"mega":null'}).values()))


def _read(fields: Fields) -> Manifest:
    return Manifest(
        key=fields.text("key", HEX64),
        model=fields.record("model", ModelRecord.read),
        factors=fields.records("factors", read_factor),
        settings=fields.records("settings", SettingRecord.read),
        target=fields.mapping("target"),
        stamps=_read_stamps(fields),
        plan=fields.mapping("plan"),
        code=fields.text("code"),
        payloads=fields.records("payloads", PayloadRecord.read),
        constants=fields.records("constants", ConstantRecord.read),
        build=fields.record("build", BuildRecord.read),
        mega=None if fields.get("mega") is None else fields.record("mega", MegaRecord.read),
        digest=fields.text("digest", HEX64),
        sources=fields.record("sources", SourcesRecord.read) if fields.has("sources") else None,
        ignored=fields.texts("ignored") if fields.has("ignored") else (),
    )


def _read_stamps(fields: Fields) -> dict[str, dict[str, str]]:
    stamps: dict[str, dict[str, str]] = {}
    for kind, values in fields.mapping("stamps").items():
        texts = values if isinstance(values, dict) else {}
        stamps[kind] = {name: value for name, value in texts.items() if isinstance(value, str)}
        if not isinstance(values, dict) or len(stamps[kind]) != len(values):
            fields.problem(f"stamps.{kind}", "holds something else than text")
    return stamps


def _corrupt(key: str, problems: list[str]) -> CorruptError:
    owner = f"The manifest of entry {key[:12]}" if key else "The manifest"
    return CorruptError(f"{owner} is damaged", "; ".join(problems), _REBUILD, entry=key)
