"""Explanations: a hit, or why there is none, measured against the nearest entry, and how to get back to a hit.

Everything is told from what is stored and from the request: no trace, no torch, no weights, no GPU of the target.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from precast.cache.advice import advise
from precast.cache.canonical import Json
from precast.cache.diff import Diff, Side, diff_sides, shown_value
from precast.cache.factors import Factor
from precast.cache.index import Near, nearest
from precast.cache.lookup import Lookup, MissReason
from precast.cache.masking import public_value
from precast.cache.side import entry_side
from precast.cache.store import Store
from precast.errors import PrecastError

__all__ = ["HIT", "MISS", "Explanation", "explain"]

HIT, MISS = "hit", "miss"

_CHANGED, _MISSING, _NONE = "factor_changed", "artifact_missing", "no_entry_for_model"
_REMOTE = "remote_unreachable"
_NO_FAULT = (_CHANGED, _NONE, _REMOTE)  # of a stored entry
_MANIFEST = "manifest.json"
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request is a hit or a miss.

    Attributes:
        status: `hit` or `miss`.
        key: The entry's key for a hit; empty for a miss, whose key only a trace could tell.
        request_factors: The factors of the request, secrets masked.
        nearest: The entry that the request was measured against, or None.
        diff: What differs, from that entry to the request.
        reasons: Why there is no hit: what is wrong with stored entries first, then each changed factor.
        advice: What to do, one line each: how to get back to that entry, and what else helps.
    """

    status: str
    key: str
    request_factors: tuple[Factor, ...]
    nearest: Near | None
    diff: Diff | None
    reasons: tuple[MissReason, ...]
    advice: tuple[str, ...]


def explain(
    store: Store,
    live: Side,
    lookup: Lookup,
    *,
    against: str | None = None,
    model: str | None = None,
    exclusions: Mapping[str, str] | None = None,
) -> Explanation:
    """Explain the answer to a request.

    Args:
        store: The store.
        live: The request's side.
        lookup: The answer.
        against: The key, a prefix of it or the tag of the entry to measure against; by default the nearest one.
        model: The model's name or reference; by default the factory that the request names.
        exclusions: Why each setting that is no part of a key is none, by its name.

    Raises:
        NoEntryError: `against` names no entry.
        PrecastError: The entry that `against` names cannot be read.
    """
    factors = tuple(replace(item, value=public_value(item.group, item.name, item.value)) for item in live.factors)
    if lookup.hit is not None and against is None:
        return Explanation(HIT, lookup.hit.key, factors, None, None, (), ())
    near, entry = _measure(store, live, against, model or _factory(live))
    diff = None if near is None or entry is None else diff_sides(entry, _completed(live, lookup, entry), exclusions)
    if lookup.hit is not None:
        return Explanation(HIT, lookup.hit.key, factors, near, diff, (), ())
    reasons = tuple(_reasons(lookup, near, diff))
    return Explanation(MISS, "", factors, near, diff, reasons, tuple(_advice(reasons, near, diff)))


def _measure(store: Store, live: Side, against: str | None, model: str | None) -> tuple[Near | None, Side | None]:
    """Return the entry to measure against; the nearest one that can be read, where none is named."""
    if against is not None:
        entry = entry_side(against, store)
        found = nearest(store, live.factors, sys.maxsize, model)
        return next((near for near in found if near.key == entry.key), None), entry
    for near in nearest(store, live.factors, _TRIES, model):
        try:
            return near, entry_side(near.key, store)
        except PrecastError:
            continue
    return None, None


def _factory(live: Side) -> str | None:
    """Return the factory that the request names; None for a model folder, whose config does not say what it is."""
    named = live.values().get(("config", "model.factory"))
    return named if isinstance(named, str) else None


def _completed(live: Side, lookup: Lookup, entry: Side) -> Side:
    """Add to the request what the lookup found out about an entry's code and variables, if it looked at that entry."""
    about = [reason for reason in lookup.reasons if reason.entry == entry.key]
    changed = {reason.factor: reason.b for reason in about if reason.code == _CHANGED}
    looked_at = changed or any(reason.code == _MISSING and reason.factor != _MANIFEST for reason in about)
    known = {factor.label for factor in live.factors}
    found = {
        factor.label: changed.get(factor.label, factor.value)
        for factor in entry.factors
        if looked_at and factor.group in ("env", "code") and factor.label not in known
    }
    return replace(live, factors=(*live.factors, *(_factor(label, value) for label, value in found.items())))


def _factor(label: str, value: Json) -> Factor:
    group, _, name = label.partition("/")
    return Factor(group, name, value)


def _reasons(lookup: Lookup, near: Near | None, diff: Diff | None) -> Iterator[MissReason]:
    stored = [reason for reason in lookup.reasons if reason.code not in _NO_FAULT]
    yield from (reason for reason in lookup.reasons if reason.code == _REMOTE)
    yield from (_masked(reason) for reason in stored)
    if near is None or diff is None or not near.of_model:
        yield MissReason(_NONE)
    elif diff.breaking:
        for change in diff.breaking:
            yield MissReason(_CHANGED, near.key, change.label, change.a, change.b)
    elif not stored:
        # All that can be told is equal, but nothing remembers that this entry answers this request.
        yield MissReason(_NONE, near.key)


def _masked(reason: MissReason) -> MissReason:
    group, _, name = reason.factor.partition("/")
    return replace(reason, a=shown_value(group, name, reason.a), b=shown_value(group, name, reason.b))


def _advice(reasons: tuple[MissReason, ...], near: Near | None, diff: Diff | None) -> Iterator[str]:
    for reason in reasons:
        if reason.code == _REMOTE:
            yield f"Make {reason.b} reachable: it may have an entry for this request"
        elif reason.code == "format_too_new":
            yield f"Update precast: entry {reason.entry[:12]} has a newer format"
        elif reason.code not in _NO_FAULT:
            yield f"Run `precast precompile`: it builds entry {reason.entry[:12]} anew; {reason.factor} is no good"
    if near is not None and diff is not None and near.of_model:
        yield from advise(diff.breaking, diff.a)
        if not diff.breaking and any(reason.code == _NONE for reason in reasons):
            yield (
                f"Run `precast precompile`: entry {near.key[:12]} is equal in all that can be told without a trace, "
                "and one trace shows whether it fits"
            )
            return
        if diff.breaking:
            yield "Or run `precast precompile`: it builds an entry for this request"
    elif not any(reason.code not in _NO_FAULT for reason in reasons):
        yield "Run `precast precompile`: no entry of this model is stored"
