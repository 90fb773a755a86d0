"""Which kind of file system a folder lies on, and what follows from it for a store."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NETWORK", "VOLATILE", "Caution", "cautions", "filesystem_type", "is_network", "is_volatile"]

_MOUNTS = Path("/proc/self/mountinfo")

NETWORK = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "fhgfs", "fuse", "fuseblk", "gfs2", "glusterfs", "gpfs", "lustre",
        "mmfs", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "quobyte", "smb", "smb2", "smb3",
        "smbfs", "virtiofs", "weka", "wekafs",
    }
)  # fmt: skip
"""Types that other hosts may write to as well; locks of the local kernel may not hold there."""

VOLATILE = frozenset({"aufs", "overlay", "ramfs", "tmpfs"})
"""Types that live in a container's own layer or in memory: they end with the container or the machine."""

# Local file systems that are mounted through FUSE; every other FUSE type counts as a network.
_LOCAL_FUSE = frozenset({"fuse-overlayfs", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.ntfs", "fuse.ntfs-3g"})


def filesystem_type(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system that holds a path, such as `ext4`, `nfs4` or `overlay`.

    Args:
        path: A file or folder; where it does not exist yet, its nearest parent decides.
        mounts: Text as in `/proc/self/mountinfo`; None reads that file.

    Returns:
        The type in lower case; `unknown` where the system does not tell.
    """
    place = path.resolve()
    above = [mount for mount in _mounts(mounts) if place.is_relative_to(mount.point)]
    numbers = {mount.number for mount in above}
    # As the kernel walks: from a mount to the first one on the way that hangs on it. The deepest point alone is not
    # enough, because a later mount on a parent folder hides it.
    here = [mount for mount in above if mount.parent not in numbers - {mount.number}]
    kind = "unknown"
    while here:
        first = min(here, key=lambda mount: len(mount.point.parts))
        kind = first.kind
        here = [mount for mount in above if mount.parent == first.number != mount.number]
    return kind


def is_network(kind: str) -> bool:
    """Tell whether other hosts may write to file systems of this type."""
    return kind in NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def is_volatile(kind: str) -> bool:
    """Tell whether file systems of this type end with the container or the machine."""
    return kind in VOLATILE or kind.endswith("fuse-overlayfs")


@dataclass(frozen=True, slots=True)
class _Mount:
    number: str
    parent: str
    point: Path
    kind: str


@dataclass(frozen=True, slots=True)
class Caution:
    """What a store's place means for who relies on it.

    Attributes:
        code: `store.network_root` or `store.volatile_root`.
        message: One line for people.
        hint: What to do about it.
    """

    code: str
    message: str
    hint: str


def cautions(root: Path, mounts: str | None = None) -> tuple[Caution, ...]:
    """Return what to know about the file system that a root lies on; empty where it is a local disk.

    Args:
        root: The root.
        mounts: Text as in `/proc/self/mountinfo`; None reads that file.
    """
    kind = filesystem_type(root, mounts)
    if is_network(kind):
        return (
            Caution(
                "store.network_root",
                f"The cache at {root} lies on a network file system ({kind}): locks there are leases, and reads slow",
                "Give each node a local folder with --cache-dir, and share entries with --remote",
            ),
        )
    if is_volatile(kind):
        return (
            Caution(
                "store.volatile_root",
                f"The cache at {root} lies on {kind}: it is lost with the container, or when the machine starts again",
                "Mount a volume there or name one with --cache-dir; while an image is built, all is well",
            ),
        )
    return ()


def _mounts(text: str | None) -> Iterator[_Mount]:
    """Yield each mount; a line that cannot be read is left out."""
    if text is None:
        try:
            text = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split(" ")
        kind = rest.split(" ")[0]
        if len(words) > 4 and kind:
            yield _Mount(words[0], words[1], Path(_unescaped(words[4])), kind.lower())


def _unescaped(text: str) -> str:
    r"""Undo the kernel's escapes for space, tab, newline and backslash (`\040`, `\011`, `\012`, `\134`)."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
