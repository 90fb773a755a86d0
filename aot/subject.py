"""What a verify is about: an entry, named by key, file or model, and how to build its model when that is at hand."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from precast.aot.live import live_side
from precast.aot.reference import parse_reference, reference_of_hint
from precast.aot.settings import Settings, settle_settings
from precast.aot.sources import open_source
from precast.aot.spec import Json, ModelSpec
from precast.cache.explain import Explanation, explain
from precast.cache.manifest import Manifest
from precast.cache.masking import is_sealed
from precast.cache.requests import remembered_hint
from precast.cache.store import Store
from precast.errors import NoEntryError, PrecastError, UnknownModelError

__all__ = ["Subject", "find_subject"]

_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Subject:
    """What is verified.

    Attributes:
        what: How the entry is opened: its key, or the path of a mega file.
        key: Its key.
        manifest: Its manifest.
        spec: Makes the model's spec; None when the model is not at hand.
    """

    what: str
    key: str
    manifest: Manifest
    spec: Callable[[], ModelSpec] | None


def find_subject(what: str, overrides: Mapping[str, Json], settings: Settings | None, store: Store) -> Subject:
    """Find the entry of a key, a mega file or MODEL. Nothing is imported, traced or compiled for it.

    Args:
        what: A key or prefix, a path, or MODEL.
        overrides: Values for the model's config, with MODEL.
        settings: Settings, with MODEL.
        store: Where keys and models are looked up.

    Raises:
        NoEntryError: There is none; for MODEL the error names what changed against the nearest entry.
        UnknownModelError: It names nothing.
    """
    try:
        manifest = open_source(what, store).manifest
    except NoEntryError as error:
        return _of_model(what, overrides, settings, store, error)
    return Subject(what, manifest.key, manifest, _model_of(manifest, store))


def _of_model(
    what: str, overrides: Mapping[str, Json], settings: Settings | None, store: Store, absent: NoEntryError
) -> Subject:
    try:
        reference = parse_reference(what)
    except UnknownModelError as error:
        raise (absent if _looks_like_key(what) else error) from error
    live, found = live_side(reference, overrides, settle_settings(settings, os.environ), store=store)
    if found.hit is None:
        raise _miss(what, explain(store, live, found, model=reference.text))
    return Subject(found.hit.key, found.hit.key, found.hit, lambda: reference.spec(overrides))


def _miss(what: str, explanation: Explanation) -> NoEntryError:
    told = [f"{r.factor}: entry {r.a}, now {r.b}" if r.factor else r.code for r in explanation.reasons]
    more = [f"{len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    hint = f"run `precast inspect explain {what}`, or `precast precompile {what}`"
    entry = explanation.nearest.key if explanation.nearest else ""
    return NoEntryError(f"no entry fits `{what}`", "; ".join([*told[:_SHOWN], *more]), hint, entry=entry)


def _looks_like_key(text: str) -> bool:
    return all(c in "0123456789abcdefABCDEF" for c in text)


def _model_of(manifest: Manifest, store: Store) -> Callable[[], ModelSpec] | None:
    """Return how to build the model of an entry: as it was named when it was compiled here, if it is still there."""
    hint = remembered_hint(store, manifest.key)
    given = hint.get("overrides")
    overrides = given if isinstance(given, dict) else {}
    if any(is_sealed(value) for value in overrides.values()):  # a secret was among them, and is stored nowhere
        return None
    try:
        reference = parse_reference(reference_of_hint(hint, manifest.model.reference))
    except PrecastError:
        return None
    return lambda: reference.spec(overrides)
