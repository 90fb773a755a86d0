"""The root of the store: where it is, and what lies where below it.

The layout's version is a folder name. Another layout gets another folder, so two versions of precast never misread
each other's files. Each prunes its own folder only: what lies in another one, and who uses it, it cannot know.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from precast.cache.modes import make_folder, open_new
from precast.errors import StoreAccessError

__all__ = ["LAYOUT", "MARKERS", "CacheRoot", "RootChoice", "resolve_root"]

LAYOUT = "v1"

_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# This folder is a cache made by precast. Backups may leave it out; see https://bford.info/cachedir/
"""
MARKERS = {"CACHEDIR.TAG": _TAG, ".gitignore": "*\n"}
_FOLDERS = ("objects", "entries", "requests", "tags", "locks", "staging", "quarantine", "stats")


@dataclass(frozen=True, slots=True)
class RootChoice:
    """The root in force.

    Attributes:
        path: Absolute path.
        origin: What decided: `flag`, `environment`, `file`, `xdg` or `default`.
    """

    path: Path
    origin: str


def resolve_root(flag: str | None, environ: Mapping[str, str], configured: str | None = None) -> RootChoice:
    """Choose the root: flag, `PRECAST_CACHE_DIR`, config file, `$XDG_CACHE_HOME/precast`, `~/.cache/precast`.

    Args:
        flag: Value of `--cache-dir`, or None.
        environ: The environment.
        configured: Value from a config file, or None.

    Raises:
        StoreAccessError: Nothing names a root and the user has no home folder.
    """
    given = (("flag", flag), ("environment", environ.get("PRECAST_CACHE_DIR")), ("file", configured))
    for origin, text in given:
        if text:
            return RootChoice(_absolute(text, environ), origin)
    xdg = environ.get("XDG_CACHE_HOME", "")
    # The XDG base directory specification tells readers to ignore relative paths.
    if Path(xdg).is_absolute():
        return RootChoice(Path(xdg) / "precast", "xdg")
    return RootChoice(_home(environ) / ".cache" / "precast", "default")


def _absolute(text: str, environ: Mapping[str, str]) -> Path:
    if text == "~" or text.startswith("~/"):
        return _home(environ) / text[2:]
    return Path(text).absolute()


def _home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME", "") or _passwd_home()
    if Path(home).is_absolute():
        return Path(home)
    raise StoreAccessError(
        "No place for the cache is known",
        f"HOME is not set and uid {os.getuid()} has no entry in the passwd database",
        "Set PRECAST_CACHE_DIR to a writable folder, or pass --cache-dir",
    )


def _passwd_home() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


@dataclass(frozen=True, slots=True)
class CacheRoot:
    """The layout below one root; making one touches no disk.

    Attributes:
        path: The root.
    """

    path: Path

    @property
    def base(self) -> Path:
        """The folder of this layout version."""
        return self.path / LAYOUT

    @property
    def objects(self) -> Path:
        """Compressed payloads, named by the digest of their raw bytes."""
        return self.base / "objects"

    @property
    def entries(self) -> Path:
        """One folder an entry, named by its key."""
        return self.base / "entries"

    @property
    def requests(self) -> Path:
        """Which entries answered a request before."""
        return self.base / "requests"

    @property
    def tags(self) -> Path:
        """Names that people gave to entries."""
        return self.base / "tags"

    @property
    def locks(self) -> Path:
        """Lock files."""
        return self.base / "locks"

    @property
    def staging(self) -> Path:
        """Entries that are being written or taken away."""
        return self.base / "staging"

    @property
    def quarantine(self) -> Path:
        """Entries that were found damaged."""
        return self.base / "quarantine"

    @property
    def stats(self) -> Path:
        """Last uses."""
        return self.base / "stats"

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder of the layout."""
        return tuple(self.base / name for name in _FOLDERS)

    def object(self, sha256: str) -> Path:
        """The file of an object."""
        return self.objects / sha256[:2] / f"{sha256}.zst"

    def entry(self, key: str) -> Path:
        """The folder of an entry."""
        return self.entries / key

    def manifest(self, key: str) -> Path:
        """The manifest of an entry."""
        return self.entries / key / "manifest.json"

    def mega(self, key: str) -> Path:
        """The mega artifact of an entry."""
        return self.entries / key / "model.mega"

    def lock(self, name: str) -> Path:
        """The file of a lock."""
        return self.locks / f"{name}.lock"

    def foreign(self) -> Iterator[Path]:
        """Yield what lies in the root or in the layout's folder and is not ours."""
        for home, own in ((self.path, {LAYOUT, *MARKERS}), (self.base, {*MARKERS, *_FOLDERS})):
            if home.is_dir():
                yield from (path for path in sorted(home.iterdir()) if path.name not in own)

    def prepare(self) -> None:
        """Create the folders, and mark the root as a cache for backups and git.

        A root that its group may write when precast comes is shared on purpose, and so is what is created in it.

        Raises:
            StoreAccessError: A folder cannot be created.
        """
        try:
            if not self.base.is_dir():
                self._mark()
            for folder in self.folders:
                make_folder(folder)
        except OSError as error:
            raise StoreAccessError(
                f"The cache at {self.path} cannot be created",
                f"{error.strerror} ({error.filename})",
                "Pass --cache-dir or set PRECAST_CACHE_DIR to a writable folder",
                path=str(self.path),
            ) from error

    def _mark(self) -> None:
        # In a folder that already holds other things, git must go on seeing them: mark only our own part of it.
        home = self.base if self.path.is_dir() and any(self.path.iterdir()) else self.path
        make_folder(home)
        for name, text in MARKERS.items():
            marker = home / name
            if not marker.exists():
                with os.fdopen(open_new(marker, os.O_WRONLY), "w", encoding="utf-8") as stream:
                    stream.write(text)
