"""The files of a remote: a folder, or a file system of fsspec. Names are relative to the remote's address.

A file appears whole or not at all: object stores put so by nature, a folder gets it by a temporary name and a rename.
Every function raises what the driver raises; `remote_calls` bounds the calls and turns errors into ours.
"""

import errno
import logging
import os
import stat
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from precast.cache.atomic import TEMPORARY_SUFFIX, sync_folder, unique, write_atomic
from precast.cache.remote_calls import Limits
from precast.cache.remote_errors import holds_credentials, is_absent, shown_url
from precast.cache.root import LAYOUT
from precast.errors import ConfigValueError, CorruptError, RemoteError, StoreAccessError

__all__ = ["PROTOCOLS", "Files", "FolderFiles", "FsspecFiles", "open_files", "patience"]

PROTOCOLS = ("file", "s3", "gs", "hf")

# Calls end long before; see `Limits`.
_ABANDONED_S = 24 * 3600.0
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
# When a file was written, by the names that the drivers use.
_TIMES = ("LastModified", "mtime", "updated", "uploaded_at", "last_commit")


class Files(Protocol):
    """What a remote needs of its files."""

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None where there is none."""

    def read(self, name: str, limit: int) -> bytes | None:
        """Return a file; None where there is none. One of more than `limit` bytes is damaged."""

    def write(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all, over one that is there."""

    def create(self, name: str, data: bytes) -> bool:
        """Write a file, whole or not at all; False where one was there already, which then stays."""

    def names(self, folder: str, *, latest_first: bool = False) -> tuple[str, ...]:
        """Return the last names of what is in a folder, the latest first where the driver tells; empty for none."""


def patience(url: str, limits: Limits) -> Limits:
    """Return the limits that suit a remote's driver.

    gcsfs and huggingface-hub make attempts of their own. Each write through huggingface-hub is a commit on one branch,
    and its driver is not made for threads, so its calls go one after the other.
    """
    protocol = url.partition("://")[0]
    if protocol == "s3":
        return limits
    return replace(limits, attempts=1, workers=1 if protocol == "hf" else limits.workers)


def open_files(url: str, limits: Limits) -> Files:
    """Return the files of a remote; nothing is imported or asked before the first call.

    Raises:
        ConfigValueError: It is no address of a remote, or it holds credentials.
    """
    protocol, separator, place = url.partition("://")
    if not separator or protocol not in PROTOCOLS or not place.strip("/"):
        hint = (
            f"Write file://{url}" if url.startswith("/") else "Write s3://bucket/prefix, gs://, hf:// or file:///folder"
        )
        raise ConfigValueError(f"`{shown_url(url)}` is no address of a remote", "its beginning is not known", hint)
    if holds_credentials(url) or "?" in place or "#" in place:
        raise ConfigValueError(
            f"The remote's address {shown_url(url)} holds more than a place",
            "credentials, queries and fragments do not belong there: addresses are logged",
            "Give credentials as the driver reads them: AWS_*, GOOGLE_APPLICATION_CREDENTIALS, HF_TOKEN",
        )
    if protocol == "file":
        if not place.startswith("/"):
            raise ConfigValueError(f"`{url}` names no absolute folder", hint=f"Write file:///{place}")
        return FolderFiles(Path(place))
    return FsspecFiles(protocol, place.rstrip("/"), limits)


