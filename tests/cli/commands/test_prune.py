"""`precast prune` shows its plan, asks, and does just that."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.support import Ran, publish, put_entry

from precast.cache.root import CacheRoot
from precast.cache.store import STORE_LOCK, Store
from precast.cache.tags import set_tag
from precast.errors import ExitCode

Run = Callable[..., Ran]


@pytest.fixture
def keys(root: Path) -> dict[str, str]:
    """A new entry and one that was not used for forty days."""
    now = time.time_ns()
    return {
        "new": publish(root, "tiny", (b"one",), used_ns=now),
        "old": publish(root, "large", (b"two",), used_ns=now - 40 * 86400 * 10**9),
    }


def _stored(root: Path) -> set[str]:
    return {path.name for path in CacheRoot(root).entries.iterdir()}


def test_without_a_terminal_yes_is_demanded(run: Run, keys: dict[str, str], root: Path) -> None:
    ran = run("prune", "--max-age", "30d", "--json")
    assert ran.code == ExitCode.USAGE
    assert "--yes" in ran.json()["errors"][0]["message"]
    assert _stored(root) == set(keys.values())


def test_a_dry_run_changes_nothing_and_never_asks(run: Run, keys: dict[str, str], root: Path) -> None:
    before = sorted(path for path in root.rglob("*"))
    ran = run("prune", "--max-age", "30d", "--dry-run")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].startswith(f"would remove {keys['old'][:12]}  large cpu x86-64-v3  not used for 40 d")
    assert lines[-1].startswith("Would free ")
    assert lines[-1].endswith("nothing was changed")
    assert sorted(path for path in root.rglob("*")) == before


def test_the_dry_run_and_the_real_run_name_the_same_things(run: Run, keys: dict[str, str], root: Path) -> None:
    planned = run("prune", "--max-age", "30d", "--dry-run", "--json").json()["data"]
    done = run("prune", "--max-age", "30d", "--yes", "--json").json()["data"]
    assert (planned["dry_run"], done["dry_run"]) == (True, False)
    assert planned["removed"] == done["removed"]
    assert planned["freed_bytes"] == done["freed_bytes"] > 0
    assert _stored(root) == {keys["new"]}


def test_a_second_prune_has_nothing_to_do(run: Run, keys: dict[str, str], root: Path) -> None:
    assert "Freed " in run("prune", "--max-age", "30d", "--yes").out
    ran = run("prune", "--max-age", "30d", "--yes")
    assert (ran.code, ran.out.split("  ")[0]) == (0, "nothing to do")
    assert run("prune", "--max-age", "30d", "--yes", "--json").json()["data"]["removed"] == []


def test_without_a_rule_good_entries_stay(run: Run, keys: dict[str, str], root: Path) -> None:
    assert run("prune", "--yes", "--json").code == 0
    assert _stored(root) == set(keys.values())


def test_an_entry_can_be_named_by_a_prefix(run: Run, keys: dict[str, str], root: Path) -> None:
    assert keys["new"] in run("prune", "--key", keys["new"][:8], "--yes", "-q").out.split()
    assert _stored(root) == {keys["old"]}


def test_a_key_that_is_not_there_removes_nothing(run: Run, keys: dict[str, str], root: Path) -> None:
    assert run("prune", "--key", keys["new"], "--key", "abcdef012345", "--yes", "--json").code == ExitCode.NO_ENTRY
    assert _stored(root) == set(keys.values())


def test_the_least_recently_used_goes_first(run: Run, keys: dict[str, str], root: Path) -> None:
    data = run("prune", "--dry-run", "--json").json()["data"]
    run("prune", "--max-size", str(data["bytes_before"] - 1), "--yes")
    assert _stored(root) == {keys["new"]}


def test_a_limit_on_files_counts_too(run: Run, keys: dict[str, str], root: Path) -> None:
    files = run("prune", "--dry-run", "--json").json()["data"]["files_before"]
    run("prune", "--max-files", str(files - 1), "--yes")
    assert _stored(root) == {keys["new"]}


def test_a_store_that_does_not_exist_has_nothing_to_prune(run: Run, root: Path) -> None:
    assert run("prune", "--yes", "--json").json()["data"]["removed"] == []
    assert not root.exists()


@pytest.mark.parametrize(("flag", "value"), [("--max-size", "much"), ("--max-age", "30")])
def test_what_is_no_size_or_age_is_refused(run: Run, root: Path, flag: str, value: str) -> None:
    assert run("prune", flag, value, "--dry-run", "--json").code == ExitCode.USAGE


class _Person:
    """A terminal with a person who has typed one line."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def readline(self, _size: int = -1) -> str:
        return self.answer


