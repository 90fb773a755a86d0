"""Places as errors name them: owner by name and number, mode in both forms, alike ones together."""

import grp
import os
import pwd
import stat
from pathlib import Path

import pytest

from precast.cache.places import Place, details, listed, quoted, shell


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Know one user and one group by name."""

    def user(uid: int) -> pwd.struct_passwd:
        if uid != 7:
            raise KeyError(uid)
        return pwd.struct_passwd(("alice", "x", 7, 8, "", "/", "/bin/sh"))

    def group(gid: int) -> grp.struct_group:
        if gid != 8:
            raise KeyError(gid)
        return grp.struct_group(("team", "x", 8, []))

    monkeypatch.setattr(pwd, "getpwuid", user)
    monkeypatch.setattr(grp, "getgrgid", group)


def place(name: str, uid: int = 7, gid: int = 8, bits: int = stat.S_IFDIR | 0o2750) -> Place:
    return Place(Path(name), uid, gid, bits)


def test_owner_and_group_are_told_by_name_and_number_or_by_number_alone() -> None:
    assert place("/a").rights == "owner alice 7, mode drwxr-s--- 2750"
    assert place("/a", 9, 9).rights == "owner 9, mode drwxr-s--- 2750"
    assert place("/a").to_json("no") == {
        "path": "/a", "owner": "alice", "owner_uid": 7, "group": "team", "owner_gid": 8,
        "mode": "drwxr-s---", "octal": "2750", "reason": "no",
    }  # fmt: skip
    assert place("/a", 9, 9).to_json("no")["group"] == "9"


def test_a_place_is_what_is_there_now(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    here = Place.at(tmp_path)
    assert (here.mode, here.uid, here.gid) == ("drwx--x--x", os.getuid(), tmp_path.stat().st_gid)


def test_alike_places_are_told_together_and_a_long_list_is_cut() -> None:
    text = listed([(place("/a"), "no"), (place("/b"), "no"), (place("/c", 9), "no"), (place("/d"), "never")])
    alice = "(owner alice 7, mode drwxr-s--- 2750)"
    assert text == f"/a, /b {alice}: no; /c (owner 9, mode drwxr-s--- 2750): no; /d {alice}: never"
    long = listed([(place(f"/{number}"), "no") for number in range(30)])
    assert "/19, 10 more (owner" in long


def test_details_hold_every_place_and_who_was_refused() -> None:
    found = details([(place(f"/{number}"), "no") for number in range(30)], "chmod")
    assert found["user"] == {"uid": os.geteuid(), "gid": os.getegid()}
    assert (len(found["places"]), found["command"]) == (30, "chmod")  # type: ignore[arg-type]


def test_commands_are_safe_to_paste() -> None:
    assert quoted([Path("/a b"), Path("/a b"), Path("/c;d")]) == "'/a b' '/c;d'"
    assert shell("one", "", "two") == "one && two"
