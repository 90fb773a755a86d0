import os
import pwd
from pathlib import Path

import pytest

from precast.cache.root import CacheRoot, RootChoice, resolve_root
from precast.errors import StoreAccessError


def test_the_flag_wins_over_all_others(tmp_path: Path) -> None:
    environ = {"PRECAST_CACHE_DIR": "/b", "XDG_CACHE_HOME": "/d", "HOME": "/e"}
    assert resolve_root(str(tmp_path), environ, "/c") == RootChoice(tmp_path, "flag")


@pytest.mark.parametrize(
    ("environ", "configured", "choice"),
    [
        (
            {"PRECAST_CACHE_DIR": "/b", "XDG_CACHE_HOME": "/d", "HOME": "/e"},
            "/c",
            RootChoice(Path("/b"), "environment"),
        ),
        ({"PRECAST_CACHE_DIR": "", "XDG_CACHE_HOME": "/d", "HOME": "/e"}, "/c", RootChoice(Path("/c"), "file")),
        ({"XDG_CACHE_HOME": "/d", "HOME": "/e"}, None, RootChoice(Path("/d/precast"), "xdg")),
        ({"XDG_CACHE_HOME": "", "HOME": "/e"}, None, RootChoice(Path("/e/.cache/precast"), "default")),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/e"}, "", RootChoice(Path("/e/.cache/precast"), "default")),
        ({"HOME": "/e"}, "~/kept", RootChoice(Path("/e/kept"), "file")),
        ({"HOME": "/e"}, "~", RootChoice(Path("/e"), "file")),
    ],
)
def test_the_next_place_that_is_named_decides(
    environ: dict[str, str], configured: str | None, choice: RootChoice
) -> None:
    assert resolve_root(None, environ, configured) == choice


def test_a_relative_flag_is_taken_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_root("here", {}).path == tmp_path / "here"


def test_without_home_the_passwd_database_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    person = pwd.struct_passwd(("ci", "x", 7, 7, "", "/home/ci", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: person)
    assert resolve_root(None, {}).path == Path("/home/ci/.cache/precast")


def test_without_any_home_the_error_names_the_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(StoreAccessError) as caught:
        resolve_root(None, {})
    assert "PRECAST_CACHE_DIR" in caught.value.hint
    assert str(os.getuid()) in caught.value.why


def test_making_a_layout_touches_no_disk(tmp_path: Path) -> None:
    assert CacheRoot(tmp_path / "root").object("ab" * 32).parent.name == "ab"
    assert list(tmp_path.iterdir()) == []


def test_a_prepared_root_is_marked_for_backups_and_git(tmp_path: Path) -> None:
    root = CacheRoot(tmp_path / "deep" / "root")
    root.prepare()
    root.prepare()
    assert (root.path / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
    assert (root.path / ".gitignore").read_text() == "*\n"
    assert all(folder.is_dir() for folder in root.folders)
    assert list(root.foreign()) == []


def test_a_folder_that_holds_other_things_is_not_hidden_from_git(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    root = CacheRoot(tmp_path)
    root.prepare()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "v1"]
    assert (root.base / ".gitignore").exists()
    assert list(root.foreign()) == [tmp_path / "notes.txt"]


def test_a_root_that_cannot_be_created_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreAccessError) as caught:
        CacheRoot(tmp_path / "file" / "root").prepare()
    assert str(tmp_path / "file") in caught.value.why
