"""How `precast inspect show` answers: one entry, from the store or from a mega file."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from precast.cache.canonical import Json
from precast.cache.factors import GROUPS, Factor
from precast.cache.manifest import Manifest
from precast.cache.masking import public_value
from precast.cache.mega import MegaFile
from precast.cache.paths import PathSearch, search_paths
from precast.cache.records import SettingRecord
from precast.cache.signatures import INVALID, UNCHECKED, UNKNOWN, UNSIGNED, VALID, Judged, Signatures, judge
from precast.cache.signing import signatures_in, stored_signatures
from precast.cache.sizes import format_size
from precast.cache.store import Store
from precast.cache.tags import all_tags, resolve_entry
from precast.cache.variables import rule_for_variable
from precast.cli.output import Column, Output
from precast.cli.precompile_view import payload_data, payload_text
from precast.cli.wording import counted, joined, short, target_text
from precast.errors import NoEntryError, StoreAccessError, UsageError

__all__ = ["SECTIONS", "Shown", "find", "show_entry", "shown_data"]

_VERDICTS = {
    VALID: VALID,
    INVALID: "INVALID: it does not fit the content",
    UNKNOWN: "unknown algorithm",
    UNCHECKED: "not checked: `cryptography` is not installed",
}

SECTIONS = ("factors", "ignored", "pieces", "settings", "plan", "code")


@dataclass(frozen=True, slots=True)
class Shown:
    """An entry to show.

    Attributes:
        manifest: What it is.
        source: `store` or `file`.
        missing: Its members that are absent, in words.
        tags: Its tags.
        signatures: Who signed it.
        paths: Absolute paths that it holds, which it must not.
    """

    manifest: Manifest
    source: str
    missing: tuple[str, ...]
    tags: tuple[str, ...] = ()
    signatures: Signatures = UNSIGNED
    paths: PathSearch = PathSearch(problem="only the manifest is at hand")  # noqa: RUF009 - frozen


def find(root: Callable[[], Path], name: str) -> Shown:
    """Find what `inspect show` was asked for.

    Args:
        root: Finds the store; a file needs none.
        name: A key or a prefix of one, a tag, `ROOT@KEY`, a mega file, a manifest, or an entry's folder.

    Raises:
        NoEntryError: If no entry fits.
        CorruptError: If the manifest is damaged.
    """
    other, at, key = name.rpartition("@")
    if at and other:
        return _stored(Store(Path(other).expanduser(), read_only=True), key)
    path = Path(name)
    folder_manifest = path / "manifest.json"
    if folder_manifest.is_file() or path.suffix == ".json":
        file = folder_manifest if path.is_dir() else path
        return Shown(_read_manifest(file), "file", (), signatures=signatures_in(file.parent))
    if path.suffix == ".mega" or "/" in name or path.is_file():
        mega = MegaFile(path)
        held = search_paths(mega.manifest, lambda name, _: mega.payload(name))
        return Shown(mega.manifest, "file", (), (), mega.signatures, held)
    return _stored(Store(root(), read_only=True), name)


def _stored(store: Store, name: str) -> Shown:
    manifest = store.manifest(resolve_entry(store, name))
    named = tuple(tag for tag, key in all_tags(store).items() if key == manifest.key)
    signed, held = stored_signatures(store, manifest.key), search_paths(manifest, store.read_object)
    return Shown(manifest, "store", store.absent(manifest), named, signed, held)


def _read_manifest(path: Path) -> Manifest:
    try:
        return Manifest.from_json(path.read_bytes())
    except FileNotFoundError as error:
        raise NoEntryError(f"There is no manifest {path}", hint="Name an entry's folder or its file") from error
    except OSError as error:
        raise StoreAccessError(f"{path} cannot be read", error.strerror or "", path=str(path)) from error


def shown_data(shown: Shown, sections: Sequence[str], groups: Sequence[str] = ()) -> dict[str, Json]:
    """Give the `data` object; the plan and the stitched code are long, so they are there on request only.

    Args:
        shown: The entry.
        sections: What was asked for.
        groups: The groups of factors wanted; none means all.
    """
    manifest = shown.manifest
    build = manifest.build
    return {
        "source": shown.source,
        "key": manifest.key,
        "content_digest": manifest.content_digest,
        "signatures": [{"id": j.id, "algorithm": j.algorithm, "verdict": j.verdict} for j in _judged(shown)],
        "state": "damaged" if shown.missing else "ok",
        "missing": list(shown.missing),
        "tags": list(shown.tags),
        "model": {**manifest.model.json(), "config": public_value("config", "model.config", manifest.model.config)},
        "target": manifest.target,
        "stamps": {kind: dict(stamp) for kind, stamp in manifest.stamps.items()},
        "factors": [*_factor_rows(manifest.factors, groups)],
        "ignored": [*_ignored_rows(manifest.ignored)],
        "settings": [*_setting_rows(manifest.settings)],
        "payloads": [payload_data(payload) for payload in manifest.payloads],
        "constants": [constant.json() for constant in manifest.constants],
        "mega": manifest.mega.json() if manifest.mega else None,
        "absolute_paths": shown.paths.json(),
        "build": {"created_at": build.created_at, "seconds": build.seconds, "precast": build.precast},
        "sources": manifest.sources.json() if manifest.sources else None,
        "plan": manifest.plan if "plan" in sections else None,
        "code": manifest.code if "code" in sections else None,
    }


def show_entry(out: Output, shown: Shown, sections: Sequence[str], groups: Sequence[str] = ()) -> None:
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
        _show_section(out, shown.manifest, section, groups)


def _show_section(out: Output, manifest: Manifest, section: str, groups: Sequence[str]) -> None:
    if section == "code":
        out.text(manifest.code)
    elif section == "plan":
        out.text(json.dumps(manifest.plan, indent=2))
    elif section == "ignored":
        out.table([Column("name", "NAME"), Column("reason", "REASON")], _ignored_rows(manifest.ignored))
    elif section == "factors":
        out.table(
            [Column("group", "GROUP"), Column("name", "NAME"), Column("value", "VALUE")],
            _factor_rows(manifest.factors, groups),
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
    yield "content", manifest.content_digest
    yield from _signed(shown)
    if shown.tags:
        yield "tags", ", ".join(shown.tags)
    yield from (("", problem) for problem in shown.missing)
    yield "model", f"{manifest.model.name}  {manifest.model.reference}  weights not part of the key"
    yield "target", target_text(manifest.target)
    for kind, stamp in sorted(manifest.stamps.items()):
        yield "stamp", f"{kind}: {joined([f'{name} {value}' for name, value in stamp.items()])}"
    yield "factors", joined([f"{group} {groups[group]}" for group in GROUPS if groups[group]])
    if manifest.ignored:
        yield "ignored", f"{counted(len(manifest.ignored), 'variable')}: {', '.join(manifest.ignored)}"
    for setting in manifest.settings:
        for step in setting.lowerings:
            yield "lowered", f"{setting.name}  {step.before} → {step.after}  {step.reason}"
    for number, payload in enumerate(manifest.payloads):
        yield ("" if number else "pieces"), payload_text(payload)
    if manifest.mega:
        constants = counted(len(manifest.constants), "constant") if manifest.constants else ""
        yield "mega", joined([format_size(manifest.mega.bytes), constants])
    yield "paths", f"absolute paths  {_paths(shown.paths)}"
    build = manifest.build
    yield "built", f"{build.created_at}  in {build.seconds:.1f} s by precast {build.precast}"


def _paths(search: PathSearch) -> str:
    if search.problem:
        return f"not searched: {search.problem}"
    return "; ".join(f"{held.path} in {_member(held.member)}" for held in search.found) or "none"


def _judged(shown: Shown) -> tuple[Judged, ...]:
    return judge(shown.manifest, shown.signatures)


def _signed(shown: Shown) -> Iterable[tuple[str, str]]:
    for number, judged in enumerate(_judged(shown)):
        yield ("" if number else "signed"), f"by {judged.id}  {_VERDICTS[judged.verdict]}"
    if shown.signatures.damage:
        yield "signed", f"damaged: {shown.signatures.damage}"
    if shown.signatures.unread:
        yield "signed", f"in a way that this version does not read: {shown.signatures.unread}"


def _factor_rows(factors: Iterable[Factor], groups: Sequence[str]) -> list[dict[str, Json]]:
    return [
        {"group": factor.group, "name": factor.name, "value": public_value(factor.group, factor.name, factor.value)}
        for factor in factors
        if not groups or factor.group in groups
    ]


def _ignored_rows(names: Iterable[str]) -> list[dict[str, Json]]:
    rules = [(name, rule_for_variable(name)) for name in names]
    return [{"name": name, "reason": rule[0].reason if rule else ""} for name, rule in rules]


def _setting_rows(settings: Iterable[SettingRecord]) -> list[dict[str, Json]]:
    return [
        {
            **setting.json(),
            "value": public_value("config", setting.name, setting.value),
            "lowered_from": public_value("config", setting.name, setting.lowered_from),
            "steps": [
                {
                    "from": public_value("config", setting.name, step.before),
                    "to": public_value("config", setting.name, step.after),
                    "reason": step.reason,
                }
                for step in setting.lowerings
            ],
        }
        for setting in settings
    ]


def _digest(value: Json) -> str:
    name, colon, span = str(value).partition(":")
    return f"{short(name)}{colon}{span}"


def _member(text: str) -> str:
    kind, space, name = text.partition(" ")
    return f"{kind}{space}{short(name)}"


def _size(value: Json) -> str:
    return format_size(value) if isinstance(value, int) else ""


def _text(value: Json) -> str:
    return "" if value is None else str(value)