@pytest.mark.parametrize(("answer", "code", "kept"), [("y\n", 0, {"new"}), ("n\n", 1, {"new", "old"})])
def test_on_a_terminal_the_plan_is_shown_and_the_answer_decides(
    run: Run,
    keys: dict[str, str],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    code: int,
    kept: set[str],
) -> None:
    monkeypatch.setattr("sys.stdin", _Person(answer))
    ran = run("prune", "--max-age", "30d")
    assert ran.code == code
    assert keys["old"][:12] in ran.out
    assert "Remove this?" in ran.out + ran.err
    assert _stored(root) == {keys[name] for name in kept}


def _removed(ran: Ran, kind: str = "entry") -> list[str]:
    return [item["id"] for item in ran.json()["data"]["removed"] if item["kind"] == kind]


def test_max_bytes_is_another_name_of_max_size(run: Run, keys: dict[str, str], root: Path) -> None:
    size = run("prune", "--dry-run", "--json").json()["data"]["bytes_before"] - 1
    one, other = (run("prune", flag, str(size), "--dry-run", "--json") for flag in ("--max-bytes", "--max-size"))
    assert _removed(one) == _removed(other) == [keys["old"]]


def test_an_entry_can_be_named_by_a_tag_and_a_tag_dropped_alone(run: Run, keys: dict[str, str], root: Path) -> None:
    set_tag(Store(root), "release-40", keys["new"])
    assert _removed(run("prune", "--drop-tag", "release-40", "--dry-run", "--json"), "tag") == ["release-40"]
    ran = run("prune", "--key", "release-40", "--yes", "--json")
    assert (_removed(ran), _removed(ran, "tag")) == ([keys["new"]], ["release-40"])
    assert _stored(root) == {keys["old"]}
    for flags in (("--drop-tag", "release-40"), ("--key", "release-40")):
        assert run("prune", *flags, "--yes", "--json").code == ExitCode.NO_ENTRY


def test_what_stays_is_shown_with_its_reason(run: Run, keys: dict[str, str], root: Path) -> None:
    for tag, key in (("release-40", keys["old"]), ("nightly", keys["new"])):
        set_tag(Store(root), tag, key)
    ran = run("prune", "--max-age", "0s", "--keep-tag", "release-*", "--dry-run")
    lines = ran.out.splitlines()
    assert lines[0].startswith(f"would remove {keys['new'][:12]}")
    assert f"would keep   {keys['old'][:12]} (tagged release-40)" in lines
    assert any(line.startswith("would remove 1 tag: nightly") for line in lines)
    with Store(root).hold(keys["new"]):
        assert f"{keys['new'][:12]} (in use)" in run("prune", "--key", keys["new"], "--yes").out


def test_a_filter_chooses_alone_and_narrows_with_other_rules(run: Run, keys: dict[str, str], root: Path) -> None:
    assert _removed(run("prune", "--filter", "model=tiny", "--dry-run", "--json")) == [keys["new"]]
    both = ("--filter", "model=tiny", "--filter", "used>1d")
    assert _removed(run("prune", *both, "--dry-run", "--json")) == []
    for rule in (("--max-age", "30d"), ("--max-size", "1"), ("--current-version-only",)):
        assert keys["old"] not in _removed(run("prune", "--filter", "model=tiny", *rule, "--dry-run", "--json"))
    assert run("prune", "--filter", "sise>1", "--dry-run", "--json").code == ExitCode.USAGE
    ran = run("prune", "--filter", "model=tiny", "--orphans", "--yes", "--json")
    assert ran.code == ExitCode.USAGE
    assert _stored(root) == set(keys.values())


def test_only_the_current_version_is_kept_if_asked(run: Run, keys: dict[str, str], root: Path) -> None:
    older = put_entry(root, {"config/model.layers": 9})
    made = Store(root).manifest(older)
    renewed = replace(made, build=replace(made.build, precast="0.0.1"))
    CacheRoot(root).manifest(older).write_bytes(renewed.to_json())
    ran = run("prune", "--current-version-only", "--yes", "--json")
    assert _removed(ran) == [older]
    reasons = {item["id"]: item["reason"] for item in ran.json()["data"]["removed"]}
    assert reasons[older] == "built by precast 0.0.1"
    assert _stored(root) == set(keys.values())


