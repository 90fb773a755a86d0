"""The files of a remote: addresses, a folder, and drivers of fsspec."""

import errno
import importlib
import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tests.cache.remotes import REQUEST, local_store, with_entry
from tests.cache.support import files_below

from precast.cache.remote import Remote
from precast.cache.remote_calls import Limits
from precast.cache.remote_files import FolderFiles, FsspecFiles, open_files, patience
from precast.errors import ConfigValueError, CorruptError, RemoteError

_ACCESS_POINT = "arn:aws:s3:eu-west-1:123456789012:accesspoint/name"


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("/mnt/share", "file:///mnt/share"),
        ("bucket/prefix", "s3://"),
        ("http://example.com/cache", "s3://"),
        ("memory://x", "s3://"),
        ("simplecache::s3://bucket", "s3://"),
        ("s3://", "s3://"),
        ("file://share/x", "file:///share/x"),
        ("", "s3://"),
    ],
)
def test_what_is_no_address_is_refused_with_the_right_form(url: str, hint: str) -> None:
    with pytest.raises(ConfigValueError) as caught:
        open_files(url, Limits())
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIASECRET:topsecret@bucket/prefix",
        "s3://topsecret@bucket/prefix",
        "s3://AKIASECRET:top/secret@bucket",
        "gs://bucket/prefix?token=topsecret",
        "hf://user:topsecret@org/name",
        "s3://bucket/prefix#topsecret",
    ],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigValueError) as caught:
        open_files(url, Limits())
    told = f"{caught.value} {caught.value.hint}"
    assert "secret" not in told.lower()


@pytest.mark.parametrize(
    ("url", "protocol", "place"),
    [
        ("s3://bucket/prefix/", "s3", "bucket/prefix"),
        (f"s3://{_ACCESS_POINT}/x", "s3", f"{_ACCESS_POINT}/x"),
        ("gs://bucket", "gs", "bucket"),
        ("hf://datasets/org/name@refs%2Fpr%2F1/cache", "hf", "datasets/org/name@refs%2Fpr%2F1/cache"),
        ("hf://org/name@main", "hf", "org/name@main"),
    ],
)
def test_addresses_of_all_kinds_are_understood_without_a_call(url: str, protocol: str, place: str) -> None:
    files = open_files(url, Limits())
    assert isinstance(files, FsspecFiles)
    assert (files.protocol, files.place) == (protocol, place)


def test_each_driver_gets_the_patience_that_suits_it() -> None:
    assert patience("s3://bucket", Limits()) == Limits()
    assert (patience("gs://bucket", Limits()).attempts, patience("gs://bucket", Limits()).workers) == (1, 8)
    assert (patience("hf://org/name", Limits()).attempts, patience("hf://org/name", Limits()).workers) == (1, 1)


@pytest.fixture
def folder(tmp_path: Path) -> FolderFiles:
    (tmp_path / "remote").mkdir()
    files = open_files(f"file://{tmp_path}/remote", Limits())
    assert isinstance(files, FolderFiles)
    return files


def test_a_folder_holds_files(folder: FolderFiles) -> None:
    assert (folder.size("v1/a/x"), folder.read("v1/a/x", 9), folder.names("v1/a")) == (None, None, ())
    folder.write("v1/a/x", b"one")
    assert (folder.size("v1/a/x"), folder.read("v1/a/x", 3), folder.names("v1/a")) == (3, b"one", ("x",))
    folder.write("v1/a/x", b"two")
    assert folder.read("v1/a/x", 3) == b"two"
    with pytest.raises(CorruptError, match="more than 2 bytes"):
        folder.read("v1/a/x", 2)
    assert (folder.size("v1/a"), folder.read("v1/a", 9), folder.size("v1/a/x/y"), folder.read("v1/a/x/y", 9)) == (
        None,
        None,
        None,
        None,
    )


def test_a_file_is_created_once(folder: FolderFiles) -> None:
    assert folder.create("v1/x", b"first") is True
    assert folder.create("v1/x", b"second") is False
    assert files_below(folder.folder) == {"v1/x": b"first"}


