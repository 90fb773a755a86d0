"""The index of the entries: what a listing shows and what a ranking compares, without reading every manifest again.

It is never the truth. Each row holds for as long as its manifest's size, time of change and inode stay; anything else
is read anew, and a lost or damaged index costs time only. It is written where the root can be written; elsewhere the
rows live as long as the call.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast.cache.canonical import Json
from precast.cache.entries import DAMAGED, OK
from precast.cache.factors import Factor
from precast.cache.fingerprints import FactTable, Question, decoded_facts
from precast.cache.rows import MALFORMED, Rows, Seen, Stamps, signature
from precast.cache.store import Store
from precast.cache.tags import all_tags

__all__ = ["WEIGHTS", "Look", "Near", "SummaryRow", "nearest", "summaries"]

# What a difference in a group says about how much of an entry is another: the graph is another model.
WEIGHTS: Mapping[str, int] = {"graph": 16, "code": 8, "compiler": 4, "config": 2, "env": 1}

_SHORT = 16
_SPARE_FACTS = 1000


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """One entry as a listing shows it.

    Attributes:
        key: The entry's key.
        state: `ok`, `damaged` or `unreadable`, as of `EntrySummary`.
        reason: Why it is not `ok`, or empty.
        model: What people call the model; None where the manifest is unreadable, as all that follows.
        reference: How the model was named.
        target: What the code was generated for.
        torch: Version of torch in the stamps.
        precast: Version of precast that built it.
        kinds: Kinds of its payloads.
        pieces: How many unique pieces it has.
        payloads: How many payloads it has.
        mega: Whether it has a mega artifact.
        folder_bytes: Size of the files in its folder.
        objects: Stored bytes of each object that it names, by the first 16 digits of the object's SHA-256.
        created_at: When it was built, RFC 3339 in UTC.
        last_used_ns: Its last use, in nanoseconds since the epoch, or None where no stamp tells.
        tags: Its tags, sorted.
    """

    key: str
    state: str
    reason: str
    model: str | None
    reference: str | None
    target: Mapping[str, Json]
    torch: str | None
    precast: str | None
    kinds: tuple[str, ...]
    pieces: int
    payloads: int
    mega: bool
    folder_bytes: int
    objects: Mapping[str, int]
    created_at: str | None
    last_used_ns: int | None
    tags: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Size of the entry's folder and of every object that it names, also those that other entries share."""
        return self.folder_bytes + sum(self.objects.values())


@dataclass(frozen=True, slots=True)
class Look:
    """What somebody has seen of a store who looked at all its folders.

    Attributes:
        entries: What lies in the folder of each entry, by key; None where nobody looked.
        stamps: When the stamp of each key was written, in nanoseconds since the epoch; None where nobody looked.
    """

    entries: Mapping[str, Seen] | None = None
    stamps: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Near:
    """A stored entry near to a request.

    Attributes:
        key: The entry's key.
        differing: How many factors differ, by group; groups without a difference are left out.
        shared: How many factors are the same.
        weight: The differing factors by `WEIGHTS`.
        of_model: Whether it is an entry of the model that was asked for; True where none was.
    """

    key: str
    differing: Mapping[str, int]
    shared: int
    weight: int
    of_model: bool = True


def summaries(store: Store, *, worth: int = 1, look: Look | None = None) -> tuple[SummaryRow, ...]:
    """List all entries, sorted by key; one bad entry never stops the listing.

    States are those of `Store.entries`, except that of a manifest only the digest is checked.

    Args:
        store: The store. Unless it is read-only, the index in it is brought up to date.
        worth: How many entries must have changed for that.
        look: What somebody has just seen, which spares looking again.
    """
    try:
        return _summaries(store, worth, look or Look(), fresh=False)
    except MALFORMED:
        return _summaries(store, worth, look or Look(), fresh=True)


def nearest(store: Store, factors: Iterable[Factor], limit: int = 3, model: str | None = None) -> tuple[Near, ...]:
    """Rank the stored entries by how little differs from some factors, the nearest first.

    Entries of the same model come first, then those with fewer factors that differ, then by weight, then by last use.
    Entries that cannot be read are left out.

    Args:
        store: The store. Unless it is read-only, the index in it is brought up to date.
        factors: The factors of a request or of an entry.
        limit: How many entries are returned at most.
        model: The model's name or reference, or None for any.
    """
    question = Question.of(factors)
    try:
        found = _ranked(store, question, model, fresh=False)
    except MALFORMED:
        found = _ranked(store, question, model, fresh=True)
    if not found or limit < 1:
        return ()
    found.sort(key=_rank)
    # Last uses are read for those only that they can decide about.
    last = _rank(found[:limit][-1])
    close = [near for near in found if _rank(near) <= last]
    close.sort(key=lambda near: (*_rank(near), -(store.last_used(near.key) or 0), near.key))
    return tuple(close[:limit])


