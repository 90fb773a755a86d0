"""`precast prune` shows its plan, asks, and does just that."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.support import Ran, publish

from precast.cache.root import CacheRoot
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
    assert lines[0].startswith(f"would remove {keys['old'][:12]}  not used for 40 d")
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
