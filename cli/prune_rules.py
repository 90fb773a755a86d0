"""The rules of `precast prune`, read from its options."""

from collections.abc import Iterable
from importlib import metadata

from precast import __version__
from precast.cache.plans import PruneRules
from precast.cache.sizes import parse_age, parse_size
from precast.cache.store import Store
from precast.cache.tags import all_tags, resolve_entry
from precast.cli.entry_filters import EntryFilters
from precast.cli.prune_flags import PruneFlags
from precast.errors import NoEntryError, UsageError

__all__ = ["prune_rules"]


def prune_rules(store: Store, flags: PruneFlags) -> PruneRules:
    """Read the rules as the user wrote them.

    Args:
        store: Where keys and tags are looked up.
        flags: The options.

    Raises:
        ConfigValueError: If a size or an age is none.
        UsageError: If a filter is none, or narrows nothing.
        NoEntryError: If a key or tag is not in the store.
    """
    current = flags.current_version_only
    rules = PruneRules(
        max_size=None if flags.max_size is None else parse_size(flags.max_size),
        max_files=flags.max_files,
        max_age_s=None if flags.max_age is None else parse_age(flags.max_age),
        min_free=None if flags.min_free is None else parse_size(flags.min_free),
        only_version=__version__ if current else None,
        only_torch=_installed("torch") if current else None,
        selection=EntryFilters.parse(flags.filter) if flags.filter else None,
        keep_last=flags.keep_last,
        keep_tags=tuple(flags.keep_tag or ()),
        keys=tuple(resolve_entry(store, text) for text in flags.key or ()),
        drop_tags=_known_tags(store, flags.drop_tag or ()),
        broken=flags.broken,
        orphans=flags.orphans,
    )
    if rules.selection is not None and rules.orphans and not rules.takes_entries:
        raise UsageError(
            "--filter and --orphans contradict each other",
            "--filter chooses entries, and --orphans takes none",
            "Leave out one of them",
        )
    return rules


def _known_tags(store: Store, names: Iterable[str]) -> tuple[str, ...]:
    known = all_tags(store) if names else {}
    for name in names:
        if name not in known:
            why = f"the tags are {', '.join(known)}" if known else f"{store.root} holds no tags"
            raise NoEntryError(f"There is no tag `{name}`", why, "Run `precast inspect ls` to see the tags")
    return tuple(names)


def _installed(name: str) -> str | None:
    """Return the version of a distribution; None where it is not installed, so that nothing is held against it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