def test_broken_and_orphans_are_told_apart(run: Run, keys: dict[str, str], root: Path) -> None:
    CacheRoot(root).mega(keys["old"]).unlink()
    lone = CacheRoot(root).object("ef" * 32)
    lone.parent.mkdir(exist_ok=True)
    lone.touch()
    assert _removed(run("prune", "--broken", "--dry-run", "--json")) == [keys["old"]]
    orphans = run("prune", "--orphans", "--dry-run", "--json")
    assert (_removed(orphans), _removed(orphans, "object")) == ([], ["ef" * 32])
    ran = run("prune", "--yes", "--json")
    assert _removed(ran) == [keys["old"]]
    assert "ef" * 32 in _removed(ran, "object")


def test_a_limit_that_cannot_hold_is_told_with_a_way_out(run: Run, keys: dict[str, str], root: Path) -> None:
    set_tag(Store(root), "release-40", keys["old"])
    answer = run("prune", "--max-files", "1", "--yes", "--json").json()
    (warning,) = answer["warnings"]
    assert warning["code"] == "prune.limit_unmet"
    assert warning["message"] == answer["data"]["unmet"][0]
    assert "--keep-tag" in warning["hint"]
    assert _stored(root) == {keys["old"]}


def test_room_is_made_on_the_file_system(run: Run, keys: dict[str, str], root: Path) -> None:
    assert _removed(run("prune", "--min-free", "1", "--dry-run", "--json")) == []
    answer = run("prune", "--min-free", "100000TB", "--dry-run", "--json").json()
    assert [warning["code"] for warning in answer["warnings"]] == ["prune.limit_unmet"]
    assert answer["data"]["removed"] == []


def test_what_only_people_can_tidy_is_told(run: Run, keys: dict[str, str], root: Path) -> None:
    (root / "v0" / "entries").mkdir(parents=True)
    (CacheRoot(root).tags).mkdir(exist_ok=True)
    (CacheRoot(root).tags / "lost").write_text("ab" * 32)
    answer = run("prune", "--yes", "--json").json()
    assert {warning["code"] for warning in answer["warnings"]} == {"prune.other_layout", "prune.loose_tag"}
    assert [item["path"] for item in answer["data"]["foreign"]] == ["v0"]
    assert answer["data"]["loose_tags"] == ["lost"]
    assert (root / "v0" / "entries").is_dir()


def test_what_only_keeps_takes_nothing(run: Run, keys: dict[str, str], root: Path) -> None:
    ran = run("prune", "--keep-last", "1", "--yes")
    assert "only say what stays" in ran.err
    assert _stored(root) == set(keys.values())
    assert _removed(run("prune", "--keep-last", "1", "--max-age", "0s", "--dry-run", "--json")) == [keys["old"]]


@pytest.mark.parametrize("how", [("--read-only",), ()])
def test_a_store_that_is_only_read_is_not_pruned(
    run: Run, keys: dict[str, str], root: Path, how: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not how:
        monkeypatch.setenv("PRECAST_READ_ONLY", "1")
    ran = run("prune", "--max-age", "30d", "--yes", "--json", *how)
    assert ran.code == ExitCode.USAGE
    assert "read-only" in ran.json()["errors"][0]["why"]
    assert _removed(run("prune", "--max-age", "30d", "--dry-run", "--json", *how)) == [keys["old"]]
    assert _stored(root) == set(keys.values())


def test_a_root_that_is_a_link_is_refused_with_the_place_it_names(run: Run, keys: dict[str, str], root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    ran = run("prune", "--max-size", "1", "--yes", "--cache-dir", str(link), "--json")
    assert ran.code == ExitCode.USAGE
    assert f"--cache-dir {root}" in ran.json()["errors"][0]["hint"]
    assert _stored(root) == set(keys.values())


def test_another_prune_is_waited_for_only_so_long(run: Run, keys: dict[str, str], root: Path) -> None:
    with Store(root).lock(STORE_LOCK):
        ran = run("prune", "--max-age", "30d", "--yes", "--lock-timeout", "0", "--json")
    assert ran.code == ExitCode.LOCKED
    assert "process" in ran.json()["errors"][0]["why"]
    assert _stored(root) == set(keys.values())


def test_tables_hold_what_goes(run: Run, keys: dict[str, str], root: Path) -> None:
    rows = run("prune", "--max-age", "30d", "--dry-run", "--format", "tsv").tsv()
    assert (rows[0]["kind"], rows[0]["id"], rows[0]["reason"]) == ("entry", keys["old"], "not used for 40 d")
