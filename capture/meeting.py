"""Where data-parallel ranks meet: a store of torch.distributed, in which each leaves marks and looks for the others'.

A collective cannot say who is missing: gloo's errors name no rank, `monitored_barrier` tells rank 0 alone, and a gloo
group in which something timed out closes its connections. In a store every rank sees every mark, so all come to the
same verdict and name the same ranks.
"""

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from hashlib import sha256
from typing import TypeVar

import torch.distributed as dist

from precast.capture.candidates import Candidates
from precast.errors import RankDiffersError, RankMissingError

__all__ = ["Meeting", "capture_facts"]

T = TypeVar("T")

_ANSWER_S = 10.0  # far more than a store needs that answers at all
_STAY_S = 5.0  # far more than a rank needs to read what all have said
_HINT = "look at what the named ranks logged; start all ranks again once they run"


class Meeting:
    """One meeting of all ranks.

    Args:
        store: Store that all ranks share, such as a `TCPStore` or a `FileStore`. Nothing else may use the same prefix.
        rank: This rank, from 0.
        ranks: How many there are.
        timeout_s: Seconds that a rank is waited for.
    """

    def __init__(self, store: dist.Store, rank: int, ranks: int, timeout_s: float) -> None:
        self.rank = rank
        self.ranks = ranks
        self.timeout_s = timeout_s
        self._root = dist.PrefixStore("precast/agreement", store)
        self._store: dist.Store | None = None
        self._lost = False

    def compare(self, facts: Mapping[str, str]) -> None:
        """Wait for all ranks, then go on only if all go on: none is missing, and all have the same facts.

        A process may meet again, with another model say: the n-th meetings of all ranks belong together.

        Args:
            facts: What must be the same on all ranks, by name.

        Raises:
            RankMissingError: Ranks did not come within the timeout, or gave up; the error names them.
            RankDiffersError: Ranks have other facts; the error names them and the facts.
        """
        count = self._asked(lambda: self._root.add(f"meetings/{self.rank}", 1))
        self._store = dist.PrefixStore(str(count), self._root)
        try:
            self._compare(facts)
        except BaseException as error:
            self._leave(stay=isinstance(error, RankDiffersError))
            raise
        self.mark("verdict", "yes")
        verdicts = self._collect("verdict", "did not come to a verdict")
        gave_up = [rank for rank, verdict in enumerate(verdicts) if verdict != "yes"]
        if gave_up:
            raise RankMissingError(
                f"{named(gave_up)} gave up while the ranks met", "it did not find all others in time", _HINT,
                details={"ranks": gave_up},
            )  # fmt: skip

    def _compare(self, facts: Mapping[str, str]) -> None:
        self.mark("facts", json.dumps(dict(facts), sort_keys=True))
        everyone = [json.loads(text) for text in self._collect("facts", "did not come")]
        differences = _differences(everyone)
        if differences:
            odd = sorted({rank for rank, _ in differences})
            raise RankDiffersError(
                f"{named(odd)} {'differs' if len(odd) == 1 else 'differ'} from the other ranks",
                "; ".join(text for _, text in differences),
                "start all ranks with the same settings and the same entry",
                details={"ranks": odd, "facts": everyone},
            )

    def _leave(self, *, stay: bool) -> None:
        """Say that this rank does not go on; an error here must not hide why.

        Args:
            stay: Wait until the others have said their word too. The process that hosts the store often ends at once
                after an error, and would take from them what they are about to read.
        """
        if self._lost:
            return
        with suppress(RankMissingError):
            self.mark("verdict", "no")
            if stay:
                self.absent("verdict", min(self.timeout_s, _STAY_S))

    def mark(self, topic: str, text: str = "here") -> None:
        """Leave this rank's mark.

        Raises:
            RankMissingError: The store does not answer.
        """
        store = self._met()
        self._asked(lambda: store.set(f"{topic}/{self.rank}", text))

    def absent(self, topic: str, seconds: float) -> list[int]:
        """Return the ranks that left no mark, after waiting for them.

        Args:
            topic: What the mark is about.
            seconds: How long to wait.

        Raises:
            RankMissingError: The store does not answer.
        """
        store = self._met()
        keys = [f"{topic}/{rank}" for rank in range(self.ranks)]
        until = time.monotonic() + max(seconds, 0.0)

        def look() -> list[int]:
            try:
                store.wait(keys, timedelta(seconds=max(until - time.monotonic(), 0.001)))
            except RuntimeError:  # the time is over, or the store is gone, which the next question tells
                return [rank for rank, key in enumerate(keys) if not store.check([key])]
            return []

        return self._asked(look, max(seconds, 0.0))

    def _collect(self, topic: str, did_not: str) -> list[str]:
        absent = self.absent(topic, self.timeout_s)
        if absent:
            raise RankMissingError(
                f"{named(absent)} {did_not} within {self.timeout_s:g} s",
                f"{self.ranks} data-parallel ranks must meet before anything is captured",
                _HINT,
                details={"ranks": absent},
            )
        store = self._met()
        return self._asked(lambda: [store.get(f"{topic}/{rank}").decode() for rank in range(self.ranks)])

    def _met(self) -> dist.Store:
        if self._store is None:
            raise RuntimeError("`compare` comes first")
        return self._store

    def _asked(self, question: Callable[[], T], seconds: float = 0.0) -> T:
        """Ask the store, on a thread: a client waits for ever for a host that stands still, whatever its timeout."""
        answers: queue.SimpleQueue[tuple[T] | Exception] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answers.put((question(),))
            except Exception as error:  # noqa: BLE001 - handed on to the thread that waits
                answers.put(error)

        threading.Thread(target=ask, name="precast-store", daemon=True).start()
        try:
            answer = answers.get(timeout=seconds + _ANSWER_S)
        except queue.Empty:
            raise self._no_store("it does not answer") from None
        if isinstance(answer, RuntimeError):  # as torch's errors of stores and networks are
            raise self._no_store(str(answer).splitlines()[0]) from answer
        if isinstance(answer, Exception):
            raise answer
        return answer[0]

    def _no_store(self, why: str) -> RankMissingError:
        self._lost = True
        host = [] if self.rank == 0 else [0]
        who = "the process that hosts it" if self.rank == 0 else "the process that hosts it, rank 0 by default,"
        return RankMissingError(
            "the store that the ranks meet at is lost", f"{who} has ended or stands still: {why}", _HINT,
            details={"ranks": host},
        )  # fmt: skip


