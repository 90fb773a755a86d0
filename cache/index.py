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
from precast.cache.rows import MALFORMED, Rows, Stamps, signature
from precast.cache.store import Store
from precast.cache.tags import all_tags

__all__ = ["WEIGHTS", "Near", "SummaryRow", "nearest", "summaries"]

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


def summaries(store: Store) -> tuple[SummaryRow, ...]:
    """List all entries, sorted by key; one bad entry never stops the listing.

    States are those of `Store.entries`, except that of a manifest only the digest is checked.

    Args:
        store: The store. Unless it is read-only, the index in it is brought up to date.
    """
    try:
        return _summaries(store, fresh=False)
    except MALFORMED:
        return _summaries(store, fresh=True)


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


def _summaries(store: Store, *, fresh: bool) -> tuple[SummaryRow, ...]:
    rows = Rows(store, "index-summary", _summary_row, fresh=fresh)
    stamps = Stamps(store, rows.extra.get("stamps"))
    present = _object_names(store.layout.objects)
    tags: dict[str, tuple[str, ...]] = {}
    for name, key in all_tags(store).items():
        tags[key] = (*tags.get(key, ()), name)
    found = tuple(
        _summary(store, key, row, size, present, stamps.last_used(key), tags.get(key, ()))
        for key, size, row in rows.rows()
    )
    rows.save({"stamps": stamps.known}, force=stamps.are_stale)
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
    store: Store,
    key: str,
    row: list[Any],
    manifest_bytes: int,
    present: frozenset[str],
    last_used_ns: int | None,
    tags: tuple[str, ...],
) -> SummaryRow:
    mega_bytes = _size(f"{store.layout.entries}/{key}/model.mega")
    folder = manifest_bytes + (mega_bytes or 0)
    if row[0] != OK:
        return SummaryRow(
            key, row[0], row[1], None, None, {}, None, (), 0, 0, mega_bytes is not None, folder, {}, None,
            last_used_ns, tags,
        )  # fmt: skip
    _, model, reference, target, torch, kinds, pieces, payloads, mega, objects, created_at = row
    absent = [f"object {name}… is missing" for name in objects if name not in present]
    if mega is not None and mega_bytes != mega:
        absent.append(
            "model.mega is missing" if mega_bytes is None else f"model.mega has {mega_bytes} bytes instead of {mega}"
        )
    return SummaryRow(
        key, DAMAGED if absent else OK, "; ".join(absent), model, reference, target, torch, tuple(kinds), pieces,
        payloads, mega is not None, folder, objects, created_at, last_used_ns, tags,
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