def _summaries(store: Store, worth: int, look: Look, *, fresh: bool) -> tuple[SummaryRow, ...]:
    rows = Rows(store, "index-summary", _summary_row, skims=True, fresh=fresh)
    stamps = Stamps(store, rows.extra.get("stamps"), look.stamps)
    listed = list(rows.rows(look.entries))
    # After the entries: an entry appears when all its objects are there.
    present = _object_names(store.layout.objects)
    tags: dict[str, tuple[str, ...]] = {}
    for name, key in all_tags(store).items():
        tags[key] = (*tags.get(key, ()), name)
    folder = str(store.layout.entries)
    seen = look.entries
    megas = (_size(f"{folder}/{key}/model.mega") if seen is None else seen[key].mega_bytes for key, _, _ in listed)
    found = tuple(
        _summary(key, row, size, mega_bytes, present, stamps.last_used(key), tags.get(key, ()))
        for (key, size, row), mega_bytes in zip(listed, megas, strict=True)
    )
    rows.save({"stamps": stamps.known}, force=stamps.are_stale, worth=worth)
    return found


def _ranked(store: Store, question: Question, model: str | None, *, fresh: bool) -> list[Near]:
    """Measure every readable entry; entries are kept as numbers of a table of facts."""
    rows = Rows(store, "index-factors", lambda document: _factor_row(document, table), fresh=fresh)
    table = FactTable(rows.extra.get("facts", ()))
    entries = [(key, row) for key, _, row in rows.rows() if row[0] == OK]
    mine = {fact[0]: table.known(fact) for fact in question.facts.items()}
    found = [_near(question, mine, table, key, row, model) for key, row in entries]
    if rows.changed and not fresh and _is_crowded(table, entries):
        return _ranked(store, question, model, fresh=True)
    rows.save({"facts": table.facts})
    return found


def _is_crowded(table: FactTable, entries: list[tuple[str, list[Any]]]) -> bool:
    """Tell whether most facts of a table belong to entries that are gone."""
    used: set[int] = set()
    used.update(*(row[3] for _, row in entries))
    return len(table.facts) > 2 * len(used) + _SPARE_FACTS


def _summary_row(document: dict[str, Any]) -> list[Any]:
    payloads = document["payloads"]
    objects = {item["object"]: item["stored_bytes"] for item in payloads}
    if isinstance(sources := document.get("sources"), dict):
        objects[sources["object"]] = sources["stored_bytes"]
    mega = document["mega"]
    return [
        OK,
        document["model"]["name"],
        document["model"]["reference"],
        document["target"],
        next((stamp["torch"] for stamp in document["stamps"].values() if "torch" in stamp), None),
        document["build"]["precast"],
        sorted({item["kind"] for item in payloads}),
        len({item["name"].partition(":")[0] for item in payloads}),
        len(payloads),
        None if mega is None else mega["bytes"],
        {name[:_SHORT]: size for name, size in objects.items()},
        document["build"]["created_at"],
    ]


def _factor_row(document: dict[str, Any], table: FactTable) -> list[Any]:
    model = document["model"]
    return [OK, model["name"], model["reference"], [table.number(fact) for fact in decoded_facts(document)]]


def _summary(
    key: str,
    row: list[Any],
    manifest_bytes: int,
    mega_bytes: int | None,
    present: frozenset[str],
    last_used_ns: int | None,
    tags: tuple[str, ...],
) -> SummaryRow:
    folder_bytes = manifest_bytes + (mega_bytes or 0)
    if row[0] != OK:
        return SummaryRow(
            key, row[0], row[1], None, None, {}, None, None, (), 0, 0, mega_bytes is not None, folder_bytes, {}, None,
            last_used_ns, tags,
        )  # fmt: skip
    _, model, reference, target, torch, precast, kinds, pieces, payloads, mega, objects, created_at = row
    absent = [f"object {name}… is missing" for name in objects if name not in present]
    if mega is not None and mega_bytes != mega:
        absent.append(
            "model.mega is missing" if mega_bytes is None else f"model.mega has {mega_bytes} bytes instead of {mega}"
        )
    return SummaryRow(
        key, DAMAGED if absent else OK, "; ".join(absent), model, reference, target, torch, precast,
        tuple(kinds), pieces, payloads, mega is not None, folder_bytes, objects, created_at, last_used_ns, tags,
    )  # fmt: skip


def _near(
    question: Question, mine: Mapping[str, int | None], table: FactTable, key: str, row: list[Any], model: str | None
) -> Near:
    _, name, reference, numbers = row
    own = set(numbers)
    others = dict(table.facts[number] for number in own.difference(mine.values()))
    groups = question.differing(others, [label for label, number in mine.items() if number not in own])
    differing = {group: groups.count(group) for group in WEIGHTS if group in groups}
    weight = sum(WEIGHTS.get(group, 0) for group in groups)
    of_model = model is None or model == name or _model_name(model) == _model_name(reference)
    return Near(key, differing, len(own) - len(others), weight, of_model)


def _rank(near: Near) -> tuple[bool, int, int]:
    return not near.of_model, sum(near.differing.values()), near.weight


def _model_name(reference: str) -> str:
    """Return what two ways to name one factory have in common: `shop/model.py:tiny` and `shop.model:tiny`."""
    module, colon, factory = reference.partition(":")
    return f"{module.removesuffix('.py').replace('/', '.').rpartition('.')[2]}{colon}{factory}"


def _object_names(folder: Path) -> frozenset[str]:
    """Return the first digits of the names of all objects."""
    names: set[str] = set()
    with suppress(OSError), os.scandir(folder) as shards:
        for shard in shards:
            with suppress(OSError), os.scandir(shard.path) as found:
                names.update(item.name[:_SHORT] for item in found if item.name.endswith(".zst"))
    return frozenset(names)


def _size(path: str) -> int | None:
    found = signature(path)
    return None if found is None else found[0]