def named(ranks: Sequence[int]) -> str:
    """Name ranks in a sentence."""
    numbers = ", ".join(map(str, ranks))
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {numbers}"


def capture_facts(candidates: Candidates, **more: str) -> dict[str, str]:
    """Return what all ranks must have in common before they capture: mode, sizes, limits, and the table of graphs.

    Args:
        candidates: What this rank captures.
        more: Other facts by name, such as the key of the entry that was loaded.
    """
    limits = candidates.limits
    table = repr((candidates.capture_order, candidates.lora_cases, candidates.rows))
    return {
        "mode": candidates.mode.name,
        "capture sizes": ", ".join(map(str, candidates.sizes)),
        **{field.name: str(getattr(limits, field.name)) for field in fields(limits)},
        "table of graphs": sha256(table.encode()).hexdigest(),
        **more,
    }


def _differences(everyone: Sequence[Mapping[str, str]]) -> list[tuple[int, str]]:
    """Return each rank that differs from most, with what differs; of two equally common values, rank 0's is kept."""
    found = []
    for name in sorted({name for facts in everyone for name in facts}, key=_order(everyone)):
        values = [facts.get(name) for facts in everyone]
        common = max(values, key=values.count)  # the first of equally common ones
        for rank, value in enumerate(values):
            if value != common:
                model = values.index(common)
                found.append((rank, f"{name} of rank {rank}: {value}, of rank {model}: {common}"))
    return found


def _order(everyone: Sequence[Mapping[str, str]]) -> Callable[[str], int]:
    """Sort names as the ranks gave them, so that causes come before what follows from them."""
    order = list(dict.fromkeys(name for facts in everyone for name in facts))
    return order.index
