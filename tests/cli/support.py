"""What the tests of the command line share: a runner, and entries to look at."""

import json
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from precast.aot.settings import Settings
from precast.cache.factors import Factor, entry_key
from precast.cache.manifest import (
    BuildRecord,
    Manifest,
    ModelRecord,
    PayloadRecord,
    SettingRecord,
)
from precast.cache.mega import write_mega
from precast.cache.store import Store
from precast.cli.documents import document
from precast.errors import ExitCode, PrecastError


@dataclass(frozen=True)
class Ran:
    """What one run of the command line did."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """The one document on stdout; fails when there is anything beside it."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    def tsv(self) -> list[dict[str, str]]:
        """The rows of a TSV answer, by the names in its header."""
        header, *rows = [line.split("\t") for line in self.out.splitlines()]
        return [dict(zip(header, row, strict=True)) for row in rows]


@dataclass(frozen=True)
class FakeStage:
    name: str
    status: str
    seconds: float
    summary: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FakeReport:
    key: str
    level: str
    stages: tuple[FakeStage, ...]
    ok: bool
    exit_code: ExitCode
    problems: tuple[PrecastError, ...] = ()


@dataclass(frozen=True)
class FakeResult:
    status: str
    root: Path
    key: str = "7f3c91d2a604" + "0" * 52
    model: str = "tiny-decoder"
    factors_digests: dict[str, str] = field(default_factory=lambda: {"env": "19ab" + "0" * 60, "code": "c4" * 32})
    pieces: int = 5
    unique: int = 3
    ranges: tuple[tuple[int, int], ...] = ((1, 8192),)
    splitting_ops: dict[str, int] = field(default_factory=lambda: {"precast::paged_attention": 4})
    payloads: tuple[PayloadRecord, ...] = ()
    mega_bytes: int = 3_400_000
    stored_bytes: int = 800_000
    seconds: float = 19.9
    saved_seconds: float = 0.0
    next_command: str = "precast verify 7f3c91d2a604"


class FakeLibrary:
    """Stands for `precompile` or `verify`: keeps what it was called with and gives what it was told to."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.args, self.kwargs = args, kwargs
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer(**kwargs) if callable(self.answer) else self.answer

    @property
    def settings(self) -> Settings:
        found = self.kwargs.get("settings", self.args[1] if len(self.args) > 1 else None)
        assert isinstance(found, Settings)
        return found


def payload(raw: bytes, name: str = "0123456789abcdef:1-8192", used_by: int = 1) -> PayloadRecord:
    low, _, high = name.partition(":")[2].partition("-")
    name_of = sha256(raw).hexdigest()
    return PayloadRecord(name, "aoti", name_of, len(raw), len(raw), 1.5, (int(low), int(high)), used_by)


def manifest_of(model: str, raws: tuple[bytes, ...] = (b"piece",), *, secret: str = "") -> Manifest:
    factors = [Factor("config", "model.name", model), Factor("code", "module:shop.model", "c4" * 32)]
    if secret:
        factors.append(Factor("env", "MY_TOKEN", secret))
    settings = (
        SettingRecord("cudagraph_mode", "NONE", "level", "FULL_AND_PIECEWISE", "a CPU has no CUDA graphs"),
        SettingRecord("jobs", 2, "flag"),
    )
    return Manifest(
        key=entry_key(factors),
        model=ModelRecord(model, f"shop.{model}:build", {"layers": 4}),
        factors=tuple(factors),
        settings=settings,
        target={"device": "cpu", "isa": "x86-64-v3"},
        stamps={"aoti": {"torch": "2.13.0"}},
        plan={"steps": []},
        code="def forward(x):\n    return x",
        payloads=tuple(payload(raw, f"{number:016x}:1-8192", 4) for number, raw in enumerate(raws)),
        constants=(),
        build=BuildRecord("2026-11-30T14:02:00Z", 19.9, "0.1.0"),
    )


def publish(
    root: Path, model: str, raws: tuple[bytes, ...] = (b"piece",), *, secret: str = "", used_ns: int = 0
) -> str:
    """Put an entry into a store and give its key."""
    store = Store(root, clock=lambda: used_ns)
    manifest = manifest_of(model, raws, secret=secret)
    for raw in raws:
        store.put_object(raw)
    store.publish(manifest, write_mega(manifest, {sha256(raw).hexdigest(): raw for raw in raws}, {}))
    return manifest.key


def strict_schema(name: str) -> dict[str, Any]:
    """The schema of an answer, with every field that it does not name forbidden: what we write must be documented."""
    whole: dict[str, Any] = _closed(document(name))
    return whole


def _closed(node: Any) -> Any:
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    closed = {key: _closed(value) for key, value in node.items()}
    if isinstance(closed.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed
