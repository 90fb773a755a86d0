"""`precast inspect ls` lists, filters and sorts."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.support import Ran, publish, put_entry

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
    assert header.split() == ["KEY", "MODEL", "TARGET", "TORCH", "PIECES", "SIZE", "USED", "STATE", "TAGS"]
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


def test_tags_are_listed_and_filtered(run: Run, root: Path) -> None:
    tagged, plain = put_entry(root, tag="release-40"), put_entry(root, {"config/model.layers": 8})
    found = {entry["key"]: entry["tags"] for entry in run("inspect", "ls", "--json").json()["data"]["entries"]}
    assert found == {tagged: ["release-40"], plain: []}
    assert run("inspect", "ls", "-q", "--filter", "tag=release-*").out == tagged + "\n"
    assert run("inspect", "ls", "-q", "--filter", "tag!=release-40").out == plain + "\n"
    assert run("inspect", "ls", "-q", "--filter", "kind=aoti", "--filter", "kind!=inductor").out.count("\n") == 2
    assert run("inspect", "ls", "-q", "--filter", "device=cpu", "--filter", "arch=x86-64-v?").out.count("\n") == 2
    assert run("inspect", "ls", "-q", "--filter", "arch=sm_90").out == ""
    assert "release-40" in run("inspect", "ls").out


def test_listing_takes_what_is_not_changed_from_the_index(run: Run, root: Path) -> None:
    keys = sorted([put_entry(root), put_entry(root, {"config/model.layers": 8})])
    for key in keys:
        os.utime(CacheRoot(root).manifest(key), ns=(0, 0))
    assert run("inspect", "ls", "-q").out.split() == keys
    assert (CacheRoot(root).stats / "index-summary.json").is_file()
    shutil.rmtree(CacheRoot(root).entry(keys[0]))
    assert run("inspect", "ls", "-q").out.split() == keys[1:]
    (CacheRoot(root).stats / "index-summary.json").write_text("not an index")
    assert run("inspect", "ls", "-q").out.split() == keys[1:]


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    """A cache of vLLM with one folder of pieces and one AOT artifact."""
    home = tmp_path / "vllm" / "torch_compile_cache"
    prefix = home / "0123456789" / "rank_0_0" / "backbone"
    prefix.mkdir(parents=True)
    (prefix / "cache_key_factors.json").write_text("{}")
    for number in range(2):
        (prefix / f"artifact_compile_range_1_8192_subgraph_{number}").write_bytes(b"x" * 5000)
    model = home / "torch_aot_compile" / ("ab" * 32) / "rank_0_0" / "model"
    model.parent.mkdir(parents=True)
    model.write_bytes(b"y" * 100_000)
    return tmp_path / "vllm"


@pytest.mark.parametrize("inner", ["", "torch_compile_cache"])
@pytest.mark.parametrize("option", ["--vllm", "--cache-dir"])
def test_a_cache_of_vllm_is_listed(run: Run, root: Path, vllm: Path, option: str, inner: str) -> None:
    put_entry(root)
    before = sorted(vllm.rglob("*"))
    data = run("inspect", "ls", option, str(vllm / inner), "--json").json()["data"]
    assert (data["entries"], data["count"]) == ([], 2)
    found = {row["kinds"][0]: row for row in data["vllm"]}
    assert found["hash"]["key"] == "0123456789"
    assert (found["hash"]["artifacts"], found["hash"]["prefixes"], found["hash"]["ranks"]) == (2, ["backbone"], ["0_0"])
    assert found["hash"]["factors"].endswith("backbone/cache_key_factors.json")
    assert (found["aot"]["key"], found["aot"]["artifacts"], found["aot"]["factors"]) == ("ab" * 32, 1, None)
    assert data["bytes"] == sum(row["bytes"] for row in data["vllm"])
    assert sorted(vllm.rglob("*")) == before


def test_entries_of_vllm_are_filtered_sorted_and_shown(run: Run, root: Path, vllm: Path) -> None:
    words = ["inspect", "ls", "--vllm", str(vllm)]
    header, *rows, footer = run(*words, "--sort", "size:desc").out.splitlines()
    assert header.split() == ["KEY", "KIND", "RANKS", "PREFIXES", "ARTIFACTS", "SIZE", "WRITTEN"]
    assert [row.split()[1] for row in rows] == ["aot", "hash"]
    assert footer.startswith("2 vLLM entries · ")
    assert run(*words, "-q", "--filter", "kind=hash").out == "0123456789\n"
    assert run(*words, "-q", "--filter", "model=llama").out == ""
    assert run(*words, "--format", "tsv", "--sort", "torch").tsv()[0]["ranks"] == '["0_0"]'
    assert "cache_key_factors.json" in run(*words, "--long").out


def test_a_folder_without_a_cache_of_vllm_exits_10(run: Run, root: Path, tmp_path: Path) -> None:
    assert run("inspect", "ls", "--vllm", str(tmp_path / "absent"), "--json").code == 10


def test_our_own_store_goes_before_a_cache_of_vllm_in_the_same_folder(run: Run, vllm: Path) -> None:
    key = put_entry(vllm)
    assert run("inspect", "ls", "-q", "--cache-dir", str(vllm)).out == key + "\n"


def test_a_root_that_cannot_be_written_is_listed_unchanged(run: Run, root: Path) -> None:
    key = put_entry(root)
    (CacheRoot(root).stats / "index-summary.json").unlink(missing_ok=True)
    (CacheRoot(root).stats / "index-summary.json").mkdir()
    assert run("inspect", "ls", "-q").out == key + "\n"
