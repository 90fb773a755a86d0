import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from precast.cache.atomic import refused, unique, write_atomic
from precast.errors import StoreAccessError


def failing(code: int) -> Any:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_write_replaces_the_old_content_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    write_atomic(path, b"new", durable=False)
    assert path.read_bytes() == b"new"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_content_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")
    monkeypatch.setattr(os, "fsync", failing(errno.EIO) if step == "fsync" else os.fsync)
    if step == "replace":
        monkeypatch.setattr(Path, "replace", failing(errno.EIO))
    with pytest.raises(StoreAccessError):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_data_and_name_reach_the_disk_before_the_write_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def noted_replace(path: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    write_atomic(tmp_path / "file", b"new")
    assert steps == ["file", "rename", "folder"]


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_atomic(tmp_path / "open", b"")
        os.umask(0o077)
        write_atomic(tmp_path / "closed", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "open").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "closed").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_named_with_the_bytes_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(os, "fsync", failing(code))
    with pytest.raises(StoreAccessError) as caught:
        write_atomic(tmp_path / "file", bytes(1234))
    assert "1234 bytes" in caught.value.what
    mount = next(str(place) for place in (tmp_path, *tmp_path.parents) if os.path.ismount(place))
    assert f"file system at {mount} (" in caught.value.why
    assert "bytes free" in caught.value.why


def test_another_refusal_names_the_file_and_the_reason(tmp_path: Path) -> None:
    error = refused(PermissionError(errno.EACCES, "Permission denied"), tmp_path / "file")
    assert (error.what, error.why) == (f"{tmp_path / 'file'} cannot be written", "Permission denied")
    assert error.path == str(tmp_path / "file")


def test_unique_names_differ() -> None:
    assert len({unique("a") for _ in range(100)}) == 100
