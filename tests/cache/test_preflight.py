"""Preflight: a root that could not keep an entry whole, or not keep it at all, is refused before any work."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from precast.cache.preflight import ROOT_BYTES, SCRATCH_BYTES, require_room, require_working_root
from precast.cache.root import CacheRoot
from precast.errors import StoreAccessError


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    made = CacheRoot(tmp_path / "root")
    made.prepare()
    return made


def fails(code: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_local_disk_will_do_and_nothing_is_left(root: CacheRoot) -> None:
    require_working_root(root)
    assert list(root.staging.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "code", "what"),
    [
        ("replace", errno.ENOTSUP, "renaming a file over another"),
        ("rename", errno.EIO, "renaming a folder that is not empty"),
        ("rename", errno.EXDEV, "renaming a folder that is not empty"),
        ("fsync", errno.EIO, "making a new file"),
    ],
)
def test_a_file_system_that_lacks_something_is_refused_with_its_type(
    root: CacheRoot, monkeypatch: pytest.MonkeyPatch, call: str, code: int, what: str
) -> None:
    monkeypatch.setattr(os, call, fails(code))
    with pytest.raises(StoreAccessError) as caught:
        require_working_root(root)
    assert f"{what} does not work there" in caught.value.why
    assert "its type is " in caught.value.why
    assert list(root.staging.iterdir()) == []


def test_a_file_system_that_overwrites_silently_is_refused(root: CacheRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def without_exclusion(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        return real(path, flags & ~os.O_EXCL, *rest, **named)

    monkeypatch.setattr(os, "open", without_exclusion)
    with pytest.raises(StoreAccessError, match="refusing to make a file that is there"):
        require_working_root(root)


def test_a_rename_that_does_not_take_the_content_along_is_refused(
    root: CacheRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", lambda source, target: Path(source).unlink())
    with pytest.raises(StoreAccessError, match="reading what was renamed"):
        require_working_root(root)


def test_folders_that_cannot_be_synced_are_no_fault(root: CacheRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def only_files(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    require_working_root(root)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_a_closed_or_full_root_is_told_as_such(root: CacheRoot, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(os, "mkdir", fails(code))
    with pytest.raises(StoreAccessError, match=os.strerror(code)):
        require_working_root(root)


def disk(free: int, *, blocks: int = 1000, inodes: int = 10) -> Any:
    return SimpleNamespace(f_bavail=free, f_frsize=1, f_blocks=blocks, f_files=100, f_favail=inodes, f_flag=0)


def test_enough_room_is_enough(root: CacheRoot, tmp_path: Path) -> None:
    require_room(root, tmp_path)
    require_room(CacheRoot(tmp_path / "not" / "there" / "yet"), tmp_path / "nor this")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What `statvfs` says of a path that ends in a name; of others, the truth."""
    told: dict[str, Any] = {}
    real = os.statvfs

    def statvfs(path: Any) -> Any:
        return next((usage for end, usage in told.items() if str(path).endswith(end)), None) or real(path)

    monkeypatch.setattr(os, "statvfs", statvfs)
    return told  # type: ignore[return-value]


@pytest.mark.parametrize(("place", "needed"), [("root", ROOT_BYTES), ("scratch", SCRATCH_BYTES)])
def test_too_little_room_is_refused_with_what_is_needed_and_the_file_system(
    root: CacheRoot, tmp_path: Path, full: dict[str, Any], place: str, needed: int
) -> None:
    (tmp_path / "scratch").mkdir()
    full[place] = disk(needed - 1)
    with pytest.raises(StoreAccessError) as caught:
        require_room(root, tmp_path / "scratch")
    assert f"{needed} bytes" in caught.value.what
    assert "file system at " in caught.value.why
    full[place] = disk(needed)
    require_room(root, tmp_path / "scratch")


def test_a_file_system_without_inodes_is_full(root: CacheRoot, tmp_path: Path, full: dict[str, Any]) -> None:
    full["root"] = disk(10**9, inodes=0)
    with pytest.raises(StoreAccessError, match="too little space"):
        require_room(root, tmp_path)


def test_a_file_system_that_tells_no_sizes_is_not_judged(root: CacheRoot, tmp_path: Path, full: dict[str, Any]) -> None:
    full["root"] = disk(0, blocks=0)
    require_room(root, tmp_path)


def test_a_file_size_limit_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from precast.cache.preflight import require_room;"
        "from precast.cache.root import CacheRoot; require_room(CacheRoot(Path(sys.argv[1])), Path(sys.argv[1]))"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], preexec_fn=limit, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"files of 4096 bytes at most, and {ROOT_BYTES} bytes are needed" in done.stderr
    assert "file system at " in done.stderr
