"""How `precast inspect show` answers: one entry, from the store or from a mega file."""

import fnmatch
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from precast.cache.canonical import Json, sha256
from precast.cache.factors import GROUPS, Factor
from precast.cache.manifest import Manifest
from precast.cache.mega import read_mega_manifest
from precast.cache.records import SettingRecord
from precast.cache.sizes import format_size
from precast.cache.store import Store
from precast.cli.output import Column, Output
from precast.cli.precompile_view import payload_data, payload_text
from precast.cli.wording import counted, joined, short, target_text
from precast.errors import UsageError

__all__ = ["SECTIONS", "Shown", "find", "show_entry", "shown_data"]

SECTIONS = ("factors", "pieces", "settings", "code")
_SECRET_NAMES = ("*TOKEN*", "*SECRET*", "*PASSWORD*", "*KEY")


@dataclass(frozen=True, slots=True)
class Shown:
    """An entry to show.

    Attributes:
        manifest: What it is.
        source: `store` or `file`.
        missing: Its members that are absent, in words.
    """

    manifest: Manifest
    source: str
    missing: tuple[str, ...]


def find(root: Path, name: str) -> Shown:
    """Find what `inspect show` was asked for: a mega file, or an entry by its key or a prefix of it.

    Raises:
        NoEntryError: If no entry fits.
        CorruptError: If the manifest is damaged.
    """
    if name.endswith(".mega") or "/" in name:
        return Shown(read_mega_manifest(Path(name)), "file", ())
    store = Store(root, read_only=True)
    manifest = store.manifest(store.resolve_key(name))
    return Shown(manifest, "store", store.absent(manifest))


def shown_data(shown: Shown, *, code: bool) -> dict[str, Json]:
    """Give the `data` object; the stitched code is long, so it is there on request only."""
    manifest = shown.manifest
    build = manifest.build
    return {
        "source": shown.source,
        "key": manifest.key,
        "state": "damaged" if shown.missing else "ok",
        "missing": list(shown.missing),
        "model": manifest.model.json(),
        "target": manifest.target,
        "stamps": {kind: dict(stamp) for kind, stamp in manifest.stamps.items()},
        "factors": [*_factor_rows(manifest.factors)],
        "settings": [*_setting_rows(manifest.settings)],
        "payloads": [payload_data(payload) for payload in manifest.payloads],
        "constants": [constant.json() for constant in manifest.constants],
        "mega": manifest.mega.json() if manifest.mega else None,
        "build": {"created_at": build.created_at, "seconds": build.seconds, "precast": build.precast},
        "code": manifest.code if code else None,
    }


def show_entry(out: Output, shown: Shown, sections: Sequence[str]) -> None:
    """Show an entry to people: the summary, or the sections asked for.

    Raises:
        UsageError: If several sections are asked for as TSV, which holds one table.
    """
    if out.format == "tsv" and len(sections) > 1:
        raise UsageError(
            "TSV holds one table", f"asked for {', '.join(sections)}", "Ask for one of them, or use --json"
        )
    if not sections:
        out.pairs(_summary(shown))
    for section in sections:
        _show_section(out, shown.manifest, section)


def _show_section(out: Output, manifest: Manifest, section: str) -> None:
    if section == "code":
        out.text(manifest.code)
    elif section == "factors":
        out.table(
            [Column("group", "GROUP"), Column("name", "NAME"), Column("value", "VALUE")],
            _factor_rows(manifest.factors),
        )
    elif section == "settings":
        titles = ("name", "value", "origin", "lowered_from", "reason")
        out.table(
            [Column(key, key.upper().replace("_", " "), _text) for key in titles],
            _setting_rows(manifest.settings),
        )
    else:
        sizes = [
            Column("bytes", "SIZE", _size, right=True),
            Column("stored_bytes", "STORED", _size, right=True),
        ]
        texts = [Column(key, key.upper().replace("_", " ")) for key in ("kind", "range", "used_by", "seconds")]
        rows = [payload_data(payload) for payload in manifest.payloads]
        out.table([Column("name", "NAME", _digest), *texts, *sizes, Column("object", "OBJECT", _digest)], rows)


def _summary(shown: Shown) -> Iterable[tuple[str, str]]:
    manifest = shown.manifest
    groups = Counter(factor.group for factor in manifest.factors)
    yield "entry", f"{manifest.key}  state {'damaged' if shown.missing else 'ok'}"
    yield from (("", problem) for problem in shown.missing)
    yield "model", f"{manifest.model.name}  {manifest.model.reference}  weights not part of the key"
    yield "target", target_text(manifest.target)
    for kind, stamp in sorted(manifest.stamps.items()):
        yield "stamp", f"{kind}: {joined([f'{name} {value}' for name, value in stamp.items()])}"
    yield "factors", joined([f"{group} {groups[group]}" for group in GROUPS if groups[group]])
    for setting in manifest.settings:
        if setting.lowered_from is not None:
            yield "lowered", f"{setting.name}  {setting.lowered_from} → {setting.value}  {setting.reason}"
    for number, payload in enumerate(manifest.payloads):
        yield ("" if number else "pieces"), payload_text(payload)
    if manifest.mega:
        constants = counted(len(manifest.constants), "constant") if manifest.constants else ""
        yield "mega", joined([format_size(manifest.mega.bytes), constants])
    build = manifest.build
    yield "built", f"{build.created_at}  in {build.seconds:.1f} s by precast {build.precast}"


def _factor_rows(factors: Iterable[Factor]) -> list[dict[str, Json]]:
    return [{"group": f.group, "name": f.name, "value": _public(f)} for f in factors]


def _public(factor: Factor) -> Json:
    """Give a factor's value, or a short hash of it where its name says that it is a secret."""
    name = factor.name.upper()
    if factor.group == "env" and any(fnmatch.fnmatchcase(name, pattern) for pattern in _SECRET_NAMES):
        return f"sha256:{sha256(str(factor.value).encode())[:12]}"
    value: Json = factor.value
    return value


def _setting_rows(settings: Iterable[SettingRecord]) -> list[dict[str, Json]]:
    return [setting.json() for setting in settings]


def _digest(value: Json) -> str:
    name, colon, span = str(value).partition(":")
    return f"{short(name)}{colon}{span}"


def _size(value: Json) -> str:
    return format_size(value) if isinstance(value, int) else ""


def _text(value: Json) -> str:
    return "" if value is None else str(value)
