"""Everything that cannot be written is told at once, with owner, mode and the command that mends it."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.users import NOBODYS, folder_for_all, needs_root, run_as

from precast.cache.access import unwritable_folders
from precast.cache.root import CacheRoot
from precast.cache.writable import require_writable
from precast.errors import StoreAccessError


@pytest.fixture(autouse=True)
def own_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a temporary folder of its own, not looked for yet."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path / "scratch"


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    made = CacheRoot(tmp_path / "root")
    made.prepare()
    return made


def closed(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    """Let some places refuse writes, whoever runs the test."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) not in paths)


def refused(root: CacheRoot, output: Path | None = None, *, compiles: bool = True) -> StoreAccessError:
    with pytest.raises(StoreAccessError) as caught:
        require_writable(root, output=output, compiles=compiles)
    return caught.value


def paths(error: StoreAccessError) -> list[str]:
    return [place["path"] for place in error.details["places"]]


def test_a_store_that_can_be_written_is_fine(root: CacheRoot, tmp_path: Path) -> None:
    require_writable(root, output=tmp_path / "x.mega")
    require_writable(CacheRoot(tmp_path / "not" / "there" / "yet"))
    assert not (tmp_path / "not").exists()


def test_all_that_is_refused_is_listed_at_once_with_owner_mode_and_own_number(
    root: CacheRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, out = root.objects / "ab", tmp_path / "out"
    shard.mkdir()
    out.mkdir()
    root.stats.chmod(0o2750)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "scratch"))
    closed(monkeypatch, root.path, root.base, root.stats, shard, out, tmp_path / "scratch")
    error = refused(root, out / "x.mega")
    assert paths(error) == [*map(str, (root.path, root.base, root.stats, shard, out, tmp_path / "scratch"))]
    by_path = {place["path"]: place for place in error.details["places"]}
    told = by_path[str(root.stats)]
    assert (told["owner_uid"], told["mode"], told["octal"]) == (os.getuid(), "drwxr-s---", "2750")
    assert told["owner"] in error.why
    assert told["owner_gid"] == root.stats.stat().st_gid
    assert error.details["user"] == {"uid": os.geteuid(), "gid": os.getegid()}
    for text in (str(root.stats), "drwxr-s--- 2750", f"uid {os.geteuid()} gid {os.getegid()}"):
        assert text in error.why
    for flag in ("--cache-dir", "--output", "TMPDIR", "--check", "--dry-run"):
        assert flag in error.hint


def test_a_part_of_a_store_that_is_never_written_is_no_matter(root: CacheRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(monkeypatch, root.path, root.base)
    require_writable(root)


def test_a_lock_of_another_user_is_listed(root: CacheRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = root.lock("store")
    others = (root.locks / "claim.ab.1-0011.lock", root.lock("entry-ab"))
    for path in (lock, *others):
        path.touch()
    closed(monkeypatch, lock, *others)
    assert paths(refused(root)) == [str(lock)]
    assert unwritable_folders(root) == ()


def test_only_what_is_ours_is_given_away_all_the_way_down(root: CacheRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 5001)
    monkeypatch.setattr(os, "getegid", lambda: 5002)
    closed(monkeypatch, *root.folders)
    error = refused(root)
    command = f"chown 5001:5002 {root.path} && chown -R 5001:5002 {root.base}"
    assert error.details["command"] == command
    assert f"As root, run `{command}`" in error.hint


def test_a_folder_of_one_s_own_needs_no_root_to_be_mended(root: CacheRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    root.tags.chmod(0o500)
    closed(monkeypatch, root.tags)
    error = refused(root)
    assert error.details["command"] == f"chmod -R u+rwX {root.base}"
    assert error.hint.startswith("Run `chmod")
    root.tags.chmod(0o700)


def test_a_root_that_does_not_exist_is_made_and_given_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "new root"
    closed(monkeypatch, tmp_path)
    error = refused(CacheRoot(place))
    assert paths(error) == [str(tmp_path)]
    assert error.what == f"The cache at {place} cannot be written"
    assert error.details["command"].startswith(f"mkdir -p '{place}' && chown ")


def test_a_read_only_file_system_is_mounted_again(root: CacheRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(monkeypatch, *root.folders)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((0,) * 8 + (os.ST_RDONLY, 255)))
    error = refused(root)
    assert {place["reason"] for place in error.details["places"]} == {"its file system is read-only"}
    assert error.details["command"].startswith("mount -o remount,rw /")


def test_a_file_in_the_way_has_no_command(tmp_path: Path) -> None:
    (tmp_path / "root").touch()
    error = refused(CacheRoot(tmp_path / "root"))
    assert (error.details["command"], error.hint[:4]) == ("", "Give")


@pytest.fixture
def no_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", missing)


def test_without_a_temporary_folder_nothing_can_be_compiled(root: CacheRoot, no_scratch: None) -> None:
    error = refused(root)
    assert error.what == "No temporary folder can be used to compile"
    assert error.hint.startswith(f"Give a folder that uid {os.geteuid()} may write with TMPDIR")


def test_a_temporary_folder_is_no_matter_where_nothing_is_compiled(root: CacheRoot, no_scratch: None) -> None:
    require_writable(root, compiles=False)


def test_but_it_is_told_along_with_what_matters(
    root: CacheRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_scratch: None
) -> None:
    closed(monkeypatch, root.tags)
    assert {str(root.tags), str(tmp_path / "scratch")} <= set(paths(refused(root, compiles=False)))


def test_a_temporary_folder_from_which_no_code_may_run_cannot_be_compiled_in(
    root: CacheRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((0,) * 8 + (os.ST_NOEXEC, 255)))
    error = refused(root)
    assert paths(error) == [str(tmp_path / "scratch")]
    assert "noexec" in error.why


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    with folder_for_all() as folder:
        yield folder


@needs_root
def test_another_user_really_may_not_write_and_is_told_so(shared_folder: Path) -> None:
    root = CacheRoot(shared_folder / "root")
    root.prepare()
    error = run_as(NOBODYS, NOBODYS, lambda: refused_as_text(root))
    assert set(error) == {str(path) for path in (root.path, root.base, *root.folders)}
    assert all(f"uid {NOBODYS} may not write it" in reason for reason in error.values())
    os.chown(root.path, NOBODYS, NOBODYS)
    assert str(root.path) not in run_as(NOBODYS, NOBODYS, lambda: refused_as_text(root))
    for path in root.folders:
        os.chown(path, NOBODYS, NOBODYS)
    run_as(NOBODYS, NOBODYS, lambda: require_writable(root, compiles=False))
    assert stat.S_IMODE(root.tags.stat().st_mode) == 0o755


@needs_root
def test_a_root_behind_a_folder_that_may_not_be_entered_is_judged_by_that_folder(shared_folder: Path) -> None:
    (shared_folder / "private" / "root").mkdir(parents=True)
    (shared_folder / "private").chmod(0o700)
    error = run_as(NOBODYS, NOBODYS, lambda: refused_as_text(CacheRoot(shared_folder / "private" / "root")))
    assert error == {str(shared_folder / "private"): f"uid {NOBODYS} may not write it"}


def refused_as_text(root: CacheRoot) -> dict[str, str]:
    try:
        require_writable(root)
    except StoreAccessError as error:
        return {place["path"]: place["reason"] for place in error.details["places"]}
    return {}
