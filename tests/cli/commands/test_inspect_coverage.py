"""`precast inspect coverage` says which batches have no graph, what padding costs, and which sizes would help."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.support import Ran

from precast.cli.terminal import DASH

Run = Callable[..., Ran]

SMALL = ("--max-num-batched-tokens", "64", "--max-num-seqs", "12", "--cudagraph-capture-sizes", "1,2,4,8")
_MODEL = """
from precast.aot.spec import ModelSpec, TensorInput

def build(kind="decoder"):
    print("importing")
    inputs = (TensorInput("x", ("tokens",)),)
    return ModelSpec("small", lambda: 1 / 0, inputs, ("a::attend",), lambda *_: 1 / 0, kind=kind)
"""


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU answers as one without."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def model(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A model whose attention can be captured for nothing, and that cannot be built."""
    monkeypatch.setattr("sys.path", [*sys.path])
    (own_place / "covered_model.py").write_text(_MODEL)
    yield "covered_model.py:build"
    sys.modules.pop("covered_model", None)


def data(ran: Ran) -> dict[str, Any]:
    found: dict[str, Any] = ran.json()["data"]
    return found


def test_people_read_holes_padding_and_what_closes_them(run: Run) -> None:
    ran = run("inspect", "coverage", *SMALL)
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "mode       FULL_AND_PIECEWISE",
        "sizes      1, 2, 4, 8",
        "decode     12 batches · 8 FULL · 4 no graph",
        "mixed      64 batches · 8 PIECEWISE · 56 no graph",
        "KIND    REQUESTS  TOKENS  RUNS  WANTED     BATCHES  WHY",
        f"decode      9{DASH}12    9{DASH}12  NONE  FULL             4  more tokens than the largest graph",
        f"mixed        any    9{DASH}64  NONE  PIECEWISE       56  more tokens than the largest graph",
        "padding    14 of 2172 computed tokens, 0.6 %",
        "close      add 12, 64",
        "           then nothing is uncovered · padding 1352 of 3510 computed tokens, 38.5 %",
    ]
    assert ran.err == "next: --cudagraph-capture-sizes 1,2,4,8,12,64\n"


def test_the_sizes_that_it_names_leave_nothing_uncovered(run: Run) -> None:
    more = [*SMALL[:-1], "1,2,4,8,12,64"]
    ran = run("inspect", "coverage", *more, "--require-full", "--json")
    assert (ran.code, data(ran)["covered"], data(ran)["holes"]) == (0, True, [])
    people = run("inspect", "coverage", *more)
    assert people.out.splitlines()[-1] == "covered    every batch has the graph that its mode has for it"
    assert people.err == ""


def test_only_require_full_makes_a_hole_an_exit_of_3(run: Run) -> None:
    assert run("inspect", "coverage", *SMALL, "--json").code == 0
    ran = run("inspect", "coverage", *SMALL, "--require-full", "--json")
    assert (ran.code, data(ran)["uncovered"], data(ran)["extra_sizes"]) == (3, 60, [12, 64])


def test_a_slower_graph_than_the_mode_has_is_a_hole_too(run: Run) -> None:
    words = (
        "--max-num-seqs",
        "4",
        "--drafts",
        "2",
        "--cudagraph-capture-sizes",
        "1,2,4,8,16",
        "--decode-batches",
        "1-4",
    )
    ran = run("inspect", "coverage", *words, "--require-full", "--json")
    (hole,) = data(ran)["holes"]
    assert (ran.code, hole["runs"], hole["wanted"], hole["query_len"]) == (3, "PIECEWISE", "FULL", 3)
    assert hole["tokens"] == [{"first": 12, "last": 12, "step": 1}]
    assert data(ran)["extra_sizes"] == [12]


def test_a_hidden_graph_is_told(run: Run) -> None:
    schedule = ("--drafts", "2", "--draft-schedule", "2:2,8:0", "--max-num-seqs", "8", "--max-num-batched-tokens", "8")
    words = (*schedule, "--cudagraph-capture-sizes", "4,8", "--decode-batches", "5-6")
    assert "a larger graph would fit, and the next one hides it" in run("inspect", "coverage", *words).out
    (hole,) = data(run("inspect", "coverage", *words, "--json"))["holes"]
    assert (hole["hidden"], hole["reason"]["code"]) == (True, "not_uniform")


def test_full_graphs_above_the_largest_size_are_told(run: Run) -> None:
    ran = run("inspect", "coverage", *SMALL, "--drafts", "2", "--decode-batches", "1-12")
    assert "lost       FULL of 9 tokens (3 x 3): above 8" in ran.out.splitlines()


def test_a_hole_that_no_size_closes_says_so(run: Run) -> None:
    words = (*SMALL, "--cudagraph-mode", "full_decode_only", "--mixed-tokens", "1-4")
    ran = run("inspect", "coverage", *words)
    assert "no size closes it: the mode captures graphs of decode steps alone" in ran.out
    assert ran.out.splitlines()[-1] == "close      no capture size closes any of the holes"
    strict = run("inspect", "coverage", *words, "--require-full", "--json")
    found = data(strict)
    assert (strict.code, found["extra_sizes"], found["closes_all"]) == (3, [], False)
    assert found["holes"][0]["barrier"]["code"] == "decode_only"


def test_batches_beyond_the_limits_cannot_be_closed(run: Run) -> None:
    found = data(run("inspect", "coverage", *SMALL, "--decode-batches", "12-14", "--mixed-tokens", "64-66", "--json"))
    barriers = {hole["barrier"]["code"]: hole["batches"] for hole in found["holes"] if hole["barrier"]}
    assert barriers == {"too_many_reqs": 2, "above_budget": 2}
    assert found["traffic"] == {"source": "options", "batches": 6, "count": 6, "too_large": []}
    assert (found["extra_sizes"], found["closes_all"], found["after"]["uncovered"]) == ([12, 64], False, 4)


