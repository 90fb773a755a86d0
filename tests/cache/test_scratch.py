"""The temporary folder: which one is used, and what is said where there is none."""

import os
import tempfile
from pathlib import Path

import pytest

from precast.cache.scratch import require_scratch, scratch_candidates, unusable_scratch
from precast.errors import StoreAccessError


@pytest.fixture(autouse=True)
def own_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the test a temporary folder of its own, not looked for yet."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path / "scratch"


@pytest.fixture
def no_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", missing)


def test_a_folder_that_can_be_used_is_fine() -> None:
    assert unusable_scratch() == ()
    require_scratch("think in")


def test_variables_go_before_the_system_s_own_folders() -> None:
    found = scratch_candidates({"TMP": "/c", "TMPDIR": "/a", "TEMP": "/tmp"})
    assert found == (
        (Path("/a"), "TMPDIR"), (Path("/tmp"), "TEMP"), (Path("/c"), "TMP"), (Path("/var/tmp"), "default"),
        (Path("/usr/tmp"), "default"),
    )  # fmt: skip


def test_without_one_each_that_could_be_meant_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_scratch: None
) -> None:
    monkeypatch.setenv("TEMP", str(tmp_path / "gone" / "away"))
    reasons = {str(each.path): each.reason for each in unusable_scratch()}
    assert reasons[str(tmp_path / "scratch")] == "nothing can be written into it; it may be full"
    assert reasons[str(tmp_path)] == f"the temporary folder {tmp_path / 'gone' / 'away'} does not exist in it"
    assert "/tmp" in reasons
    with pytest.raises(StoreAccessError, match="There is no temporary folder to think in") as caught:
        require_scratch("think in")
    assert str(tmp_path / "scratch") in caught.value.why
    assert "TMPDIR" in caught.value.hint
    assert {place["path"] for place in caught.value.details["places"]} == set(reasons)


def test_one_from_which_no_code_may_run_is_unusable_for_a_compile_but_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((0,) * 8 + (os.ST_NOEXEC, 255)))
    assert [(each.path, "noexec" in each.reason) for each in unusable_scratch()] == [(tmp_path / "scratch", True)]
    require_scratch("trace with")


def test_one_that_was_taken_away_since_it_was_found_is_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_scratch("look once")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert [each.path for each in unusable_scratch()] == [tmp_path / "scratch"]
