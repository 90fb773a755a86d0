"""S10 on the command line, in fresh processes: which batches have no graph, and which sizes would give them one."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.conftest import Precast

GIVEN = (1, 2, 4, 8)
SEQS, BUDGET = 12, 64
MODES = ("FULL", "PIECEWISE", "FULL_AND_PIECEWISE")


def ask(precast: Precast, *words: str, status: int = 0) -> dict[str, Any]:
    """Ask for the coverage of 12 requests and return the data."""
    limits = ("--max-num-seqs", str(SEQS))
    done = precast("inspect", "coverage", *limits, *words, "--json", env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.status == status, done.err
    found: dict[str, Any] = done.json["data"]
    return found


def listed(sizes: tuple[int, ...]) -> tuple[str, str]:
    return "--cudagraph-capture-sizes", ",".join(map(str, sizes))


def numbers(spans: list[dict[str, int]]) -> list[int]:
    return [n for span in spans for n in range(span["first"], span["last"] + 1, span["step"])]


def next_size(sizes: tuple[int, ...], tokens: int) -> int | None:
    return next((size for size in sorted(sizes) if size >= tokens), None)


def wasted(sizes: tuple[int, ...], batches: list[int]) -> int:
    """The padding of batches by tokens, where any size at least as large will do."""
    return sum((next_size(sizes, tokens) or tokens) - tokens for tokens in batches)


@pytest.mark.parametrize("mode", MODES)
def test_batches_9_to_12_are_named_and_one_size_covers_them(precast: Precast, mode: str) -> None:
    words = ("--cudagraph-mode", mode, "--decode-batches", f"1-{SEQS}")
    found = ask(precast, *listed(GIVEN), *words, "--require-full", status=3)
    (hole,) = found["holes"]
    assert (hole["kind"], numbers(hole["requests"]), hole["runs"]) == ("decode", [9, 10, 11, 12], "NONE")
    assert hole["wanted"] == ("PIECEWISE" if mode == "PIECEWISE" else "FULL")
    assert (found["extra_sizes"], found["closes_all"]) == ([12], True)
    assert found["padding"]["padded_tokens"] == wasted(GIVEN, list(range(1, SEQS + 1)))
    closed = ask(precast, *listed((*GIVEN, 12)), *words, "--require-full")
    assert (closed["covered"], closed["uncovered"], closed["holes"]) == (True, 0, [])
    assert closed["padding"] == found["after"]["padding"]
    assert closed["padding"]["padded_tokens"] == wasted((*GIVEN, 12), list(range(1, SEQS + 1)))


@pytest.mark.parametrize("mode", MODES)
def test_with_3_drafts_tokens_are_counted(precast: Precast, mode: str) -> None:
    words = ("--cudagraph-mode", mode, "--decode-batches", f"1-{SEQS}", "--drafts", "3")
    found = ask(precast, *listed(GIVEN), *words, "--require-full", status=3)
    (hole,) = found["holes"]
    assert numbers(hole["tokens"]) == list(range(12, 49, 4))
    assert hole["tokens"] == [{"first": 12, "last": 48, "step": 4}]
    assert numbers(hole["requests"]) == list(range(3, SEQS + 1))
    steps = list(range(4, 49, 4))
    assert found["padding"]["asked_tokens"] == sum(steps)
    assert found["padding"]["padded_tokens"] == wasted(GIVEN, steps)
    assert (found["extra_sizes"], found["closes_all"]) == ([48], True)
    assert ask(precast, *listed((*GIVEN, 48)), *words, "--require-full")["covered"]


@pytest.mark.parametrize("mode", ["FULL", "PIECEWISE"])
def test_a_budget_of_700_tokens_is_found(precast: Precast, mode: str) -> None:
    """As the size to add to a short list, and as the last size below a maximum of 2048."""
    words = ("--cudagraph-mode", mode, "--max-num-batched-tokens", "700")
    found = ask(precast, *listed(GIVEN), *words, "--require-full", status=3)
    assert (found["extra_sizes"], found["closes_all"]) == ([700], True)
    assert found["uncovered"] == 4 + 692
    by_rule = ask(precast, "--max-cudagraph-capture-size", "2048", *words, "--require-full")
    assert (by_rule["sizes"][-2:], by_rule["covered"]) == ([688, 700], True)
    steps = [*range(1, SEQS + 1), *range(1, 701)]
    assert by_rule["padding"]["padded_tokens"] == wasted(tuple(by_rule["sizes"]), steps)


def test_with_a_maximum_given_decode_steps_9_to_12_run_piece_by_piece(precast: Precast) -> None:
    """The rule adds no decode sizes then: FULL 16 would be for more requests than there are."""
    words = ("--max-num-batched-tokens", "700", "--max-cudagraph-capture-size", "2048")
    found = ask(precast, *words, "--require-full", status=3)
    (hole,) = found["holes"]
    assert (numbers(hole["requests"]), hole["runs"], hole["wanted"]) == ([9, 10, 11, 12], "PIECEWISE", "FULL")
    assert (found["extra_sizes"], found["closes_all"]) == ([12], True)
    assert {note["rule"]: note["sizes"] for note in found["size_notes"]} == {
        "largest_changed": [2048],
        "no_decode_sizes": [12],
    }


def test_one_size_alone_does_not_close_what_two_do(precast: Precast) -> None:
    """For 16 tokens there are too few requests for FULL, and 12 are too few tokens. All others: `test_closing`."""
    words = ("--cudagraph-mode", "FULL_AND_PIECEWISE", "--max-num-batched-tokens", "16", "--require-full")
    found = ask(precast, *listed((1, 2, 4)), *words, status=3)
    assert (found["extra_sizes"], found["closes_all"]) == ([12, 16], True)
    for size in (12, 16):
        assert not ask(precast, *listed((1, 2, 4, size)), *words, status=3)["covered"]
    assert ask(precast, *listed((1, 2, 4, 12, 16)), *words)["covered"]


def test_traffic_weighs_the_padding(precast: Precast, tmp_path: Path) -> None:
    counts = {1: 1000, 3: 50, 7: 9, 8: 2, 11: 40}
    file = tmp_path / "day.jsonl"
    lines = [json.dumps({"requests": n, "tokens": n, "count": count}) for n, count in counts.items()]
    file.write_text("\n".join(lines), encoding="utf-8")
    found = ask(precast, *listed(GIVEN), "--traffic", str(file), "--require-full", status=3)
    asked = sum(n * count for n, count in counts.items())
    padded = sum(((next_size(GIVEN, n) or n) - n) * count for n, count in counts.items())
    assert (found["padding"]["asked_tokens"], found["padding"]["padded_tokens"]) == (asked, padded)
    assert [numbers(hole["requests"]) for hole in found["holes"]] == [[11]]
    assert (found["extra_sizes"], found["closes_all"]) == ([11], True)
