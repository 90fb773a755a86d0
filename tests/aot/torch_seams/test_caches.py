"""torch's cache folder while precast works, and a user without a name."""

import getpass
import os
from pathlib import Path

import pytest

from precast.aot.torch_seams.caches import private_caches, user_has_name

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


@pytest.fixture
def nameless(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 4242")

    monkeypatch.setattr(getpass, "getuser", unknown)


def test_a_user_without_a_name_gets_the_one_that_newer_torch_takes(nameless: None) -> None:
    with user_has_name():
        assert getpass.getuser() == f"uid_{os.getuid()}"
    with pytest.raises(KeyError):
        getpass.getuser()


def test_a_user_with_a_name_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    with user_has_name():
        assert getpass.getuser() == "alice"


def test_the_folder_is_ours_while_the_block_runs_and_what_else_is_set_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nameless: None
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("SET_BY_A_MODEL", raising=False)
    with private_caches(tmp_path):
        assert os.environ[VARIABLE] == str(tmp_path)
        monkeypatch.setenv("SET_BY_A_MODEL", "1")
        getpass.getuser()
    assert VARIABLE not in os.environ
    assert os.environ["SET_BY_A_MODEL"] == "1"


def test_a_folder_that_the_user_named_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/theirs")
    with private_caches(tmp_path):
        assert os.environ[VARIABLE] == "/theirs"
    assert os.environ[VARIABLE] == "/theirs"
