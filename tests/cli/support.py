"""What the tests of the command line share: a runner, and entries to look at."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from precast.aot.settings import Settings
from precast.cache.canonical import Json, canonical_json
from precast.cache.factors import Factor, entry_key
from precast.cache.manifest import (
    BuildRecord,
    Manifest,
    ModelRecord,
    PayloadRecord,
    SettingRecord,
    SourcesRecord,
)
from precast.cache.mega import write_mega
from precast.cache.repair import Mended
from precast.cache.store import Store
from precast.cache.tags import set_tag
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
    phases: dict[str, float] = field(default_factory=dict)


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
    remote: str = ""
    pulled_bytes: int = 0
    pushed_bytes: int = 0
    signed_by: tuple[str, ...] = ()
    repaired: tuple[Mended, ...] = ()


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


FACTORS: dict[str, Json] = {
    "env/TORCHINDUCTOR_FREEZING": "0",
    "config/settings.max_num_batched_tokens": 4096,
    "config/model.layers": 4,
    "compiler/torch": {"version": "2.13.0", "digest": "aa" * 32},
    "graph/graph": "77" * 32,
}


def factor_of(label: str, value: Json) -> Factor:
    """Make a factor of a label such as `env/CFLAGS`."""
    group, _, name = label.partition("/")
    return Factor(group, name, value)


def put_entry(
    root: Path,
    changed: Mapping[str, Json] | None = None,
    *,
    source: str = "",
    ignored: tuple[str, ...] = (),
    settings: tuple[SettingRecord, ...] = (),
    tag: str = "",
    config: dict[str, Json] | None = None,
    seconds: float = 19.9,
) -> str:
    """Put an entry with factors by label into a store; a factor that is changed to null is left out.

    Args:
        root: The store.
        changed: What differs from `FACTORS`.
        source: Text of its one module, `shop.model`, which is then stored.
        ignored: Variables that did not count.
        settings: The settings as they were resolved.
        tag: A tag to give it.
        config: The values that the model's factory was given.
        seconds: How long the build took.
    """
    labels = {**FACTORS, **(changed or {})}
    if source:
        labels["code/module:shop.model"] = sha256(source.encode()).hexdigest()
    factors = tuple(factor_of(label, value) for label, value in labels.items() if value is not None)
    texts = canonical_json({"shop.model": source})
    store = Store(root)
    kept = store.put_object(texts)
    store.put_object(b"piece")
    manifest = replace(
        manifest_of("tiny"),
        key=entry_key(factors),
        factors=factors,
        model=ModelRecord("tiny", "m.py:build", config or {}),
        build=BuildRecord("2026-11-30T14:02:00Z", seconds, "0.1.0"),
        settings=settings,
        ignored=ignored,
        sources=SourcesRecord(kept.sha256, kept.bytes, kept.stored_bytes) if source else None,
    )
    raws = {sha256(raw).hexdigest(): raw for raw in (b"piece", *([texts] if source else []))}
    store.publish(manifest, write_mega(manifest, raws, {}))
    if tag:
        set_tag(store, tag, manifest.key)
    return manifest.key


def outside_fences(text: str) -> list[str]:
    """The lines of a log in which GitHub's runner still looks for commands, the fences themselves left out."""
    kept, end = [], ""
    for line in text.splitlines():
        if end:
            end = "" if line == end else end
        elif line.startswith("::stop-commands::"):
            end = f"::{line.removeprefix('::stop-commands::')}::"
        else:
            kept.append(line)
    assert not end, "a fence is left open"
    return kept


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
