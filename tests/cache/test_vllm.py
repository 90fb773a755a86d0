import json
from pathlib import Path
from typing import Any

import pytest
from tests.cache.support import files_below

from precast.cache.diff import diff_sides
from precast.cache.vllm import is_vllm_root, read_vllm_factors, vllm_entries
from precast.errors import CorruptError, NoEntryError, StoreAccessError

KEY, OTHER, AOT = "0123456789", "abcdef0123", "ef" * 32
FACTORS = {"env": {"VLLM_HOST_IP": "10.0.0.1"}, "config_hash": "a1", "code_hash": "b1", "compiler_hash": "c1"}


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    """A root as vLLM 0.33 lays it out: two ranks, two prefixes, an AOT artifact and things that are no entries."""
    home = tmp_path / "vllm" / "torch_compile_cache"
    for rank in ("rank_0_0", "rank_1_0"):
        for prefix in ("backbone", "eagle_head"):
            folder = home / KEY / rank / prefix
            folder.mkdir(parents=True)
            (folder / "cache_key_factors.json").write_text(json.dumps(FACTORS))
            (folder / "computation_graph.py").write_text("")
            (folder / "artifact_compile_range_1_8192_subgraph_0").write_bytes(b"x" * 10)
            (folder / "artifact_compile_range_1_8192_subgraph_2").mkdir()
        (home / KEY / rank / "inductor_cache").mkdir()
    (home / OTHER / "rank_0_0" / "backbone").mkdir(parents=True)
    model = home / "torch_aot_compile" / AOT / "rank_0_0"
    model.mkdir(parents=True)
    (model / "model").write_bytes(b"pickle")
    (home / "torch_aot_compile" / AOT / "inductor_cache").mkdir()
    (home / "0000000000").mkdir()
    (home / "1111111111").symlink_to(home / KEY)
    (home / "notes.txt").write_text("")
    return tmp_path / "vllm"


def test_entries_are_listed_with_ranks_prefixes_and_artifacts(vllm: Path) -> None:
    aot, first, second = vllm_entries(vllm)
    assert (aot.kind, aot.key, aot.ranks, aot.prefixes, aot.artifacts, aot.factors) == (
        "aot",
        AOT,
        ("0_0",),
        (),
        1,
        None,
    )
    assert (first.kind, first.key, first.ranks) == ("hash", KEY, ("0_0", "1_0"))
    assert (first.prefixes, first.artifacts) == (("backbone", "eagle_head"), 8)
    assert first.factors == vllm / f"torch_compile_cache/{KEY}/rank_0_0/backbone/cache_key_factors.json"
    assert (second.key, second.artifacts, second.factors) == (OTHER, 0, None)
    assert first.bytes > second.bytes > 0
    assert first.mtime_ns > 0


def test_the_inner_folder_is_as_good_as_the_root(vllm: Path) -> None:
    inner = vllm / "torch_compile_cache"
    assert is_vllm_root(vllm)
    assert is_vllm_root(inner)
    assert vllm_entries(inner) == vllm_entries(vllm)


def test_reading_writes_nothing(vllm: Path) -> None:
    before = files_below(vllm)
    vllm_entries(vllm)
    assert files_below(vllm) == before


def test_another_folder_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "v1" / "entries").mkdir(parents=True)
    for path in (tmp_path, tmp_path / "none"):
        assert not is_vllm_root(path)
        with pytest.raises(NoEntryError, match="no vLLM compile cache"):
            vllm_entries(path)


def test_a_factor_file_is_a_side_named_by_key_rank_and_prefix(vllm: Path) -> None:
    path = vllm_entries(vllm)[1].factors
    assert path is not None
    side = read_vllm_factors(path)
    assert (side.label, side.key, side.foreign) == (f"vllm:{KEY}/rank_0_0/backbone", KEY, True)
    assert [factor.label for factor in side.factors] == [
        "env/VLLM_HOST_IP",
        "config/config_hash",
        "code/code_hash",
        "compiler/compiler_hash",
    ]


def write(path: Path, document: Any) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_the_variable_that_moved_is_named_and_a_digest_says_that_it_tells_no_more(tmp_path: Path) -> None:
    changed = {**FACTORS, "env": {"VLLM_HOST_IP": "10.0.0.2"}, "config_hash": "a2"}
    a, b = (
        read_vllm_factors(write(tmp_path / f"{name}.json", document))
        for name, document in (("a", FACTORS), ("b", changed))
    )
    env, config = diff_sides(a, b).changes
    assert (env.label, env.a, env.b, env.severity) == ("env/VLLM_HOST_IP", "10.0.0.1", "10.0.0.2", "noise")
    assert (config.label, config.severity) == ("config/config_hash", "breaking")
    assert "digest" in config.reason


def test_unknown_fields_and_odd_values_are_tolerated(tmp_path: Path) -> None:
    text = '{"env": {"A": NaN, "B": 1.5, "C": [true, null], "D": {"$float": 1}}, "config_hash": 7, "colour": {"x": []}}'
    path = tmp_path / "cache_key_factors.json"
    path.write_text(text)
    side = read_vllm_factors(path)
    assert [(factor.name, factor.value) for factor in side.factors] == [
        ("A", "NaN"),
        ("B", "1.5"),
        ("C", [True, None]),
        ("D", {"$float_": 1}),
    ]
    assert diff_sides(side, side).changes == ()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"a": 1}', "null", "[" * 100_000])
def test_what_is_no_factor_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "factors.json"
    path.write_text(text)
    with pytest.raises(CorruptError):
        read_vllm_factors(path)


def test_a_missing_file_and_one_that_cannot_be_read_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NoEntryError):
        read_vllm_factors(tmp_path / "none.json")
    with pytest.raises(StoreAccessError):
        read_vllm_factors(tmp_path)
