"""One of four data-parallel ranks; run as `python -m tests.capture.ranks RANK PORT`, prints what it saw as JSON."""

import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import astuple
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from tests.capture.support import ReplayingBackend, ToyModel, ToyState

from precast.capture.agreement import Agreement
from precast.capture.candidates import Candidates, candidates
from precast.capture.descriptor import BatchDescriptor
from precast.capture.dispatch import Batch, Dispatcher
from precast.capture.limits import BatchLimits
from precast.capture.manager import GraphManager
from precast.capture.modes import CUDAGraphMode
from precast.errors import PrecastError

RANKS = 4
STEPS = 40
LONG = timedelta(seconds=90)
SHORT_S = 2.0


def table(*sizes: int, mode: CUDAGraphMode = CUDAGraphMode.FULL_AND_PIECEWISE) -> Candidates:
    """Return what the ranks capture; by default of sizes 1, 2, 4, 8."""
    return candidates(mode, sizes or (1, 2, 4, 8), BatchLimits(max_num_seqs=8))


def batch_of(seed: int, rank: int) -> Batch:
    """Return what a rank has in a step: nothing, a decode, or a batch with a prefill."""
    rng = random.Random(f"{seed} {rank}")
    kind = rng.choice(("idle", "decode", "decode", "decode", "prefill"))
    if kind == "idle" or seed == 0:
        return Batch(0, 0)
    if kind == "decode":
        reqs = rng.randint(1, 8)
        return Batch(reqs, reqs, 1, 0, 1)
    return Batch(2, rng.randint(2, 9))


def plain(descriptor: BatchDescriptor) -> list[Any]:
    """Return a descriptor as JSON."""
    return [descriptor.mode.name, *astuple(descriptor)[1:]]


class Rank:
    """This rank.

    Args:
        rank: Its number.
        store: Store of all ranks.
    """

    def __init__(self, rank: int, store: dist.Store) -> None:
        self.rank = rank
        self.store = store
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=LONG)
        self.pair = dist.new_group([0, 1], timeout=LONG)
        self.saw: dict[str, Any] = {}

    def agreement(self, name: str, group: Any = None, found: Candidates | None = None, **more: Any) -> Agreement:
        group = dist.new_group(timeout=LONG) if group is None else group
        more.setdefault("timeout_s", LONG.total_seconds())
        return Agreement(found or table(), group, dist.PrefixStore(name, self.store), **more)

    def steps(self, agreement: Agreement) -> dict[str, Any]:
        """Run steps of a graph manager that agrees with the others; idle ones as padded rows."""
        state = ToyState()
        manager = GraphManager(ToyModel(state), state, table(), ReplayingBackend(), agree=agreement.agree)
        manager.capture()
        ran, tokens = [], []
        for seed in range(STEPS):
            batch = batch_of(seed, self.rank)
            descriptor = manager.dispatch(*astuple(batch))
            if batch.num_tokens:
                manager.run(descriptor)
            else:
                manager.run_idle(descriptor)
            ran.append(plain(descriptor))
            tokens.append(agreement.tokens)
        counts, runs = agreement.counts(), manager.counts()
        held = {str(rank): n for rank, n in counts.held_back.items()}
        none = counts.steps.get(CUDAGraphMode.NONE, 0)
        return {
            "ran": ran, "tokens": tokens, "held": held, "idle": counts.idle, "skipped": counts.skipped,
            "counted": [none, sum(counts.steps.values()) - none], "runs": [runs.none, runs.full + runs.piecewise],
        }  # fmt: skip

    def error_of(self, act: Callable[[], object]) -> dict[str, Any]:
        started = time.monotonic()
        try:
            act()
        except PrecastError as error:
            took = time.monotonic() - started
            return {"code": error.code, "what": error.what, "why": error.why, "took": took, **error.details}
        return {}

    def decode(self, agreement: Agreement) -> BatchDescriptor:
        found = BatchDescriptor(CUDAGraphMode.FULL, 1, 1, 1)
        return agreement.agree(Batch(1, 1, 1, 0, 1), found, lambda *batch: found)

    def together(self, name: str) -> None:
        """Wait until every rank is here."""
        self.store.set(f"{name}/{self.rank}", "here")
        self.store.wait([f"{name}/{rank}" for rank in range(RANKS)], LONG)


def part_pair(one: Rank) -> None:
    """Two ranks agree; then they differ, and one of them does not come."""
    if one.rank > 1:
        return
    one.saw["pair"] = one.steps(one.agreement("pair", one.pair))
    sizes = table(1, 2, 4, 8) if one.rank else table(1, 2, 4)
    one.saw["sizes"] = one.error_of(lambda: one.agreement("sizes", one.pair, sizes))
    if one.rank == 0:
        one.saw["absent"] = one.error_of(lambda: one.agreement("absent", one.pair, timeout_s=SHORT_S))


def part_four(one: Rank) -> None:
    """Four ranks agree; then one has another entry."""
    one.saw["four"] = one.steps(one.agreement("four"))
    entry = {"entry": "b" if one.rank == 2 else "a"}
    one.saw["entry"] = one.error_of(lambda: one.agreement("entry", facts=entry))


def part_late(one: Rank) -> None:
    """A rank comes later than a moment, which is no error; then one stands still."""
    late = one.agreement("late")
    if one.rank == 2:  # the others say in the store that they wait
        keys = [f"precast/agreement/1/step-1/{rank}" for rank in (0, 1, 3)]
        dist.PrefixStore("late", one.store).wait(keys, LONG)
    one.decode(late)
    one.saw["waited"] = late.counts().waited
    still = one.agreement("still", timeout_s=SHORT_S)
    if one.rank != 2:
        one.saw["still"] = one.error_of(lambda: one.decode(still))
        one.saw["again"] = one.error_of(lambda: one.decode(still))
    one.together("still")


def part_dead(one: Rank) -> None:
    """A rank ends without a word, in the middle of the run."""
    agreement = one.agreement("dead", timeout_s=SHORT_S)
    dispatcher = Dispatcher(table())
    if one.rank == 3:
        return
    idle = Batch(0, 0)
    one.saw["dead"] = one.error_of(lambda: agreement.agree(idle, dispatcher.dispatch(0, 0), dispatcher.dispatch))


def main(rank: int, port: int) -> None:
    """Go through all parts, print what this rank saw, and end without waiting for groups that are broken."""
    one = Rank(rank, dist.TCPStore("127.0.0.1", port, None, False, timeout=LONG))
    for part in (part_pair, part_four, part_late, part_dead):
        part(one)
    sys.stdout.write(json.dumps(one.saw))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
