"""Small but complete entries for tests of the cache."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from precast.aot.reference import parse_reference
from precast.aot.request import compile_input
from precast.aot.settings import resolve_settings
from precast.cache.canonical import Json, canonical_json, sha256
from precast.cache.container import RawTensor
from precast.cache.factors import Factor, entry_key
from precast.cache.manifest import (
    BuildRecord,
    ConstantRecord,
    Manifest,
    ModelRecord,
    PayloadRecord,
    SettingRecord,
    SourcesRecord,
)
from precast.cache.mega import write_mega
from precast.cache.store import Store

PAYLOADS = (b"first payload " * 40, b"second payload " * 40)
CONSTANTS: Mapping[str, RawTensor] = {"scale": ("float32", (2,), b"\0\0\x80?\0\0\0@"), "flag": ("bool", (), b"\1")}

FACTORS = (
    Factor("env", "TORCHINDUCTOR_MAX_AUTOTUNE", "1"),
    Factor("config", "settings.payload", "aoti"),
    Factor("config", "model.layers", 4),
    Factor("config", "model.eps", 1e-06),
    Factor("compiler", "torch", "2.13.0"),
    Factor("graph", "graph", "ab" * 32),
)


@cache
def _machine_factors() -> tuple[Factor, ...]:
    settings = resolve_settings({"target": "x86-64-v3", "payload": "aoti"}, {})
    return compile_input((), settings, {}).request.factors


def request_factors(model: str, overrides: Mapping[str, Json] | None = None) -> tuple[Factor, ...]:
    """The factors of a real request for MODEL on a machine without variables; nothing is imported for it."""
    return (*_machine_factors(), *parse_reference(model).factors(overrides or {}))


class Clock:
    """A clock that only goes when it is told to."""

    def __init__(self, now: int = 1_800_000_000 * 10**9) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * 10**9)


def payload_record(raw: bytes, index: int = 0, used_by: int = 1) -> PayloadRecord:
    return PayloadRecord(
        name=f"{index:016x}:1-8192",
        kind="aoti",
        object=sha256(raw),
        bytes=len(raw),
        stored_bytes=len(raw) // 2,
        seconds=1.25,
        range=(1, 8192),
        used_by=used_by,
    )


def make_manifest(
    payloads: tuple[bytes, ...] = PAYLOADS,
    constants: Mapping[str, RawTensor] = CONSTANTS,
    factors: tuple[Factor, ...] = FACTORS,
    version: str = "0.1.0",
) -> Manifest:
    return Manifest(
        key=entry_key(factors),
        model=ModelRecord("tiny", "shop.model:tiny", {"layers": 4, "eps": 1e-06}),
        factors=factors,
        settings=(
            SettingRecord("payload", "aoti", "default"),
            SettingRecord("level", "O2", "flag", "O3", "O3 needs a GPU"),
        ),
        target={"device": "cpu", "isa": "x86-64-v3"},
        stamps={"aoti": {"torch": "2.13.0", "isa": "x86-64-v3"}},
        plan={"steps": [{"piece": 0}, {"op": "shop::attention"}]},
        code="def run(x):\n    return piece_0(x)\n",
        payloads=tuple(payload_record(raw, index) for index, raw in enumerate(payloads)),
        constants=tuple(
            ConstantRecord(name, dtype, shape, sha256(data)) for name, (dtype, shape, data) in constants.items()
        ),
        build=BuildRecord("2026-11-30T18:00:00Z", 12.5, version),
    )


def numbered(number: int, payloads: tuple[bytes, ...] | None = None, version: str = "0.1.0") -> Manifest:
    """A manifest with a key of its own; without payloads given, with a payload of its own."""
    factors = (*FACTORS, Factor("config", "model.number", number))
    own = (f"payload {number} ".encode() * 50,) if payloads is None else payloads
    return make_manifest(own, {}, factors, version)


def publish(store: Store, manifest: Manifest, payloads: tuple[bytes, ...]) -> str:
    for raw in payloads:
        store.put_object(raw)
    constants = {record.name: CONSTANTS[record.name] for record in manifest.constants}
    store.publish(manifest, write_mega(manifest, {sha256(raw): raw for raw in payloads}, constants))
    return manifest.key


def publish_numbered(store: Store, number: int, version: str = "0.1.0") -> str:
    return publish(store, numbered(number, version=version), (f"payload {number} ".encode() * 50,))


def with_factor(factor: Factor) -> tuple[Factor, ...]:
    return (*FACTORS, factor)


def files_below(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def damage(path: Path, how: Callable[[bytes], bytes]) -> None:
    path.write_bytes(how(path.read_bytes()))


def flip(position: int) -> Callable[[bytes], bytes]:
    """Flip every bit of one byte; the position may be a fraction of the file in thousandths."""

    def flipped(data: bytes) -> bytes:
        at = position * len(data) // 1000
        return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]

    return flipped


def renamed(manifest: Manifest, key: str) -> Manifest:
    return replace(manifest, key=key)


def with_sources(manifest: Manifest, sources: Mapping[str, str] | bytes) -> tuple[Manifest, bytes]:
    """A manifest that names some sources, and their raw bytes."""
    raw = sources if isinstance(sources, bytes) else canonical_json(dict(sources))
    return replace(manifest, sources=SourcesRecord(sha256(raw), len(raw), len(raw) // 2)), raw


def publish_sources(store: Store, manifest: Manifest, sources: Mapping[str, str] | bytes) -> str:
    """Publish an entry with `PAYLOADS` and with sources."""
    named, raw = with_sources(manifest, sources)
    return publish(store, named, (*PAYLOADS, raw))
