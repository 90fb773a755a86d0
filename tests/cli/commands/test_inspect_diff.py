"""`precast inspect diff` says what makes two keys differ."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.support import FACTORS, FakeLibrary, Ran, factor_of, outside_fences, put_entry

from precast.cache.canonical import Json
from precast.cache.diff import Side
from precast.cache.lookup import Lookup
from precast.cache.manifest import SettingRecord
from precast.cache.requests import remember
from precast.cache.root import CacheRoot
from precast.cache.store import Store

Run = Callable[..., Ran]
Library = Callable[..., FakeLibrary]

_SECRET = "hunter2-is-my-word"
_OLD = f'import torch\n\nSCALE = 2\napi_key = "{_SECRET}"\n'
_NEW = f'import torch\n\nSCALE = 3\napi_key = "{_SECRET}x"\nMORE = 1\n'


@pytest.fixture
def keys(root: Path) -> tuple[str, str]:
    """Two entries that differ in a variable, a setting that counts and one that does not, torch, and three lines."""
    old = put_entry(
        root,
        {"env/HF_TOKEN": _SECRET},
        source=_OLD,
        settings=(SettingRecord("jobs", 2, "flag"),),
        tag="release-40",
    )
    new = put_entry(
        root,
        {
            "env/HF_TOKEN": f"{_SECRET}x",
            "env/TORCHINDUCTOR_FREEZING": None,
            "env/CFLAGS": "-O3 -g",
            "config/settings.max_num_batched_tokens": 8192,
            "compiler/torch": {"version": "2.14.1", "digest": "bb" * 32},
        },
        source=_NEW,
        settings=(SettingRecord("jobs", 4, "flag"),),
    )
    return old, new


def _changes(ran: Ran) -> dict[str, dict[str, Any]]:
    return {f"{change['group']}/{change['factor']}": change for change in ran.json()["data"]["changes"]}


def test_json_lists_exactly_what_changed_by_group(run: Run, keys: tuple[str, str]) -> None:
    ran = run("inspect", "diff", *keys, "--json")
    changes = _changes(ran)
    assert ran.code == 0
    assert list(changes) == [
        "env/CFLAGS",
        "env/HF_TOKEN",
        "env/TORCHINDUCTOR_FREEZING",
        "config/settings.jobs",
        "config/settings.max_num_batched_tokens",
        "code/module:shop.model",
        "compiler/torch.version",
    ]
    assert [changes[name]["kind"] for name in list(changes)[:3]] == ["added", "changed", "removed"]
    torch = changes["compiler/torch.version"]
    assert (torch["a"], torch["b"], torch["severity"]) == ("2.13.0", "2.14.1", "breaking")
    assert changes["config/settings.jobs"]["severity"] == "noise"
    assert changes["config/settings.jobs"]["reason"] == "how many processes compile does not change what they make"
    data = ran.json()["data"]
    assert (data["breaking"], data["noise"], data["unchanged"]["graph"]) == (6, 1, 1)
    assert (data["a"]["key"], data["b"]["key"]) == keys


def test_code_is_told_down_to_the_line(run: Run, keys: tuple[str, str]) -> None:
    lines = _changes(run("inspect", "diff", *keys, "--json"))["code/module:shop.model"]["lines"]
    assert (lines[0]["line_a"], lines[0]["a"], lines[0]["b"]) == (3, "SCALE = 2", "SCALE = 3")
    assert (lines[-1]["line_a"], lines[-1]["line_b"], lines[-1]["b"]) == (None, 5, "MORE = 1")
    shown = run("inspect", "diff", *keys).out
    assert "shop.model line 3  SCALE = 2 → SCALE = 3" in shown
    assert "shop.model line 5  added MORE = 1" in shown


def test_people_read_both_keys_and_the_changes(run: Run, keys: tuple[str, str]) -> None:
    lines = run("inspect", "diff", *keys).out.splitlines()
    assert lines[0] == f"key        {keys[0][:12]} → {keys[1][:12]}"
    assert lines[1].split()[:4] == ["env", "CFLAGS", "added", '"-O3']
    assert any(line.split()[:4] == ["compiler", "torch.version", "2.13.0", "→"] for line in lines)
    assert "graph      no change (1 factor)" in lines
    assert lines[-1] == "6 breaking, 1 noise"


@pytest.mark.parametrize("words", [[], ["--json"], ["--format", "tsv"], ["--patch"], ["-q"], ["--json", "--patch"]])
def test_no_secret_is_in_any_answer(run: Run, keys: tuple[str, str], words: list[str]) -> None:
    ran = run("inspect", "diff", *keys, *words, "--github", "on")
    assert _SECRET not in ran.out + ran.err
    assert "-q" in words or "sha256:" in ran.out


def test_swapped_sides_give_the_mirrored_difference(run: Run, keys: tuple[str, str]) -> None:
    there = run("inspect", "diff", *keys, "--json").json()["data"]
    back = run("inspect", "diff", *reversed(keys), "--json").json()["data"]
    assert back == {**there, "a": there["b"], "b": there["a"], "changes": [_mirror(c) for c in there["changes"]]}


def _mirror(change: dict[str, Any]) -> dict[str, Any]:
    kinds = {"added": "removed", "removed": "added"}
    lines = [
        {**line, "a": line["b"], "b": line["a"], "line_a": line["line_b"], "line_b": line["line_a"]}
        for line in change["lines"]
    ]
    kind = kinds.get(change["kind"], change["kind"])
    return {**change, "a": change["b"], "b": change["a"], "kind": kind, "lines": lines}


@pytest.mark.parametrize(
    ("groups", "labels"),
    [
        (["compiler"], ["compiler/torch.version"]),
        (["graph"], []),
        (["graph", "compiler"], ["compiler/torch.version"]),
    ],
)
def test_only_the_groups_asked_for_are_told(
    run: Run, keys: tuple[str, str], groups: list[str], labels: list[str]
) -> None:
    words = [word for group in groups for word in ("--group", group)]
    ran = run("inspect", "diff", *keys, *words, "--json", "--exit-code")
    assert list(_changes(ran)) == labels
    assert ran.code == (3 if labels else 0)
    assert set(ran.json()["data"]["unchanged"]) == set(groups)


def test_a_group_that_is_none_is_refused(run: Run, keys: tuple[str, str]) -> None:
    assert run("inspect", "diff", *keys, "--group", "weather", "--json").code == 2


@pytest.mark.parametrize(("flag", "code"), [([], 0), (["--exit-code"], 3)])
def test_a_difference_is_an_exit_status_on_request(run: Run, keys: tuple[str, str], flag: list[str], code: int) -> None:
    assert run("inspect", "diff", *keys, *flag).code == code
    assert run("inspect", "diff", keys[0], keys[0], *flag).code == 0


def test_equal_sides_have_no_difference(run: Run, keys: tuple[str, str]) -> None:
    ran = run("inspect", "diff", keys[0], "release-40")
    assert ran.out.splitlines()[0] == f"key        {keys[0][:12]} → {keys[0][:12]} (release-40)"
    assert ran.out.splitlines()[-1] == "No difference"
    assert run("inspect", "diff", keys[0], "release-40", "--format", "tsv").out == (
        "group\tfactor\tkind\ta\tb\tseverity\treason\n"
    )


def test_tsv_has_a_row_for_each_change(run: Run, keys: tuple[str, str]) -> None:
    rows = run("inspect", "diff", *keys, "--format", "tsv").tsv()
    assert [row["kind"] for row in rows if row["group"] == "env"] == ["added", "changed", "removed"]


def test_quiet_writes_labels(run: Run, keys: tuple[str, str]) -> None:
    assert run("inspect", "diff", *keys, "--group", "compiler", "-q").out == "compiler/torch.version\n"


def test_a_patch_is_one_that_tools_read(run: Run, keys: tuple[str, str]) -> None:
    shown = run("inspect", "diff", *keys, "--patch").out.splitlines()
    assert "-SCALE = 2" in shown
    assert "+SCALE = 3" in shown
    assert any(line.startswith("@@ ") for line in shown)
    patches = run("inspect", "diff", *keys, "--patch", "--json").json()["data"]["patches"]
    assert "+MORE = 1" in patches["shop.model"]
    assert run("inspect", "diff", *keys, "--json").json()["data"]["patches"] == {}


def test_no_line_of_a_patch_is_a_command_to_a_job(run: Run, root: Path, tmp_path: Path) -> None:
    old = 'X = """\n::set-env name=PATH::/tmp\n##[add-mask]a\n"""\nY = 1\n'
    sides = [put_entry(root, source=text) for text in (old, old.replace("Y = 1", "Y = 2"))]
    plain = run("inspect", "diff", *sides, "--patch").out
    fenced = run("inspect", "diff", *sides, "--patch", "--github", "on").out
    assert plain.splitlines().count(" ::set-env name=PATH::/tmp") == 1
    assert outside_fences(fenced) == [
        line for line in plain.splitlines() if "set-env" not in line and "##[" not in line
    ]


