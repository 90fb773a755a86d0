"""Remotes for tests: in memory, failing at a chosen operation, and with files damaged at will."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.cache.support import PAYLOADS, make_manifest, publish

from precast.cache.manifest import BuildRecord, Manifest
from precast.cache.remote import Remote
from precast.cache.remote_calls import Limits
from precast.cache.remote_files import Files
from precast.cache.store import Store
from precast.errors import CorruptError

__all__ = [
    "ONE_BY_ONE",
    "REQUEST",
    "Flaky",
    "Killed",
    "MemoryFiles",
    "built_elsewhere",
    "local_store",
    "remote_on",
    "with_entry",
]

REQUEST = "ab" * 32

ONE_BY_ONE = Limits(attempts=1, pause_s=0, workers=1)


class Killed(BaseException):
    """Stands for the death of the process: nothing of ours may catch it."""


class MemoryFiles:
    """A remote in memory, whose files are only ever there whole."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def size(self, name: str) -> int | None:
        return len(self.files[name]) if name in self.files else None

    def read(self, name: str, limit: int) -> bytes | None:
        data = self.files.get(name)
        if data is not None and len(data) > limit:
            raise CorruptError(f"{name} is too long", "it is")
        return data

    def write(self, name: str, data: bytes) -> None:
        self.files[name] = data

    def create(self, name: str, data: bytes) -> bool:
        if name in self.files:
            return False
        self.files[name] = data
        return True

    def names(self, folder: str, *, latest_first: bool = False) -> tuple[str, ...]:
        found = {name.removeprefix(f"{folder}/").partition("/")[0] for name in self.files if name.startswith(folder)}
        return tuple(sorted(found))

    def paths(self, word: str) -> list[str]:
        """The names of the files that hold a word."""
        return sorted(name for name in self.files if word in name)


class Flaky:
    """A remote whose n-th operation fails, before it is done or after, and with it all later ones.

    Args:
        inner: The remote.
        fails_at: Number of the operation, from 0; None for never.
        error: What it raises.
        done: Whether the operation is done although it fails, as when an answer is lost.
    """

    def __init__(
        self, inner: Files, fails_at: int | None = None, error: BaseException | None = None, *, done: bool = False
    ) -> None:
        self.inner = inner
        self.fails_at = fails_at
        self.error = error or ConnectionError("the line is dead")
        self.done = done
        self.operations: list[str] = []

    def _at(self, name: str) -> bool:
        self.operations.append(name)
        if self.fails_at is None or len(self.operations) <= self.fails_at:
            return True
        if len(self.operations) == self.fails_at + 1 and self.done:
            return True
        raise self.error

    def _after(self) -> None:
        if self.fails_at is not None and len(self.operations) > self.fails_at:
            raise self.error

    def size(self, name: str) -> int | None:
        self._at(f"size {name}")
        found = self.inner.size(name)
        self._after()
        return found

    def read(self, name: str, limit: int) -> bytes | None:
        self._at(f"read {name}")
        found = self.inner.read(name, limit)
        self._after()
        return found

    def write(self, name: str, data: bytes) -> None:
        self._at(f"write {name}")
        self.inner.write(name, data)
        self._after()

    def create(self, name: str, data: bytes) -> bool:
        self._at(f"create {name}")
        made = self.inner.create(name, data)
        self._after()
        return made

    def names(self, folder: str, *, latest_first: bool = False) -> tuple[str, ...]:
        self._at(f"names {folder}")
        found = self.inner.names(folder, latest_first=latest_first)
        self._after()
        return found

    def writes(self) -> list[str]:
        """The names of what was written, in order."""
        return [text.partition(" ")[2] for text in self.operations if text.startswith(("write", "create"))]


def remote_on(files: Files, limits: Limits = ONE_BY_ONE) -> Remote:
    """A remote over some files."""
    return Remote("s3://bucket/prefix", limits, files)


def local_store(folder: Path) -> Store:
    """A store of its own below a folder."""
    return Store(folder, lock_timeout_s=5)


def with_entry(
    folder: Path, change: Callable[[Manifest], Manifest] = lambda made: made, payloads: tuple[bytes, ...] = PAYLOADS
) -> tuple[Store, str]:
    """A store that holds one entry without constants, as builds make them, and its key."""
    store = local_store(folder)
    return store, publish(store, change(make_manifest(payloads, {})), payloads)


def built_elsewhere(manifest: Manifest) -> Manifest:
    """The same entry as another machine builds it: equal but for the time that it took."""
    return replace(manifest, build=BuildRecord("2026-12-24T18:00:00Z", 99.0, "0.1.0"))
