"""Timing decode steps: which graph serves a batch, and what is timed how often."""

from collections.abc import Callable
from typing import Any

import pytest

from precast.aot import bench
from precast.aot.batches import TrialBatch, decode_batch
from precast.aot.bench import Bench, BenchRow, graph_for
from precast.capture.candidates import Candidates, candidates
from precast.capture.limits import BatchLimits
from precast.capture.modes import CUDAGraphMode

FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE
PAIR = CUDAGraphMode.FULL_AND_PIECEWISE


def found(mode: CUDAGraphMode = PAIR, **limits: Any) -> Candidates:
    return candidates(mode, [1, 2, 4, 8, 16], BatchLimits(**{"max_num_seqs": 8, **limits}))


@pytest.mark.parametrize(
    ("reqs", "full", "piecewise"), [(1, 1, 1), (3, 4, 4), (8, 8, 8), (9, None, 16), (16, None, 16), (17, None, None)]
)
def test_the_smallest_graph_of_a_mode_that_serves_a_decode_step(
    reqs: int, full: int | None, piecewise: int | None
) -> None:
    trial = decode_batch(reqs, BatchLimits())
    tokens = [None if d is None else d.num_tokens for d in (graph_for(found(), m, trial) for m in (FULL, PIECEWISE))]
    assert tokens == [full, piecewise]


def test_drafts_need_a_graph_with_as_many_tokens_a_request() -> None:
    limits = BatchLimits(max_num_seqs=8, drafts=1)
    made = graph_for(found(drafts=1), FULL, decode_batch(3, limits))
    assert made is not None
    assert (made.num_tokens, made.uniform_token_count) == (8, 2)
    assert graph_for(found(drafts=1), FULL, TrialBatch((1, 1, 1), prefilling=False)) is None


def test_any_length_up_to_the_drafts_fits_an_adaptive_graph_and_no_longer_one() -> None:
    made = found(drafts=1, adaptive_verification=True)
    assert graph_for(made, FULL, TrialBatch((2, 1), prefilling=False)) is not None
    assert graph_for(made, FULL, TrialBatch((3, 1), prefilling=False)) is None
    assert graph_for(made, FULL, TrialBatch((2, 1), prefilling=True)) is None


def test_a_mode_that_is_not_captured_has_none() -> None:
    assert graph_for(found(PIECEWISE), FULL, decode_batch(1, BatchLimits())) is None


def test_ways_take_turns_and_the_first_round_only_finds_out_how_many_steps_to_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, steps = [0.0], {"fast": 0.001, "slow": 0.1}
    ran: list[str] = []
    monkeypatch.setattr("precast.aot.bench.time.perf_counter", lambda: now[0])

    def way(name: str) -> Callable[[], Callable[[], None]]:
        def run() -> None:
            ran.append(name)
            now[0] += steps[name]

        return lambda: run

    assert bench._time_all({name: way(name) for name in steps}, lambda: None) == {
        "fast": pytest.approx(1.0),
        "slow": pytest.approx(100.0),
    }
    rounds = bench._ROUNDS
    assert ran.count("slow") == 2 * (rounds + 1)
    assert ran.count("fast") == 2 + rounds * (1 + 30)
    turns = [name for at, name in enumerate(ran) if at == 0 or ran[at - 1] != name]
    assert turns == ["fast", "slow"] * (rounds + 1)


def test_the_form_for_machines() -> None:
    row = BenchRow(8, 16, {"full": 4.54321}, 3.26)
    assert Bench((row,), 4.28e12).json() == {
        "copy_bytes_per_second": 4_280_000_000_000,
        "rows": [{"batch": 8, "tokens": 16, "ms": {"full": 4.5432}, "floor_ms": 3.26}],
    }