def test_decode_steps_that_no_step_can_hold_are_left_out_with_a_warning(run: Run) -> None:
    words = ("--max-num-seqs", "12", "--max-num-batched-tokens", "20", "--drafts", "1", "--json")
    ran = run("inspect", "coverage", *words)
    assert data(ran)["traffic"]["too_large"] == [{"first": 11, "last": 12, "step": 1}]
    assert [warning["code"] for warning in ran.json()["warnings"]] == ["coverage.too_large"]


def test_traffic_of_a_file_weighs_padding_and_names_requests(run: Run, own_place: Path) -> None:
    lines = [{"requests": 3, "tokens": 3, "count": 10}, {"query_lens": [1, 9], "count": 2}]
    (own_place / "day.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = data(run("inspect", "coverage", *SMALL, "--traffic", "day.jsonl", "--json"))
    assert found["traffic"] == {"source": "file", "batches": 2, "count": 12, "too_large": []}
    assert found["padding"] == {"asked_tokens": 50, "computed_tokens": 60, "padded_tokens": 10, "share": 1 / 6}
    (hole,) = found["holes"]
    assert (hole["kind"], hole["requests"], hole["count"]) == ("mixed", [{"first": 2, "last": 2, "step": 1}], 2)
    assert "1 batch, 10 runs · 10 FULL" in run("inspect", "coverage", *SMALL, "--traffic", "day.jsonl").out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--traffic", "absent.jsonl"), "usage"),
        (("--traffic", "wrong.jsonl"), "config.bad_value"),
        (("--traffic", "wrong.jsonl", "--decode-batches", "1"), "usage"),
        (("--decode-batches", "12-9"), "config.bad_value"),
        (("--mixed-tokens", ""), "config.bad_value"),
        (("--max-cudagraph-capture-size", "4"), "config.bad_value"),
        (("absent.py:build",), "model.unknown"),
    ],
)
def test_a_wrong_request_exits_2(run: Run, own_place: Path, words: tuple[str, ...], code: str) -> None:
    (own_place / "wrong.jsonl").write_text('{"tokens": 3}\n')
    ran = run("inspect", "coverage", *SMALL, *words, "--json")
    assert (ran.code, ran.json()["errors"][0]["code"]) == (2, code)


def test_a_model_lowers_the_mode_and_what_it_prints_stays_out_of_the_answer(run: Run, model: str) -> None:
    ran = run("inspect", "coverage", model, *SMALL, "--decode-batches", "1-4", "--json")
    found = data(ran)
    assert (found["model"], found["asked_mode"], found["mode"]) == ("small", "FULL_AND_PIECEWISE", "PIECEWISE")
    assert "a::attend can be captured for nothing" in found["lowered"][0]["reason"]
    assert [(hole["runs"], hole["barrier"]["code"]) for hole in found["holes"]] == [("PIECEWISE", "lowered")]
    people = run("inspect", "coverage", model, *SMALL, "--decode-batches", "1-4").out
    assert "lowered    from FULL_AND_PIECEWISE to PIECEWISE: " in people
    assert "importing" not in people


def test_a_lowered_mode_that_was_asked_for_is_covered(run: Run, model: str) -> None:
    words = (model, *SMALL, "--decode-batches", "1-8", "--cudagraph-mode", "piecewise", "--require-full")
    assert run("inspect", "coverage", *words).code == 0


def test_set_reaches_the_model(run: Run, model: str) -> None:
    found = data(run("inspect", "coverage", model, *SMALL, "--set", "kind=pooling", "--json"))
    assert "pooling" in found["lowered"][0]["reason"]


def test_tsv_has_a_row_for_each_hole_and_quiet_the_sizes_to_add(run: Run) -> None:
    rows = run("inspect", "coverage", *SMALL, "--format", "tsv").tsv()
    assert [tuple(row.values()) for row in rows] == [
        ("decode", "9-12", "9-12", "NONE", "FULL", "4", "4", "too_many_tokens", "false", ""),
        ("mixed", "", "9-64", "NONE", "PIECEWISE", "56", "56", "too_many_tokens", "false", ""),
    ]
    (row,) = run("inspect", "coverage", *SMALL, "--drafts", "3", "--decode-batches", "1-12", "--format", "tsv").tsv()
    assert (row["requests"], row["tokens"]) == ("3-12", "12-48:4")
    assert run("inspect", "coverage", *SMALL, "-q").out == "12\n64\n"


def test_people_see_the_first_spans_of_many_and_programs_all(run: Run) -> None:
    words = ("--max-num-seqs", "30", "--cudagraph-capture-sizes", "1", "--decode-batches", "2,4-5,8,11,15-20,25")
    assert f"2, 4{DASH}5, 8, 11, and 2 more" in run("inspect", "coverage", *words).out
    (row,) = run("inspect", "coverage", *words, "--format", "tsv").tsv()
    assert row["tokens"] == "2,4-5,8,11,15-20,25"


def test_tsv_without_a_hole_is_its_header(run: Run) -> None:
    ran = run("inspect", "coverage", *SMALL, "--decode-batches", "1-8", "--format", "tsv")
    assert ran.out.splitlines() == ["kind\trequests\ttokens\truns\twanted\tbatches\tcount\treason\thidden\tbarrier"]


def test_it_needs_no_store(run: Run, root: Path) -> None:
    assert run("inspect", "coverage", *SMALL).code == 0
    assert not root.exists()
