"""Temporary folders: gone with their owner, and swept after an owner that was killed; never before."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.conftest import REPOSITORY

from precast.aot import scratch
from precast.aot.scratch import scratch_folder, sweep_scratch


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of this process and its children."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_a_folder_is_private_and_goes_with_the_block(place: Path) -> None:
    with scratch_folder("compile") as folder:
        assert folder.parent == place
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "deep").mkdir()
        (folder / "deep" / "file").touch()
    assert list(place.iterdir()) == []


def test_a_folder_goes_also_after_a_failure(place: Path) -> None:
    with pytest.raises(ZeroDivisionError), scratch_folder("load"):
        raise ZeroDivisionError
    assert list(place.iterdir()) == []


def test_the_folder_of_a_living_owner_is_never_swept(place: Path) -> None:
    with scratch_folder("compile") as first, scratch_folder("load") as second:
        (first / "file").touch()
        os.utime(first, (1, 1))
        sweep_scratch()
        assert (first / "file").exists()
        assert second.exists()


_OWNER = """
import os, sys
from precast.aot.scratch import scratch_folder
with scratch_folder(sys.argv[1]) as folder:
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text("half a payload")
    print(folder, flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("use", ["compile", "load"])
def test_what_a_killed_owner_left_goes_with_the_next_folder_of_any_use(use: str, place: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run([sys.executable, "-c", _OWNER, use], env=environ, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    left = Path(done.stdout.strip())
    assert (left / "deep" / "file").exists()
    with scratch_folder("compile") as folder:
        assert list(place.iterdir()) == [folder]


def test_a_sweep_that_was_cut_short_is_done_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = place / "precast-load-abc"
    left.mkdir()
    (left / "file").touch()
    (left / "owner.lock").touch()

    def refuse(item: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(scratch, "_remove", refuse)
        sweep_scratch()
    assert left.exists()
    sweep_scratch()
    assert not left.exists()


def test_nothing_foreign_is_swept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("precast-other-1", "precast-compile-unlocked", "else"):
        (place / name).mkdir()
        (place / name / "file").touch()
    target = place / "target"
    target.mkdir()
    (target / "owner.lock").touch()
    (place / "precast-load-link").symlink_to(target)
    theirs = place / "precast-load-theirs"
    theirs.mkdir()
    (theirs / "owner.lock").touch()
    (place / "precast-load-file").touch()
    before = set(place.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4242)
        sweep_scratch()
    assert set(place.rglob("*")) == before
    sweep_scratch()
    assert before - set(place.rglob("*")) == {theirs, theirs / "owner.lock"}


def test_a_maker_whose_folder_is_swept_before_it_is_locked_makes_another(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = tempfile.mkdtemp, []

    def make_then_sweep(prefix: str) -> str:
        made.append(make(prefix=prefix))
        if len(made) == 1:
            sweep_scratch()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_then_sweep)
    with scratch_folder("compile") as folder:
        assert [Path(name).exists() for name in made] == [False, True]
        assert folder == Path(made[1])


def test_a_temporary_folder_without_locks_is_used_and_never_swept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with scratch_folder("compile") as folder:
        sweep_scratch()
        assert folder.exists()
    assert list(place.iterdir()) == []
