"""The live side of a comparison: what a request's factors are on this machine now, without the model or torch.

What only a trace can tell (the graph, baked constants, the signature) is left out: when everything that a trace reads
is the same, so is the graph.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from precast.aot.answers import remember_answer, search_path
from precast.aot.reference import ModelReference
from precast.aot.request import compile_input
from precast.aot.settings import Settings
from precast.aot.spec import Json
from precast.aot.target import Target
from precast.cache.diff import Side
from precast.cache.environment import ignored_variables
from precast.cache.factors import Factor
from precast.cache.index import nearest
from precast.cache.lookup import READ_AGAIN, Lookup, MissReason, factor_now, lookup
from precast.cache.manifest import Manifest
from precast.cache.sources import locate_source
from precast.cache.store import Store
from precast.errors import PrecastError

if TYPE_CHECKING:
    from precast.cache.remote_tier import RemoteTier

__all__ = ["live_side"]


def live_side(
    reference: ModelReference,
    overrides: Mapping[str, Json],
    settings: Settings,
    *,
    store: Store,
    target: Target | None = None,
    unfit: Callable[[Manifest], Iterable[MissReason]] = lambda _: (),
    tier: "RemoteTier | None" = None,
    pull: bool = False,
) -> tuple[Side, Lookup]:
    """Return the live side of a request, and what a lookup says of it.

    Args:
        reference: The model.
        overrides: Values for its config.
        settings: Settings in force.
        store: Where the nearest entry is looked for: its code files, data files and variables are read as they are now.
        target: What to ask for instead of what the settings name; any target will do, present or not.
        unfit: As of `lookup`.
        tier: What stands behind the store, and is asked where the store has nothing.
        pull: Whether an entry that is found there is pulled; then this request is remembered for it.
    """
    given = compile_input(reference.factors(overrides), settings, target=target)
    folders = search_path(reference)
    found = lookup(store, given.request, folders, unfit=unfit)
    if found.hit is None and tier is not None:
        there = (tier.take if pull else tier.look)(given.request, folders, os.environ)
        if there is not None and pull:
            remember_answer(store, reference, overrides, given.request, there.key)
        found = Lookup(there, () if there is not None else (*tier.reasons, *found.reasons))
    entry = found.hit or _nearest(store, given.request.factors, reference.text)
    known = {f.label: f for f in given.request.factors}
    for factor in entry.factors if entry is not None else ():
        if factor.group in READ_AGAIN:
            known.setdefault(factor.label, factor_now(factor, folders, os.environ))
    factors = tuple(known.values())  # None where a file or variable is no more
    sources = dict(_sources([f.name for f in factors if f.group == "code"], folders))
    side = Side("live", "", factors, sources, settings.record, ignored_variables(os.environ))
    return side, found


def _nearest(store: Store, factors: Sequence[Factor], model: str) -> Manifest | None:
    for near in nearest(store, factors, 3, model):
        try:
            return store.manifest(near.key)
        except PrecastError:
            continue
    return None


def _sources(names: Sequence[str], folders: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        kind, _, module = name.partition(":")
        path = locate_source(module, folders) if kind == "module" else None
        if path is not None:
            yield module, path.read_text(encoding="utf-8", errors="replace")