def test_a_file_is_created_once_by_many(folder: FolderFiles) -> None:
    made: list[bool] = []
    threads = [
        threading.Thread(target=lambda n=number: made.append(folder.create("v1/x", b"%d" % n))) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 7 + [True]


def test_a_folder_without_hard_links_will_do(folder: FolderFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert (folder.create("v1/x", b"first"), folder.create("v1/x", b"second")) == (True, False)
    assert files_below(folder.folder) == {"v1/x": b"first"}


def test_a_write_that_fails_leaves_what_was_there(folder: FolderFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.write("v1/x", b"old")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        folder.write("v1/x", b"new")
    assert files_below(folder.folder) == {"v1/x": b"old"}


def test_what_killed_writers_left_is_cleared_away_a_day_later(folder: FolderFiles) -> None:
    folder.write("v1/x", b"one")
    staging = folder.folder / "v1" / "staging"
    for name, age_h in ((".old.tmp", 25), (".young.tmp", 1), ("foreign", 99)):
        (staging / name).write_bytes(b"half")
        os.utime(staging / name, times=(0, time.time() - age_h * 3600))
    folder.write("v1/y", b"two")
    assert sorted(path.name for path in staging.iterdir()) == [".young.tmp", "foreign"]


def test_the_latest_comes_first(folder: FolderFiles) -> None:
    for age, name in enumerate("cab"):
        folder.write(f"v1/{name}", b"")
        os.utime(folder.folder / "v1" / name, ns=(0, age * 10**9))
    assert [name for name in folder.names("v1", latest_first=True) if len(name) == 1] == ["b", "a", "c"]
    assert [name for name in folder.names("v1") if len(name) == 1] == ["a", "b", "c"]


def test_a_folder_that_is_not_there_is_no_empty_remote(tmp_path: Path) -> None:
    """An unmounted share must not be filled on the local disk, nor be taken for a miss."""
    files = FolderFiles(tmp_path / "unmounted")
    for call in (
        lambda: files.size("x"),
        lambda: files.read("x", 1),
        lambda: files.names("x"),
        lambda: files.write("x", b""),
    ):
        with pytest.raises(RemoteError, match="cannot be reached"):
            call()
    assert not files.folder.exists()


class HfStandIn(MemoryFileSystem):  # type: ignore[misc]
    """A file system that answers as huggingface-hub's does: listings are remembered, and commits have dates."""

    protocol = "hf"
    store: dict[str, Any] = {}  # noqa: RUF012 - fsspec's own way
    pseudo_dirs = [""]  # noqa: RUF012 - fsspec's own way

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.remembered: dict[str, Any] = {}
        self.writes: list[str] = []

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        key = f"info {path}"
        if key not in self.remembered:
            try:
                self.remembered[key] = super().info(path, **options)
            except FileNotFoundError as error:
                self.remembered[key] = error
        if isinstance(self.remembered[key], Exception):
            raise self.remembered[key]
        found: dict[str, Any] = self.remembered[key]
        return found

    def ls(self, path: str, detail: bool = True, expand_info: bool = False, **options: Any) -> Any:
        found = super().ls(path, detail=True, **options)
        for item in found:
            day = 1 + len(item["name"]) % 9
            date = datetime(2026, 11, day, tzinfo=UTC)
            item["created"] = None
            item["last_commit"] = SimpleNamespace(date=date) if expand_info else None
        return found

    def invalidate_cache(self, path: str | None = None) -> None:
        self.remembered.clear()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self.writes.append(path)
        super().pipe_file(path, value, mode=mode, **options)


@pytest.fixture
def hf(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    registry = importlib.import_module("fsspec.registry")  # fsspec itself has another thing of that name
    monkeypatch.setitem(registry._registry, "hf", HfStandIn)
    HfStandIn.store.clear()
    HfStandIn.pseudo_dirs[:] = [""]
    yield
    HfStandIn.store.clear()


@pytest.mark.usefixtures("hf")
def test_an_entry_travels_through_hugging_face(tmp_path: Path) -> None:
    here, key = with_entry(tmp_path / "a")
    remote = Remote("hf://datasets/org/name@main/cache")
    pushed = remote.push(here, key, [REQUEST])
    assert (pushed.objects, remote.has(key), remote.candidates(REQUEST)) == (2, True, (key,))
    assert all(name.startswith("/datasets/org/name@main/cache/v1/") for name in HfStandIn.store)
    there = local_store(tmp_path / "b")
    assert Remote("hf://datasets/org/name@main/cache").fetch(there, key).objects == 2
    assert there.check(key) == ()


@pytest.mark.usefixtures("hf")
def test_no_remembered_listing_hides_what_was_written_since() -> None:
    files = FsspecFiles("hf", "org/name", Limits())
    assert files.size("v1/x") is None
    FsspecFiles("hf", "org/name", Limits()).write("v1/x", b"one")
    assert (files.size("v1/x"), files.read("v1/x", 3)) == (3, b"one")


@pytest.mark.usefixtures("hf")
def test_commits_tell_which_candidate_is_the_latest() -> None:
    files = FsspecFiles("hf", "org/name", Limits())
    for name in ("aaaa", "b", "cc"):
        files.write(f"v1/requests/{name}", b"{}")
    assert files.names("v1/requests", latest_first=True) == ("aaaa", "cc", "b")
    assert sorted(files.names("v1/requests")) == ["aaaa", "b", "cc"]
    assert files.names("v1/nothing") == ()


class Driver:
    """A driver of fsspec that fails as it is told to."""

    def __init__(self, **errors: BaseException) -> None:
        self.errors = errors
        self.put: dict[str, bytes] = {}

    def _maybe(self, name: str) -> None:
        if name in self.errors:
            raise self.errors[name]

    def info(self, path: str) -> dict[str, Any]:
        self._maybe("info")
        if path not in self.put:
            raise FileNotFoundError(path)
        return {"name": path, "size": len(self.put[path]), "type": "file"}

    def cat_file(self, path: str) -> bytes:
        self._maybe("cat_file")
        return self.put[path]

    def ls(self, path: str, detail: bool) -> list[dict[str, Any]]:
        self._maybe("ls")
        return [
            {"name": f"{path}/x", "type": "file", "size": 0, "mtime": 5.0},
            {"name": f"{path}/y/", "LastModified": datetime(2026, 1, 1, tzinfo=UTC)},
        ]

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        self._maybe(f"pipe_file {mode}")
        self.put[path] = data


def driven(driver: Driver) -> FsspecFiles:
    files = FsspecFiles("s3", "bucket/prefix", Limits())
    files._made = driver
    return files


def test_a_driver_is_asked_below_the_prefix() -> None:
    driver = Driver()
    files = driven(driver)
    files.write("v1/x", b"one")
    assert driver.put == {"bucket/prefix/v1/x": b"one"}
    assert (files.size("v1/x"), files.size("v1/y"), files.read("v1/x", 3)) == (3, None, b"one")
    assert (files.names("v1"), files.names("v1", latest_first=True)) == (("x", "y"), ("y", "x"))
    with pytest.raises(CorruptError, match="more than 2 bytes"):
        files.read("v1/x", 2)


def test_a_server_without_conditional_writes_will_do() -> None:
    driver = Driver(**{"pipe_file create": OSError(errno.ENOSYS, "Not implemented")})
    files = driven(driver)
    assert (files.create("v1/x", b"first"), files.create("v1/x", b"second")) == (True, False)
    assert driver.put == {"bucket/prefix/v1/x": b"first"}


def test_a_conditional_write_that_comes_too_late_tells_so() -> None:
    driver = Driver(**{"pipe_file create": FileExistsError()})
    assert driven(driver).create("v1/x", b"mine") is False


@pytest.mark.parametrize("name", ["info", "ls", "cat_file"])
def test_a_refusal_is_no_absence(name: str) -> None:
    cause = Exception()
    cause.response = {"Error": {"Code": "NoSuchBucket"}}  # type: ignore[attr-defined]
    error = FileNotFoundError("The specified bucket does not exist")
    error.__cause__ = cause
    files = driven(Driver(**{name: error}))
    files._made.put["bucket/prefix/v1/x"] = b"one"
    with pytest.raises(FileNotFoundError):
        files.names("v1") if name == "ls" else files.read("v1/x", 9)


def test_a_file_that_goes_between_two_looks_is_absent() -> None:
    files = driven(Driver(cat_file=FileNotFoundError()))
    files._made.put["bucket/prefix/v1/x"] = b"one"
    assert files.read("v1/x", 9) is None
