"""`precast inspect stats` counts lookups."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.support import Ran

from precast.cache.counters import record_lookup
from precast.cache.store import Store

Run = Callable[..., Ran]

_DAY = 86400 * 10**9


@pytest.fixture
def counted(root: Path) -> Path:
    """A store with three hits and three misses; one hit and one miss are ten days old."""
    store, now = Store(root), time.time_ns()
    store.layout.prepare()
    for outcome, saved, age in (
        ("hit", 20.0, 10),
        ("hit", 1.5, 0),
        ("hit", 2.0, 0),
        ("factor_changed", 0.0, 10),
        ("factor_changed", 0.0, 0),
        ("no_entry_for_model", 0.0, 0),
    ):
        record_lookup(store, outcome, "", saved, now - age * _DAY)
    return root


def test_people_read_hits_misses_by_reason_and_seconds(run: Run, counted: Path) -> None:
    assert run("inspect", "stats").out.splitlines() == [
        "counted    everything since the counters were zeroed",
        "hits       3",
        "misses     3",
        "           2  factor_changed",
        "           1  no_entry_for_model",
        "hit rate   50 %",
        "saved      23.5 s",
    ]


def test_json_holds_the_counts_since_an_age(run: Run, counted: Path) -> None:
    data = run("inspect", "stats", "--since", "7d", "--json").json()["data"]
    assert (data["hits"], data["miss_count"], data["seconds_saved"]) == (2, 2, 3.5)
    assert data["misses"] == {"factor_changed": 1, "no_entry_for_model": 1}
    assert data["hit_rate"] == 0.5
    assert "the last 7d" in run("inspect", "stats", "--since", "7d").out


def test_tsv_has_a_row_for_each_outcome(run: Run, counted: Path) -> None:
    rows = run("inspect", "stats", "--format", "tsv").tsv()
    assert [tuple(row.values()) for row in rows] == [
        ("hit", "", "3"),
        ("miss", "factor_changed", "2"),
        ("miss", "no_entry_for_model", "1"),
    ]


def test_quiet_writes_nothing_because_counts_have_no_ids(run: Run, counted: Path) -> None:
    assert run("inspect", "stats", "-q").out == ""


def test_zeroing_shows_the_counts_for_the_last_time(run: Run, counted: Path) -> None:
    ran = run("inspect", "stats", "--zero", "--json")
    assert (ran.json()["data"]["hits"], ran.json()["data"]["zeroed"]) == (3, True)
    assert run("inspect", "stats", "--json").json()["data"]["hits"] == 0


def test_no_lookup_has_no_hit_rate_and_makes_no_folder(run: Run, root: Path) -> None:
    data = run("inspect", "stats", "--json").json()["data"]
    assert (data["hits"], data["misses"], data["hit_rate"]) == (0, {}, None)
    assert "hit rate   no lookup was counted" in run("inspect", "stats").out
    assert run("inspect", "stats", "--zero").code == 0
    assert not root.exists()


def test_an_age_without_a_unit_is_refused(run: Run, root: Path) -> None:
    ran = run("inspect", "stats", "--since", "7", "--json")
    assert (ran.code, ran.json()["errors"][0]["code"]) == (2, "config.bad_value")
