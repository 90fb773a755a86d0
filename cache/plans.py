"""Plans of pruning: the rules, what would go and why, and what went."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["KeptEntry", "PruneItem", "PrunePlan", "PruneRules", "PruneSummary", "SkippedItem"]


@dataclass(frozen=True, slots=True)
class PruneRules:
    """What may go. Without any rule only broken entries, orphan objects and leftovers do.

    Attributes:
        max_size: Bytes that the whole root may take, as `du` counts them.
        max_files: Files that the whole root may hold.
        max_age_s: Seconds after its last use at which an entry goes.
        keep_last: This many entries, the last used, stay whatever age, size and version say.
        only_version: Entries that another version of precast built go.
        keys: Entries that go in any case, unless they are in use.
        stale_s: Seconds after which a temporary file of a short write counts as left behind.
    """

    max_size: int | None = None
    max_files: int | None = None
    max_age_s: int | None = None
    keep_last: int = 0
    only_version: str | None = None
    keys: tuple[str, ...] = ()
    stale_s: int = 3600


@dataclass(frozen=True, slots=True)
class PruneItem:
    """One thing that goes.

    Attributes:
        kind: `entry`, `object`, `staging`, `quarantine`, or `leftover` for a stamp, pointer or lock of what is gone.
        id: A key, an object's SHA-256, or a path below the layout's folder.
        bytes: What it frees; a hard-linked file frees its bytes with its last name.
        files: How many files go with it.
        reason: Why it goes.
    """

    kind: str
    id: str
    bytes: int
    files: int
    reason: str


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
class PrunePlan:
    """What pruning would do; executing it does exactly that.

    Attributes:
        root: The root.
        made_ns: When the plan was made, in nanoseconds since the epoch.
        remove: What goes, in this order.
        keep: The entries that stay, the last used first.
        bytes_before: What the root takes now.
        files_before: How many files it holds now.
        unmet: Limits that hold only if something in use, tagged or foreign went; one sentence each.
    """

    root: Path
    made_ns: int
    remove: tuple[PruneItem, ...]
    keep: tuple[KeptEntry, ...]
    bytes_before: int
    files_before: int
    unmet: tuple[str, ...]

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
    """Something that a plan named and that stayed.

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
        skipped: What stayed because it came into use after the plan was made.
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
