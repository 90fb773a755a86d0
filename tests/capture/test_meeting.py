import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from precast.capture import meeting
from precast.capture.candidates import candidates
from precast.capture.limits import BatchLimits
from precast.capture.meeting import Meeting, capture_facts
from precast.capture.modes import CUDAGraphMode
from precast.errors import PrecastError, RankDiffersError, RankMissingError

FACTS = {"mode": "FULL", "capture sizes": "1, 2, 4"}
LONG = 30.0
SHORT = 0.5


def everyone(ranks: int, come: Callable[[int], object]) -> list[object]:
    """Run each rank on a thread; return what each returned or raised."""

    def one(rank: int) -> object:
        try:
            return come(rank)
        except PrecastError as error:
            return error

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(one, range(ranks)))


def test_equal_ranks_meet_more_than_once() -> None:
    store = dist.HashStore()
    for _ in range(3):
        assert everyone(3, lambda rank: Meeting(store, rank, 3, LONG).compare(FACTS)) == [None] * 3


@pytest.mark.parametrize(
    ("sizes", "odd"),
    [
        (["1, 2, 4", "1, 2, 4, 8"], [1]),
        (["1", "2", "2"], [0]),
        (["1", "2", "3", "1"], [1, 2]),
        (["1", "2", "2", "1"], [1, 2]),
    ],
)
def test_every_rank_names_those_that_differ_and_what(sizes: list[str], odd: list[int]) -> None:
    store, ranks = dist.HashStore(), len(sizes)

    def come(rank: int) -> None:
        Meeting(store, rank, ranks, LONG).compare({**FACTS, "capture sizes": sizes[rank]})

    for error in everyone(ranks, come):
        assert isinstance(error, RankDiffersError)
        assert error.details["ranks"] == odd
        for rank in odd:
            assert f"capture sizes of rank {rank}: {sizes[rank]}" in error.why


def test_who_finds_a_difference_stays_until_all_have_found_it() -> None:
    store, heard = dist.HashStore(), []

    class Slow(Meeting):
        def _collect(self, topic: str, did_not: str) -> list[str]:
            store.wait(["precast/agreement/1/verdict/0"], timedelta(seconds=LONG))  # rank 0 has found it already
            return super()._collect(topic, did_not)

    def come(rank: int) -> None:
        try:
            (Slow if rank else Meeting)(store, rank, 2, LONG).compare({"sizes": str(rank)})
        finally:
            if rank == 0:
                heard.append(store.check(["precast/agreement/1/verdict/1"]))

    assert [type(error) for error in everyone(2, come)] == [RankDiffersError] * 2
    assert heard == [True]


def test_a_fact_that_one_rank_lacks_is_a_difference() -> None:
    store = dist.HashStore()
    errors = everyone(
        2, lambda rank: Meeting(store, rank, 2, LONG).compare({**FACTS, **({"entry": "a"} if rank else {})})
    )
    assert [e.details["ranks"] for e in errors if isinstance(e, RankDiffersError)] == [[1], [1]]


def test_missing_ranks_are_named_by_all_who_came() -> None:
    store = dist.HashStore()
    came = everyone(2, lambda rank: Meeting(store, 2 * rank, 4, SHORT).compare(FACTS))
    for error in came:
        assert isinstance(error, RankMissingError)
        assert error.details["ranks"] == [1, 3]
        assert "ranks 1, 3" in error.what


def test_a_rank_that_comes_too_late_is_told_who_gave_up() -> None:
    store = dist.HashStore()
    with pytest.raises(RankMissingError):
        Meeting(store, 0, 2, SHORT).compare(FACTS)
    with pytest.raises(RankMissingError) as caught:
        Meeting(store, 1, 2, LONG).compare(FACTS)
    assert caught.value.details["ranks"] == [0]
    assert "gave up" in caught.value.what


def test_marks_tell_who_is_absent() -> None:
    store = dist.HashStore()
    meetings = [Meeting(store, rank, 2, LONG) for rank in range(2)]
    everyone(2, lambda rank: meetings[rank].compare(FACTS))
    meetings[1].mark("step-1")
    assert meetings[1].absent("step-1", 0.1) == [0]
    meetings[0].mark("step-1")
    assert meetings[1].absent("step-1", LONG) == []
    with pytest.raises(RuntimeError, match="comes first"):
        Meeting(store, 0, 2, LONG).mark("step-1")


HOST = "import sys, torch.distributed as d; s = d.TCPStore('127.0.0.1', 0, None, True, wait_for_workers=False)"


def test_a_store_whose_host_stands_still_or_ends_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", f"{HOST}; print(s.port, flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as host:
        try:
            assert host.stdout is not None
            port = int(host.stdout.readline())
            store = dist.TCPStore("127.0.0.1", port, None, False, timeout=timedelta(seconds=LONG))
            host.send_signal(signal.SIGSTOP)
            monkeypatch.setattr(meeting, "_ANSWER_S", SHORT)
            with pytest.raises(RankMissingError, match="rank 0 by default") as caught:
                Meeting(store, 1, 2, SHORT).compare(FACTS)
            assert caught.value.details["ranks"] == [0]
            host.kill()
            with pytest.raises(RankMissingError, match="lost"):
                Meeting(store, 1, 2, SHORT).compare(FACTS)
        finally:
            host.kill()


def test_the_facts_tell_sizes_modes_limits_and_entries_apart() -> None:
    def facts(mode: CUDAGraphMode, sizes: tuple[int, ...], seqs: int, entry: str) -> dict[str, str]:
        return capture_facts(candidates(mode, sizes, BatchLimits(max_num_seqs=seqs)), entry=entry)

    base = facts(CUDAGraphMode.FULL, (1, 2), 8, "a")
    assert base == facts(CUDAGraphMode.FULL, (1, 2), 8, "a")
    assert base["capture sizes"] == "1, 2"
    others = [
        (facts(CUDAGraphMode.PIECEWISE, (1, 2), 8, "a"), "mode"),
        (facts(CUDAGraphMode.FULL, (1, 4), 8, "a"), "capture sizes"),
        (facts(CUDAGraphMode.FULL, (1, 2), 9, "a"), "max_num_seqs"),
        (facts(CUDAGraphMode.FULL, (1, 2), 8, "b"), "entry"),
    ]
    for other, name in others:
        assert next(key for key in base if base[key] != other[key]) == name


def test_an_error_that_is_not_the_stores_is_not_taken_for_a_lost_store() -> None:
    with pytest.raises(TypeError):
        Meeting(dist.HashStore(), 0, 1, LONG).compare({"entry": b"not text"})  # type: ignore[dict-item]
