"""The request that a command line means, as it would be made on this machine now: the side called `live`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from precast.cache.canonical import Json
from precast.cli.compile_flags import CompileFlags
from precast.cli.session import Session
from precast.errors import UsageError

if TYPE_CHECKING:
    from precast.cache.lookup import Lookup
    from precast.cache.remote_tier import RemoteTier
    from precast.cache.side import Side

__all__ = ["LIVE", "live_request", "model_of"]

LIVE = "live"


def live_request(
    session: Session,
    model: str,
    flags: CompileFlags,
    values: Mapping[str, Json] | None = None,
    tier: "RemoteTier | None" = None,
) -> "tuple[Side, Lookup]":
    """Form the request without torch and without a trace, and look it up.

    Args:
        session: What the command works with.
        model: MODEL as on the command line.
        flags: The compile settings as given; the target may be one that this machine is not.
        values: Values for the model's config that hold where the command line gives none.
        tier: What stands behind the store; it is only looked at.

    Raises:
        UnknownModelError: The model names nothing.
    """
    from precast.aot.live import live_side
    from precast.aot.reference import parse_reference
    from precast.aot.stamps import stamp_misses

    settings, overrides = session.settings(flags), {**(values or {}), **flags.model_overrides()}
    store = session.store()
    return live_side(parse_reference(model), overrides, settings, store=store, unfit=stamp_misses, tier=tier)


def model_of(root: Path, entry: str) -> tuple[str, dict[str, Json]]:
    """Tell how the model of a stored entry was named when it was compiled here, and with which values.

    Raises:
        NoEntryError: There is no such entry.
        UsageError: Nothing tells where its model is.
    """
    from precast.aot.reference import reference_of_hint
    from precast.cache.requests import remembered_hint
    from precast.cache.side import open_side
    from precast.cache.store import Store

    store = Store(root, read_only=True)
    hint = remembered_hint(store, open_side(entry, store).key)
    model, overrides = reference_of_hint(hint), hint.get("overrides")
    if not model:
        raise UsageError(
            "The side `live` needs a model", f"nothing tells which model `{entry}` was made of", "Add --model MODEL"
        )
    return model, dict(overrides) if isinstance(overrides, dict) else {}