def test_sides_may_be_manifests_folders_files_and_other_roots(
    run: Run, keys: tuple[str, str], root: Path, tmp_path: Path
) -> None:
    layout = CacheRoot(root)
    other = put_entry(tmp_path / "other", {"config/model.layers": 8}, source=_OLD)
    for side in (
        str(layout.manifest(keys[0])),
        str(layout.entry(keys[0])),
        str(layout.mega(keys[0])),
        f"{root}@{keys[0][:8]}",
    ):
        ran = run("inspect", "diff", side, f"{tmp_path / 'other'}@{other[:12]}", "--group", "config", "--json")
        change = _changes(ran)["config/model.layers"]
        assert (change["a"], change["b"]) == (4, 8), side


def test_factors_of_vllm_are_a_side(run: Run, root: Path, tmp_path: Path) -> None:
    files = []
    for number, batched in enumerate(("0", "1")):
        file = tmp_path / f"{number:010x}" / "rank_0_0" / "backbone" / "cache_key_factors.json"
        file.parent.mkdir(parents=True)
        env = {"VLLM_USE_STANDALONE_COMPILE": batched, "HF_TOKEN": _SECRET + batched}
        hashes = {"config_hash": "a1", "code_hash": "b2", "compiler_hash": "c3", "new_field": number}
        file.write_text(json.dumps({"env": env, **hashes}))
        files.append(str(file))
    ran = run("inspect", "diff", *files, "--json")
    change = _changes(ran)["env/VLLM_USE_STANDALONE_COMPILE"]
    assert (change["a"], change["b"]) == ("0", "1")
    assert ran.json()["data"]["b"]["key"] == "0000000001"
    assert _SECRET not in ran.out
    assert "vllm:0000000000/rank_0_0/backbone → vllm:0000000001" in run("inspect", "diff", *files).out


