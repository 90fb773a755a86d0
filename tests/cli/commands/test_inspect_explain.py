"""`precast inspect explain` says whether a model hits, and if not why not and what to do."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cli.support import FACTORS, FakeLibrary, Ran, factor_of, put_entry

from precast.cache.canonical import Json, sha256
from precast.cache.diff import Side
from precast.cache.lookup import Lookup, MissReason
from precast.cache.root import CacheRoot
from precast.cache.store import Store
from precast.errors import NoGpuError

Run = Callable[..., Ran]
Live = Callable[..., FakeLibrary]

_SECRET = "hunter2-is-my-word"
_OLD = "import torch\n\nSCALE = 2\n"
_NEW = "import torch\n\nSCALE = 3\n"


@pytest.fixture
def live(library: Live, own_place: Path) -> Live:
    """Put a live side in place: the factors of `FACTORS` that need no trace, with what is changed."""
    (own_place / "m.py").write_text("")

    def put(changed: Mapping[str, Json] | None = None, *, source: str = "", found: Lookup | None = None) -> FakeLibrary:
        labels: dict[str, Json] = {**FACTORS, **(changed or {})}
        del labels["graph/graph"]
        if source:
            labels["code/module:shop.model"] = sha256(source.encode())
        factors = tuple(factor_of(label, value) for label, value in labels.items() if value is not None)
        side = Side("live", "", factors, {"shop.model": source} if source else {})
        return library("live", (side, found or Lookup(None, (MissReason("no_entry_for_model"),))), "live_side")

    return put


def _changes(ran: Ran) -> dict[str, dict[str, Any]]:
    return {f"{change['group']}/{change['factor']}": change for change in ran.json()["data"]["diff"]["changes"]}


def _hit(root: Path, key: str) -> Lookup:
    return Lookup(Store(root).manifest(key), ())


def test_a_hit_exits_0_and_says_what_it_saves(run: Run, live: Live, root: Path) -> None:
    key = put_entry(root, tag="release-40")
    live(found=_hit(root, key))
    ran = run("inspect", "explain", "m.py:build", "--json")
    data = ran.json()["data"]
    assert (ran.code, data["status"], data["key"], data["model"]) == (0, "hit", key, "tiny")
    assert (data["seconds_saved"], data["reasons"]) == (19.9, [])
    assert (
        run("inspect", "explain", "m.py:build").out
        == f"HIT        {key[:12]}  tiny · release-40 · saves about 19.9 s\n"
    )
    assert run("inspect", "explain", "m.py:build", "-q").out == key + "\n"


def test_everything_that_was_asked_reaches_the_live_side(run: Run, live: Live, root: Path) -> None:
    fake = live(found=_hit(root, put_entry(root)))
    words = ["--set", "layers=4", "--payload", "aoti", "--target", "x86-64-v3", "-O1"]
    assert run("inspect", "explain", "m.py:build", *words).code == 0
    reference, overrides, settings = fake.args
    assert (reference.kind, reference.factory, overrides) == ("file", "build", {"layers": 4})
    assert (settings.payload, settings.optimization_level, settings.target) == ("aoti", 1, "x86-64-v3")


def test_a_miss_exits_3_and_lists_exactly_what_changed(run: Run, live: Live, root: Path) -> None:
    key = put_entry(root, source=_OLD)
    put_entry(root, {"env/CFLAGS": "-O3", "config/settings.max_num_batched_tokens": 64, "config/model.layers": 9})
    live({"env/TORCHINDUCTOR_FREEZING": "1"}, source=_NEW)
    ran = run("inspect", "explain", "m.py:build", "--json")
    data = ran.json()["data"]
    assert (ran.code, data["status"], data["key"]) == (3, "miss", None)
    assert data["nearest"]["key"] == key
    assert list(_changes(ran)) == ["env/TORCHINDUCTOR_FREEZING", "code/module:shop.model"]
    line = _changes(ran)["code/module:shop.model"]["lines"][0]
    assert (line["line_a"], line["a"], line["b"]) == (3, "SCALE = 2", "SCALE = 3")
    assert data["advice"]
    for reason in data["reasons"]:
        assert reason["code"] in {"factor_changed", "no_entry_for_model"}
    assert "unknown" not in ran.out


def test_each_reason_has_its_factor_both_values_and_a_hint(run: Run, live: Live, root: Path) -> None:
    key = put_entry(root)
    reason = MissReason("factor_changed", key, "env/TORCHINDUCTOR_FREEZING", "0", "1")
    live({"env/TORCHINDUCTOR_FREEZING": "1"}, found=Lookup(None, (reason,)))
    reasons = run("inspect", "explain", "m.py:build", "--json").json()["data"]["reasons"]
    found = next(each for each in reasons if each["factor"] == "env/TORCHINDUCTOR_FREEZING")
    assert (found["code"], found["entry"], found["a"], found["b"]) == ("factor_changed", key, "0", "1")
    assert "TORCHINDUCTOR_FREEZING" in found["hint"]


def test_people_read_the_nearest_entry_the_changes_and_the_way_back(run: Run, live: Live, root: Path) -> None:
    key = put_entry(root, source=_OLD, tag="release-40")
    live({"env/TORCHINDUCTOR_FREEZING": "1"}, source=_NEW)
    ran = run("inspect", "explain", "m.py:build")
    lines = ran.out.splitlines()
    assert lines[0] == "MISS       no entry answers this request; the nearest differs in 2 factors"
    assert lines[1].startswith(f"nearest    {key[:12]} (release-40) · same config, compiler")
    assert lines[2].split()[:5] == ["env", "TORCHINDUCTOR_FREEZING", '"0"', "→", '"1"']
    assert "shop.model line 3  SCALE = 2 → SCALE = 3" in ran.out
    assert any(line.startswith("fix ") for line in lines)


def test_tsv_has_a_row_for_each_change(run: Run, live: Live, root: Path) -> None:
    put_entry(root)
    live({"env/CFLAGS": "-O3"})
    ran = run("inspect", "explain", "m.py:build", "--format", "tsv")
    assert [(row["factor"], row["kind"], row["b"]) for row in ran.tsv()] == [("CFLAGS", "added", "-O3")]
    assert ran.code == 3


def test_quiet_writes_no_key_for_a_miss(run: Run, live: Live, root: Path) -> None:
    put_entry(root)
    live({"env/CFLAGS": "-O3"})
    assert run("inspect", "explain", "m.py:build", "-q").out == ""


def test_an_entry_to_compare_with_can_be_named(run: Run, live: Live, root: Path) -> None:
    put_entry(root)
    far = put_entry(root, {"config/settings.max_num_batched_tokens": 64, "env/CFLAGS": "-O2"}, tag="release-39")
    live({"env/CFLAGS": "-O3"})
    ran = run("inspect", "explain", "m.py:build", "--against", "release-39", "--json")
    assert ran.json()["data"]["diff"]["a"]["key"] == far
    assert list(_changes(ran)) == ["env/CFLAGS", "config/settings.max_num_batched_tokens"]
    assert run("inspect", "explain", "m.py:build", "--against", "abcdef012345", "--json").code == 10


def test_no_secret_is_in_any_answer(
    run: Run, live: Live, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    key = put_entry(root, {"env/HF_TOKEN": _SECRET, "config/model.api_key": _SECRET})
    reasons = (
        MissReason("factor_changed", key, "env/HF_TOKEN", _SECRET, _SECRET + "x"),
        MissReason("factor_changed", key, "config/model.hub", {"api_key": _SECRET}, None),
    )
    live(
        {"env/HF_TOKEN": _SECRET + "x", "config/model.hub": {"api_key": _SECRET + "y"}},
        found=Lookup(None, reasons),
    )
    for words in ([], ["--json"], ["--format", "tsv"], ["-q"]):
        ran = run("inspect", "explain", "m.py:build", *words, "--github", "on")
        assert ran.code == 3
        assert _SECRET not in ran.out + ran.err
    assert _SECRET not in (tmp_path / "summary").read_text() + (tmp_path / "output").read_text()


def test_an_artifact_that_is_missing_is_told_apart_from_a_changed_key(run: Run, live: Live, root: Path) -> None:
    key = put_entry(root)
    CacheRoot(root).mega(key).unlink()
    live(found=Lookup(None, (MissReason("artifact_missing", key, "model.mega is missing"),)))
    ran = run("inspect", "explain", "m.py:build", "--json")
    assert ran.code == 3
    assert [reason["code"] for reason in ran.json()["data"]["reasons"]] == ["artifact_missing"]
    shown = run("inspect", "explain", "m.py:build").out
    assert shown.startswith("MISS       the entry that fits cannot be used: artifact_missing\n")
    assert f"reason     artifact_missing  {key[:12]} · model.mega is missing" in shown


def test_an_entry_of_another_model_is_told_as_one(run: Run, live: Live, root: Path, own_place: Path) -> None:
    put_entry(root, {"env/CFLAGS": "-O2"})
    live()
    (own_place / "other.py").write_text("")
    ran = run("inspect", "explain", "other.py:build", "--json")
    assert ran.json()["data"]["nearest"]["of_model"] is False
    assert [reason["code"] for reason in ran.json()["data"]["reasons"]] == ["no_entry_for_model"]
    assert "no entry of this model is stored" in run("inspect", "explain", "other.py:build").out


def test_what_only_a_trace_can_tell_is_told_as_that(run: Run, live: Live, root: Path) -> None:
    put_entry(root)
    live()
    shown = run("inspect", "explain", "m.py:build").out
    assert shown.startswith("MISS       only a trace can tell whether one fits\n")
    assert "Run `precast precompile`" in shown


def test_an_empty_store_has_nothing_to_compare_with(run: Run, live: Live, root: Path) -> None:
    live()
    ran = run("inspect", "explain", "m.py:build", "--json")
    assert ran.code == 3
    data = ran.json()["data"]
    assert (data["nearest"], data["diff"]) == (None, None)
    assert [reason["code"] for reason in data["reasons"]] == ["no_entry_for_model"]
    shown = run("inspect", "explain", "m.py:build").out
    assert shown.startswith("MISS       the store holds no entry to compare with")
    assert not root.exists()


@pytest.mark.parametrize(("model", "code"), [("absent.py:f", "model.unknown"), ("m.py", "model.unknown")])
def test_a_model_that_names_nothing_is_refused(run: Run, live: Live, root: Path, model: str, code: str) -> None:
    live()
    ran = run("inspect", "explain", model, "--json")
    assert (ran.code, ran.json()["errors"][0]["code"]) == (2, code)
    assert ran.json()["schema"] == "precast.inspect.explain/1"


def test_what_the_live_side_cannot_tell_has_its_status(run: Run, library: Live, root: Path, own_place: Path) -> None:
    (own_place / "m.py").write_text("")
    library("live", NoGpuError("No GPU"), "live_side")
    assert run("inspect", "explain", "m.py:build", "--json").code == 9


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_job_is_told_of_a_miss(
    run: Run, live: Live, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: list[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    put_entry(root)
    live({"env/CFLAGS": "-O3\n::error::50%"})
    ran = run("inspect", "explain", "m.py:build", *form)
    annotations = [line for line in ran.err.splitlines() if line.startswith("::")]
    assert len(annotations) == (0 if form else 1)
    assert form or annotations[0].startswith("::warning title=precast miss::m.py:build: no entry answers")
    assert form or "50%25" in annotations[0]
    assert (tmp_path / "output").read_text() == "key=\nhit=false\nseconds-saved=0.0\n"
    assert "| env | CFLAGS |" in (tmp_path / "summary").read_text()


def test_a_job_is_told_of_a_hit(
    run: Run, live: Live, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    key = put_entry(root)
    live(found=_hit(root, key))
    ran = run("inspect", "explain", "m.py:build")
    assert f"::notice title=precast hit::m.py:build is {key[:12]}" in ran.err
    assert (tmp_path / "output").read_text() == f"key={key}\nhit=true\nseconds-saved=19.9\n"


def test_the_stand_in_takes_what_the_real_one_takes() -> None:
    real = pytest.importorskip("precast.aot.live", reason="the live side is not there yet")
    inspect.signature(real.live_side).bind("reference", {}, "settings", target=None, store="store")


def test_an_entry_that_needs_newer_libraries_is_named_with_both_versions(run: Run, live: Live, root: Path) -> None:
    key = put_entry(root)
    reason = MissReason("target_mismatch", key, "glibc", "2.38", "2.31")
    live(found=Lookup(None, (reason,)))
    ran = run("inspect", "explain", "m.py:build", "--json")
    told = ran.json()["data"]["reasons"]
    assert (ran.code, ran.json()["data"]["status"]) == (3, "miss")
    assert [(r["code"], r["entry"], r["factor"], r["a"], r["b"]) for r in told] == [
        ("target_mismatch", key, "glibc", "2.38", "2.31")
    ]
    assert "target_mismatch" in run("inspect", "explain", "m.py:build").out
