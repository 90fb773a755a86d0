"""`precast inspect ls` lists, filters and sorts."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.support import Ran, publish

from precast.cache.root import CacheRoot

Run = Callable[..., Ran]

_SHARED = b"shared" * 1000


@pytest.fixture
def keys(root: Path) -> dict[str, str]:
    """Two entries that share one object; `tiny` was used two hours ago, `large` ten days ago."""
    now = time.time_ns()
    return {
        "tiny": publish(root, "tiny", (_SHARED,), used_ns=now - 2 * 3600 * 10**9),
        "large": publish(root, "large", (_SHARED, b"own" * 100), used_ns=now - 10 * 86400 * 10**9),
    }


def test_an_empty_store_is_an_empty_list(run: Run, root: Path) -> None:
    ran = run("inspect", "ls", "--json")
    assert (ran.code, ran.json()["data"]["entries"]) == (0, [])
    assert f"No entries in {root}" in run("inspect", "ls").out
    assert not root.exists()


def test_people_read_short_keys_and_ages(run: Run, keys: dict[str, str]) -> None:
    header, *rows, footer = run("inspect", "ls", "--sort", "used").out.splitlines()
    assert header.split() == ["KEY", "MODEL", "TARGET", "TORCH", "PIECES", "SIZE", "USED", "STATE"]
    assert rows[0].split()[:5] == [keys["tiny"][:12], "tiny", "cpu", "x86-64-v3", "2.13.0"]
    assert "2 h ago" in rows[0]
    assert "10 d ago" in rows[1]
    assert footer.startswith("2 entries · ")
    assert "after sharing objects" in footer


def test_the_long_listing_has_full_keys(run: Run, keys: dict[str, str]) -> None:
    ran = run("inspect", "ls", "--long")
    assert keys["tiny"] in ran.out
    assert "2026-11-30T14:02:00Z" in ran.out


def test_json_counts_shared_objects_once_in_the_sum(run: Run, keys: dict[str, str]) -> None:
    data = run("inspect", "ls", "--json").json()["data"]
    assert [entry["key"] for entry in data["entries"]] == sorted(keys.values())
    shared = {name for entry in data["entries"] for name in entry["objects"]}
    assert len(shared) == 2
    assert data["bytes"] - data["shared_bytes"] == len(_SHARED)
    assert data["bytes"] == sum(entry["bytes"] for entry in data["entries"])


def test_tsv_has_a_header_and_full_values(run: Run, keys: dict[str, str]) -> None:
    rows = run("inspect", "ls", "--format", "tsv").tsv()
    assert {row["key"] for row in rows} == set(keys.values())
    assert all(row["bytes"].isdecimal() for row in rows)


def test_quiet_writes_keys_only_so_that_they_can_be_piped(run: Run, keys: dict[str, str]) -> None:
    assert run("inspect", "ls", "-q", "--filter", "used>7d").out == keys["large"] + "\n"


def test_filters_sort_and_limit_work_together(run: Run, keys: dict[str, str]) -> None:
    assert run("inspect", "ls", "-q", "--sort", "size:desc", "--limit", "1").out == keys["large"] + "\n"
    assert run("inspect", "ls", "-q", "--filter", "model=t*", "--filter", "pieces=2").out == ""


def test_a_damaged_entry_is_listed_with_its_state(run: Run, keys: dict[str, str], root: Path) -> None:
    CacheRoot(root).mega(keys["tiny"]).unlink()
    CacheRoot(root).manifest(keys["large"]).write_text("{}")
    ran = run("inspect", "ls", "--json")
    assert [entry["state"] for entry in ran.json()["data"]["entries"]] == ["damaged", "damaged"]
    found = {entry["key"]: entry for entry in ran.json()["data"]["entries"]}
    assert found[keys["large"]]["model"] is None
    assert "model.mega is missing" in found[keys["tiny"]]["reason"]
    assert len(run("inspect", "ls", "--filter", "state=damaged", "-q").out.splitlines()) == 2


def test_a_misspelt_filter_gets_a_suggestion(run: Run, root: Path) -> None:
    ran = run("inspect", "ls", "--filter", "sise>1GB")
    assert ran.code == 2
    assert "Did you mean size?" in ran.err
