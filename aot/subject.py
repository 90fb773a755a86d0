"""What a verify is about: an entry, named by key, file or model, and how to build its model when that is at hand."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from precast.aot.live import live_side
from precast.aot.mending import damaged_keys
from precast.aot.reference import parse_reference, reference_of_hint
from precast.aot.settings import Settings, settle_settings
from precast.aot.sources import Degradation, EntrySource, MegaSource, StoreSource, open_source
from precast.aot.spec import Json, ModelSpec
from precast.cache.explain import Explanation, explain
from precast.cache.manifest import Manifest
from precast.cache.masking import is_sealed
from precast.cache.requests import remembered_hint
from precast.cache.store import Store
from precast.errors import FormatError, NoEntryError, PrecastError, UnknownModelError

if TYPE_CHECKING:
    from precast.cache.remote_tier import RemoteTier

__all__ = ["Subject", "file_subject", "find_subject", "with_model"]

_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Subject:
    """What is verified.

    Attributes:
        source: The entry, opened: every level works on this one reading of its manifest.
        spec: Makes the model's spec; None when the model is not at hand.
    """

    source: EntrySource
    spec: Callable[[], ModelSpec] | None

    @property
    def manifest(self) -> Manifest:
        """The entry's manifest."""
        return self.source.manifest

    @property
    def key(self) -> str:
        """The entry's key."""
        return self.source.manifest.key


def file_subject(path: Path) -> Subject:
    """Open a mega file. No store is looked at; the model is only at hand where its reference names it everywhere.

    Raises:
        CorruptError: The file is damaged.
    """
    source = MegaSource.open(path)
    return Subject(source, _model_of(source.manifest, {}))


def find_subject(
    what: str,
    overrides: Mapping[str, Json],
    settings: Settings | None,
    store: Store,
    *,
    trusts_hints: bool = True,
    strict: bool = True,
    on_degraded: Callable[[Degradation], None] = lambda _: None,
    tier: "RemoteTier | None" = None,
) -> Subject:
    """Find the entry of a key or MODEL. Nothing is imported, traced or compiled for it.

    Args:
        what: A key or prefix, or MODEL.
        overrides: Values for the model's config, with MODEL.
        settings: Settings, with MODEL.
        store: Where keys and models are looked up.
        trusts_hints: Whether to believe what the store remembers about how a model was named. It is no part of an
            entry and nobody signs it, and what it names is imported.
        strict: Refuse a missing or damaged object.
        on_degraded: Is told of each payload that did not come from its object.
        tier: What stands behind the store; an entry that only it has is pulled.

    Raises:
        NoEntryError: There is none; for MODEL the error names what changed against the nearest entry.
        CorruptError: Its manifest is damaged.
        UnknownModelError: It names nothing.
    """
    try:
        source = open_source(what, store, strict=strict, on_degraded=on_degraded, tier=tier)
    except NoEntryError as error:
        found, spec = _of_model(what, overrides, settings, store, error, tier)
        return Subject(StoreSource(store, found, strict, on_degraded), spec)
    hint = remembered_hint(store, source.manifest.key) if trusts_hints else {}
    return Subject(source, _model_of(source.manifest, hint))


def with_model(subject: Subject, model: str | None, overrides: Mapping[str, Json]) -> Subject:
    """Return a subject whose model the user names; the subject as it is where none is named.

    Args:
        subject: What is verified.
        model: MODEL.
        overrides: Values for its config; without any, those of the entry count.

    Raises:
        UnknownModelError: It names nothing.
    """
    if model is None:
        return subject
    reference = parse_reference(model)
    stored = subject.manifest.model.config.get("overrides")
    values = overrides or (stored if isinstance(stored, dict) else {})
    return replace(subject, spec=lambda: reference.spec(values))


def _of_model(
    what: str,
    overrides: Mapping[str, Json],
    settings: Settings | None,
    store: Store,
    absent: NoEntryError,
    tier: "RemoteTier | None",
) -> tuple[Manifest, Callable[[], ModelSpec]]:
    try:
        reference = parse_reference(what)
    except UnknownModelError as error:
        raise (absent if _looks_like_key(what) else error) from error
    settings = settle_settings(settings, os.environ)
    live, found = live_side(reference, overrides, settings, store=store, tier=tier, pull=True)
    for key in damaged_keys(store, found):
        with suppress(FormatError):  # then it is another version's, not damaged
            return store.manifest(key), lambda: reference.spec(overrides)
    if found.hit is None:
        raise _miss(what, explain(store, live, found, model=reference.text))
    return found.hit, lambda: reference.spec(overrides)


def _miss(what: str, explanation: Explanation) -> NoEntryError:
    told = [f"{r.factor}: entry {r.a}, now {r.b}" if r.factor else r.code for r in explanation.reasons]
    more = [f"{len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    hint = f"run `precast inspect explain {what}`, or `precast precompile {what}`"
    entry = explanation.nearest.key if explanation.nearest else ""
    return NoEntryError(f"no entry fits `{what}`", "; ".join([*told[:_SHOWN], *more]), hint, entry=entry)


def _looks_like_key(text: str) -> bool:
    return all(c in "0123456789abcdefABCDEF" for c in text)


def _model_of(manifest: Manifest, hint: Mapping[str, Json]) -> Callable[[], ModelSpec] | None:
    """Return how to build the model of an entry: as it was named when it was compiled here, if it is still there."""
    given = (hint or manifest.model.config).get("overrides")
    overrides = given if isinstance(given, dict) else {}
    if any(is_sealed(value) for value in overrides.values()):  # a secret was among them, and is stored nowhere
        return None
    try:
        reference = parse_reference(reference_of_hint(hint, manifest.model.reference))
    except PrecastError:
        return None
    return lambda: reference.spec(overrides)