class FolderFiles:
    """A remote that is a folder, such as a share that many machines mount.

    The folder itself must exist: an unmounted share is then an error and not an empty remote that fills a local disk.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None where there is none."""
        self._require_folder()
        try:
            status = (self.folder / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def read(self, name: str, limit: int) -> bytes | None:
        """Return a file; None where there is none.

        Raises:
            CorruptError: It has more than `limit` bytes.
        """
        self._require_folder()
        try:
            with (self.folder / name).open("rb") as stream:
                data = stream.read(min(limit, os.fstat(stream.fileno()).st_size) + 1)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        if len(data) > limit:
            raise too_long(name, limit)
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all, over one that is there."""
        try:
            write_atomic(self._place(name), data, staging=self._staging())
        except StoreAccessError as error:
            raise error.__cause__ or error from None

    def create(self, name: str, data: bytes) -> bool:
        """Write a file, whole or not at all; False where one was there already, which then stays."""
        path = self._place(name)
        temporary = self._staging() / f".{unique(path.name)}{TEMPORARY_SUFFIX}"
        try:
            write_atomic(temporary, data)
            os.link(temporary, path)
            sync_folder(path.parent)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if path.exists():
                return False
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        return True

    def names(self, folder: str, *, latest_first: bool = False) -> tuple[str, ...]:
        """Return the names in a folder, sorted or the latest first; empty for none."""
        self._require_folder()
        found: list[tuple[int, str]] = []
        try:
            with os.scandir(self.folder / folder) as items:
                for item in items:
                    age = -item.stat(follow_symlinks=False).st_mtime_ns if latest_first else 0
                    found.append((age, item.name))
        except (FileNotFoundError, NotADirectoryError):
            return ()
        return tuple(name for _, name in sorted(found))

    def _staging(self) -> Path:
        """Return the folder for unfinished files, without what killed writers left there."""
        staging = self.folder / LAYOUT / "staging"
        staging.mkdir(parents=True, exist_ok=True)
        old = time.time() - _ABANDONED_S
        for leftover in staging.glob(f".*{TEMPORARY_SUFFIX}"):
            with suppress(OSError):
                if leftover.stat().st_mtime < old:
                    leftover.unlink()
        return staging

    def _place(self, name: str) -> Path:
        self._require_folder()
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _require_folder(self) -> None:
        if not self.folder.is_dir():
            raise RemoteError(
                f"The remote file://{self.folder} cannot be reached",
                "there is no such folder",
                "Mount or create the folder, or pass --offline",
                path=str(self.folder),
            )


class FsspecFiles:
    """A remote that fsspec has a driver for. Credentials and endpoints are what the driver finds in the environment.

    Args:
        protocol: `s3`, `gs` or `hf`.
        place: The address behind the protocol.
        limits: How long it may take.
    """

    def __init__(self, protocol: str, place: str, limits: Limits) -> None:
        self.protocol = protocol
        self.place = place
        self._limits = limits
        self._lock = threading.Lock()
        self._made: Any = None

    def size(self, name: str) -> int | None:
        """Return the bytes of a file; None where there is none."""
        driver = self._driver()
        try:
            found = driver.info(self._path(name))
        except OSError as error:
            if is_absent(error):
                return None
            raise
        return int(found["size"]) if found.get("type") == "file" else None

    def read(self, name: str, limit: int) -> bytes | None:
        """Return a file; None where there is none.

        Raises:
            CorruptError: It has more than `limit` bytes.
        """
        size = self.size(name)
        if size is None:
            return None
        if size > limit:
            raise too_long(name, limit)
        try:
            return bytes(self._driver().cat_file(self._path(name)))
        except OSError as error:
            if is_absent(error):
                return None
            raise

    def write(self, name: str, data: bytes) -> None:
        """Write a file over one that is there."""
        self._driver().pipe_file(self._path(name), data)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file; False where one was there already, which then stays.

        Where a server does not know conditional writes, two writers at once may both think that they were the first.
        """
        if self.size(name) is not None:
            return False
        try:
            self._driver().pipe_file(self._path(name), data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            self.write(name, data)
        return True

    def names(self, folder: str, *, latest_first: bool = False) -> tuple[str, ...]:
        """Return the last names of what is in a folder, the latest first where the driver tells; empty for none."""
        # Only then does huggingface-hub tell when a file came; it takes many more answers.
        more = {"expand_info": True} if latest_first and self.protocol == "hf" else {}
        try:
            found = self._driver().ls(self._path(folder), detail=True, **more)
        except OSError as error:
            if is_absent(error):
                return ()
            raise
        ordered = sorted(found, key=_written, reverse=True) if latest_first else found
        return tuple(str(item["name"]).rstrip("/").rpartition("/")[2] for item in ordered)

    def _path(self, name: str) -> str:
        return f"{self.place}/{name}"

    def _driver(self) -> Any:
        """Return the driver, made at the first call, with nothing remembered of earlier listings."""
        with self._lock:
            if self._made is None:
                self._made = _make_driver(self.protocol, self._limits)
            if self.protocol == "hf":
                self._made.invalidate_cache()
            return self._made


def too_long(name: str, limit: int) -> CorruptError:
    """Say that a file of a remote is longer than it can be."""
    return CorruptError(f"{name} is damaged", f"it has more than {limit} bytes")


def _make_driver(protocol: str, limits: Limits) -> Any:
    import fsspec

    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    if protocol == "s3":
        return _s3_driver(options, limits)
    if protocol == "gs":
        return _gs_driver(options, limits)
    return fsspec.filesystem(protocol, **options)


def _s3_driver(options: dict[str, Any], limits: Limits) -> Any:
    import fsspec
    from fsspec.config import conf

    asked = conf.get("s3", {}).get("config_kwargs") or {}
    # `remote_calls` makes the attempts; drivers that make more of their own would multiply the waiting.
    ours = {"connect_timeout": limits.connect_s, "read_timeout": limits.read_s, "retries": {"total_max_attempts": 1}}
    driver = fsspec.filesystem("s3", config_kwargs={**ours, **asked}, **options)
    driver.retries = 1
    return driver


def _gs_driver(options: dict[str, Any], limits: Limits) -> Any:
    import fsspec
    from aiohttp import ClientTimeout

    # gcsfs logs a traceback for each error that it raises; without a handler it would land on stderr.
    logging.getLogger("gcsfs").addHandler(logging.NullHandler())
    patience = ClientTimeout(total=None, sock_connect=limits.connect_s, sock_read=limits.read_s)
    return fsspec.filesystem("gs", requests_timeout=patience, **options)


def _written(item: dict[str, Any]) -> float:
    """Return when a listed file was written, in seconds since the epoch; 0 where the driver does not tell."""
    for name in _TIMES:
        value = item.get(name)
        moment = getattr(value, "date", value) if name == "last_commit" else value
        stamp = getattr(moment, "timestamp", None)
        if callable(stamp):
            return float(stamp())
        if isinstance(moment, int | float):
            return float(moment)
    return 0.0