@pytest.fixture
def live(library: Library, own_place: Path) -> FakeLibrary:
    """A live side with one layer more, and without what only a trace can tell."""
    (own_place / "m.py").write_text("")
    labels: dict[str, Json] = {**FACTORS, "config/model.layers": 5}
    factors = tuple(factor_of(k, v) for k, v in labels.items() if k != "graph/graph")
    return library("live", (Side("live", "", factors), Lookup(None, ())), "live_side")


def test_live_is_this_machine_and_the_model_named(run: Run, root: Path, live: FakeLibrary) -> None:
    key = put_entry(root)
    words = ["--model", "m.py:build", "--set", "layers=5", "--payload", "inductor", "--target", "sm_90"]
    ran = run("inspect", "diff", key, "live", *words, "--json")
    assert ran.code == 0, ran.err
    assert ran.json()["data"]["b"] == {"label": "live", "key": None}
    assert ran.json()["data"]["untold"] == {"graph": 1}
    assert {name: (change["a"], change["b"]) for name, change in _changes(ran).items()} == {
        "config/model.layers": (4, 5)
    }
    reference, overrides, settings = live.args
    assert (reference.factory, overrides, settings.payload, settings.target) == (
        "build",
        {"layers": 5},
        "inductor",
        "sm_90",
    )
    assert "that only a trace can tell" in run("inspect", "diff", key, "live", *words).out


def test_live_takes_the_model_of_the_other_side(run: Run, root: Path, live: FakeLibrary, own_place: Path) -> None:
    key = put_entry(root)
    hint: dict[str, Json] = {
        "reference": "m.py:build",
        "folder": str(own_place),
        "overrides": {"layers": 4, "heads": 2},
    }
    remember(Store(root), "ab" * 32, key, hint)
    assert run("inspect", "diff", "live", key, "--set", "layers=5", "--json").code == 0
    assert live.args[1] == {"layers": 5, "heads": 2}


def test_live_without_a_model_is_refused(run: Run, root: Path, live: FakeLibrary) -> None:
    ran = run("inspect", "diff", put_entry(root), "live", "--json")
    assert ran.code == 2
    assert ran.json()["errors"][0]["hint"] == "Add --model MODEL"


def test_a_target_that_nobody_knows_is_refused(run: Run, root: Path, live: FakeLibrary) -> None:
    words = ["--model", "m.py:build", "--target", "sm_ninety", "--json"]
    assert run("inspect", "diff", put_entry(root), "live", *words).code == 2


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("abcdef012345", 10, "entry.absent"),
        ("no-such-tag", 10, "entry.absent"),
        ("/absent/cache_key_factors.json", 10, "entry.absent"),
        ("/absent/model.mega", 10, "entry.absent"),
    ],
)
def test_a_side_that_is_absent_has_its_status(
    run: Run, keys: tuple[str, str], name: str, status: int, code: str
) -> None:
    ran = run("inspect", "diff", keys[0], name, "--json")
    assert (ran.code, ran.json()["errors"][0]["code"]) == (status, code)
    assert ran.json()["schema"] == "precast.inspect.diff/1"


def test_a_newer_manifest_is_told_as_one(run: Run, keys: tuple[str, str], root: Path) -> None:
    path = CacheRoot(root).manifest(keys[0])
    path.write_text(path.read_text().replace("precast.manifest/1", "precast.manifest/9"))
    ran = run("inspect", "diff", *keys, "--json")
    assert (ran.code, ran.json()["errors"][0]["code"]) == (4, "store.format")


def test_an_ambiguous_prefix_lists_the_candidates(run: Run, keys: tuple[str, str], root: Path) -> None:
    twin = keys[0][:8] + "0" * 56
    CacheRoot(root).entry(twin).mkdir()
    ran = run("inspect", "diff", keys[0][:8], keys[1], "--json")
    error = ran.json()["errors"][0]
    assert (ran.code, error["code"]) == (10, "entry.ambiguous")
    assert keys[0] in error["why"]
    assert twin in error["why"]


def test_a_job_gets_a_table_of_the_changes(
    run: Run, keys: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    run("inspect", "diff", *keys, "--json")
    assert "| compiler | torch.version | 2.13.0 | 2.14.1 | breaking |" in (tmp_path / "summary").read_text()
    assert _SECRET not in (tmp_path / "summary").read_text()
