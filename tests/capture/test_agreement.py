"""Four ranks over gloo on loopback, started once: they agree in pairs and all together, and name who does not."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import astuple
from typing import Any

import pytest
import torch.distributed as dist
from tests.capture.ranks import RANKS, SHORT_S, STEPS, batch_of, plain, table
from tests.conftest import REPOSITORY

from precast.capture.agreement import Agreement
from precast.capture.dispatch import Dispatcher
from precast.capture.modes import CUDAGraphMode
from precast.capture.votes import Vote, settle
from precast.errors import ConfigValueError

BOUND_S = 240


def run_ranks() -> list[dict[str, Any]]:
    """Run the four ranks; return what each saw."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    environ = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.capture.ranks", str(rank), str(store.port)],
            cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        outputs = [process.communicate(timeout=BOUND_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(out) for out, _ in outputs]


def check_agreed(saw: list[dict[str, Any]], ranks: int) -> None:
    """Check every step against the rule, computed from all batches at once, and the counts against the steps."""
    dispatcher = Dispatcher(table())
    dispatcher.enable()
    outcomes = set()
    held = [Counter[int]() for _ in range(ranks)]
    for seed in range(STEPS):
        batches = [batch_of(seed, rank) for rank in range(ranks)]
        votes = [Vote(batch, dispatcher.dispatch(*astuple(batch)).mode) for batch in batches]
        expected = settle(votes, table()).descriptors
        assert [one["ran"][seed] for one in saw] == [plain(d) for d in expected]
        assert all(one["tokens"][seed] == [b.num_tokens for b in batches] for one in saw)
        outcomes |= {d.mode for d in expected}
        without = [rank for rank, vote in enumerate(votes) if vote.mode is CUDAGraphMode.NONE and not vote.idle]
        for rank in range(ranks):
            if votes[rank].mode is not CUDAGraphMode.NONE:
                held[rank].update(without)
    assert any(held)
    assert len(outcomes) == 3  # else the steps say little
    for rank, one in enumerate(saw):
        assert one["counted"] == one["runs"]
        assert sum(one["runs"]) + one["skipped"] == STEPS
        idle = [seed for seed in range(STEPS) if batch_of(seed, rank).num_tokens == 0]
        assert one["idle"] == len([seed for seed in idle if one["ran"][seed][1]])
        assert one["held"] == {str(other): n for other, n in held[rank].items()}


def check_named(error: dict[str, Any], code: str, ranks: list[int]) -> None:
    assert error["code"] == code
    assert error["ranks"] == ranks
    assert f"rank {ranks[0]}" in error["what"]


def test_ranks_agree_and_each_names_who_does_not() -> None:
    saw = run_ranks()
    check_agreed([one["pair"] for one in saw[:2]], 2)
    check_agreed([one["four"] for one in saw], 4)
    for one in saw[:2]:  # scenario S12 (c)
        check_named(one["sizes"], "capture.rank_differs", [1])
        assert "capture sizes of rank 1: 1, 2, 4, 8, of rank 0: 1, 2, 4" in one["sizes"]["why"]
    check_named(saw[0]["absent"], "capture.rank_missing", [1])
    for one in saw:
        check_named(one["entry"], "capture.rank_differs", [2])
    for one in (saw[0], saw[1], saw[3]):
        assert one["waited"] == 1
        check_named(one["still"], "capture.rank_missing", [2])
        assert one["still"]["took"] >= SHORT_S
        assert one["again"]["what"] == one["still"]["what"]
        assert one["again"]["took"] < SHORT_S
    for one in saw[:3]:
        check_named(one["dead"], "capture.rank_missing", [3])


def test_a_group_without_gloo_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda group: "cuda:nccl")
    with pytest.raises(ConfigValueError, match="cuda:nccl"):
        Agreement(table(), object(), dist.HashStore())
