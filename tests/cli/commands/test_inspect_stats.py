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
    assert run("inspect", "stats").out.splitlines()[2:] == [
        "counted    everything since the counters were zeroed",
        "hits       3",
        "misses     3",
        "           2  factor_changed",
        "           1  no_entry_for_model",
        "hit rate   50 %",
        "saved      23.5 s",
    ]


def test_where_the_store_is_and_on_which_file_system_is_told(
    run: Run, counted: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"1 0 0:1 / / rw - overlay a rw\n2 1 0:2 / {counted} rw - nfs4 b rw\n")
    monkeypatch.setattr("precast.cache.filesystem._MOUNTS", mounts)
    assert run("inspect", "stats").out.splitlines()[:2] == [
        f"root       {counted}  from PRECAST_CACHE_DIR",
        "           on nfs4, shared over a network",
    ]
    for command in ("stats", "ls"):
        data = run("inspect", command, "--json").json()["data"]
        assert (data["root"], data["root_origin"]) == (str(counted), "environment")
        assert data["filesystem"] == {"type": "nfs4", "network": True, "volatile": False}
    other = run("inspect", "stats", "--cache-dir", str(tmp_path / "other")).out.splitlines()
    assert other[:2] == [
        f"root       {tmp_path / 'other'}  from --cache-dir",
        "           on overlay, lost with the container or at a restart",
    ]


def test_a_store_that_others_can_write_to_is_shown_as_such(run: Run, counted: Path) -> None:
    assert run("inspect", "stats", "--json").json()["data"]["trusted"] is True
    counted.chmod(0o777)
    line = run("inspect", "stats").out.splitlines()[2]
    assert "not trusted" in line
    assert f"{counted} (owner " in line
    assert "drwxrwxrwx 0777" in line
    for command in ("stats", "ls"):
        assert run("inspect", command, "--json").json()["data"]["trusted"] is False


def test_zero_and_read_only_contradict_each_other(run: Run, counted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("inspect", "stats", "--zero", "--read-only").code == 2
    monkeypatch.setenv("PRECAST_READ_ONLY", "1")
    assert run("inspect", "stats", "--zero").code == 2
    assert run("inspect", "stats", "--json").json()["data"]["hits"] == 3


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
