"""Plans of pruning: the rules, what would go and why, what would stay and why, and what went."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

from precast.cache.index import SummaryRow

__all__ = [
    "ForeignItem",
    "KeptEntry",
    "PruneItem",
    "PrunePlan",
    "PruneRules",
    "PruneSummary",
    "Selection",
    "SkippedItem",
    "UnmetLimit",
]


class Selection(Protocol):
    """A choice of entries."""

    def matches(self, entry: SummaryRow, now_ns: int) -> bool:
        """Tell whether an entry is chosen; ages count from `now_ns`, in nanoseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class PruneRules:
    """What may go. Without any rule only broken entries, orphans and leftovers do, and they go with most rules.

    What a process uses never goes. A tagged entry goes by its key only. What no rule takes stays.

    Attributes:
        max_size: Bytes that the whole root may take, as `du` counts them.
        max_files: Files that the whole root may hold.
        max_age_s: Seconds after its last use at which an entry goes.
        min_free: Bytes that must be free on the root's file system.
        only_version: Entries that another version of precast built go.
        only_torch: Entries whose stamps name another version of torch go; a build such as `+cpu` makes no other.
        selection: Which entries the rules above may take, and `broken` where it is set; alone, it takes them itself.
        keep_last: This many entries, the last used of those that the selection matches, stay whatever the rules above
            say; without a selection, of all.
        keep_tags: Patterns of the tags that protect an entry; none means that every tag does.
        keys: Entries that go in any case, unless they are in use.
        drop_tags: Tags that go.
        broken: Broken entries, the quarantine and leftovers go, but of the orphans nothing.
        orphans: Objects that no entry refers to and pointers to entries that are gone go, but nothing broken.
        stale_s: Seconds after which a temporary file of a short write counts as left behind.
    """

    max_size: int | None = None
    max_files: int | None = None
    max_age_s: int | None = None
    min_free: int | None = None
    only_version: str | None = None
    only_torch: str | None = None
    selection: Selection | None = None
    keep_last: int = 0
    keep_tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    drop_tags: tuple[str, ...] = ()
    broken: bool = False
    orphans: bool = False
    stale_s: int = 3600

    @property
    def takes_broken(self) -> bool:
        """Whether broken things go."""
        return self.broken or not self.orphans

    @property
    def takes_orphans(self) -> bool:
        """Whether orphans go."""
        return self.orphans or not self.broken

    @property
    def takes_entries(self) -> bool:
        """Whether a rule takes entries that the selection then narrows."""
        given = (
            self.max_size, self.max_files, self.max_age_s, self.min_free, self.only_version, self.only_torch
        )  # fmt: skip
        return self.broken or any(rule is not None for rule in given)

    def protects(self, tag: str) -> bool:
        """Tell whether a tag keeps its entry."""
        kept = not self.keep_tags or any(fnmatchcase(tag, pattern) for pattern in self.keep_tags)
        return kept and tag not in self.drop_tags


@dataclass(frozen=True, slots=True)
class PruneItem:
    """One thing that goes.

    Attributes:
        kind: `entry`, `object`, `tag`, `staging`, `quarantine`, or `leftover` for a stamp, pointer, lock or claim of
            what is gone.
        id: A key, an object's SHA-256, a tag, a name in the quarantine, or a path below the layout's folder.
        bytes: What it frees; a hard-linked file frees its bytes with its last name.
        files: How many files go with it.
        reason: Why it goes.
        entry: An entry as it was when the plan was made; None for anything else.
    """

    kind: str
    id: str
    bytes: int
    files: int
    reason: str
    entry: SummaryRow | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class KeptEntry:
    """One entry that stays.

    Attributes:
        key: Its key.
        bytes: Size of its folder; its objects are not counted.
        reason: What keeps it, or empty where no rule speaks against it.
    """

    key: str
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class ForeignItem:
    """Something in the root that is not the store's. It counts towards limits, and is never touched.

    Attributes:
        path: Its path below the root.
        bytes: What it takes.
        files: How many files it holds.
        layout: Whether it is the folder of another layout version, which another version of precast made.
    """

    path: str
    bytes: int
    files: int
    layout: bool


@dataclass(frozen=True, slots=True)
class UnmetLimit:
    """A limit that will not hold.

    Attributes:
        limit: `max_size`, `max_files` or `min_free`.
        message: By how much it is missed.
        hint: What stands in the way, and which option would help.
    """

    limit: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What pruning would do; executing it does exactly that.

    Attributes:
        root: The root.
        rules: What was asked for.
        made_ns: When the plan was made, in nanoseconds since the epoch.
        remove: What goes, in this order.
        keep: The entries that stay, the last used first.
        bytes_before: What the root takes now.
        files_before: How many files it holds now.
        unmet: Limits that hold only if something went that must stay.
        foreign: What is not the store's, sorted by path.
        loose_tags: Tags that name no entry. They stay: a damaged entry that is built again gets its tags back.
    """

    root: Path
    rules: PruneRules
    made_ns: int
    remove: tuple[PruneItem, ...]
    keep: tuple[KeptEntry, ...]
    bytes_before: int
    files_before: int
    unmet: tuple[UnmetLimit, ...]
    foreign: tuple[ForeignItem, ...] = ()
    loose_tags: tuple[str, ...] = ()

    @property
    def freed_bytes(self) -> int:
        """Bytes that go."""
        return sum(item.bytes for item in self.remove)

    @property
    def freed_files(self) -> int:
        """Files that go."""
        return sum(item.files for item in self.remove)


@dataclass(frozen=True, slots=True)
class SkippedItem:
    """Something that a plan named and that stayed, or that went without us.

    Attributes:
        item: What it is.
        reason: What happened since the plan was made.
    """

    item: PruneItem
    reason: str


@dataclass(frozen=True, slots=True)
class PruneSummary:
    """What pruning did.

    Attributes:
        removed: What went.
        skipped: What stayed because it came into use after the plan was made, or was gone by then.
    """

    removed: tuple[PruneItem, ...]
    skipped: tuple[SkippedItem, ...]

    @property
    def freed_bytes(self) -> int:
        """Bytes that went."""
        return sum(item.bytes for item in self.removed)

    @property
    def freed_files(self) -> int:
        """Files that went."""
        return sum(item.files for item in self.removed)
