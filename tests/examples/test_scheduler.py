"""The scheduler against a model that is a hash of all tokens so far, read back from pages as attention reads them."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precast.errors import UsageError
from precast.examples.decoder.scheduler import Finished, Request, Scheduler, Step

VOCABULARY = 7


def next_token(tokens: Sequence[int]) -> int:
    return zlib.crc32(bytes(tokens)) % VOCABULARY


def alone(request: Request) -> tuple[int, ...]:
    """Decode one request by the definition."""
    tokens = list(request.prompt)
    while len(tokens) < len(request.prompt) + request.max_tokens:
        tokens.append(next_token(tokens))
        if tokens[-1] in request.stops:
            break
    return tuple(tokens[len(request.prompt) :])


@dataclass
class Pages:
    """A KV cache of one token a slot; a step writes all of its slots before it reads any."""

    block_size: int
    slots: dict[int, int] = field(default_factory=dict)

    def run(self, step: Step) -> list[int]:
        for part in step.parts:
            for at, token in enumerate(part.tokens, part.start):
                self.slots[self.slot(part.blocks, at)] = token
        return [
            next_token([self.slots[self.slot(part.blocks, at)] for at in range(part.start + len(part.tokens))])
            for part in step.parts
            if part.samples
        ]

    def slot(self, blocks: tuple[int, ...], position: int) -> int:
        return blocks[position // self.block_size] * self.block_size + position % self.block_size


@dataclass(frozen=True)
class Limits:
    tokens: int = 16
    seqs: int = 4
    blocks: int = 32
    block_size: int = 4
    length: int = 64

    def scheduler(self) -> Scheduler:
        return Scheduler(
            max_num_batched_tokens=self.tokens,
            max_num_seqs=self.seqs,
            num_blocks=self.blocks,
            block_size=self.block_size,
            max_length=self.length,
        )

    def fits(self, request: Request) -> bool:
        length = len(request.prompt) + request.max_tokens
        return length <= self.length and -(-(length - 1) // self.block_size) <= self.blocks


def check(limits: Limits, scheduler: Scheduler, step: Step) -> None:
    owned = list(chain.from_iterable(scheduler.owned().values()))
    assert sorted(owned) == sorted(set(owned))
    assert set(owned) <= set(range(limits.blocks))
    assert len(owned) + scheduler.free_blocks == limits.blocks
    assert 0 < step.num_tokens <= limits.tokens
    assert len(scheduler.owned()) <= limits.seqs
    assert len({part.row for part in step.parts}) == len(step.parts) <= limits.seqs
    assert all(0 <= part.row < limits.seqs for part in step.parts)
    assert sum(part.count for part in step.parts) == step.num_tokens
    for part in step.parts:
        assert 0 < part.count == len(part.tokens)
        assert part.blocks == scheduler.owned()[part.name]
        assert len(part.blocks) * limits.block_size >= part.start + len(part.tokens)


def serve(
    limits: Limits, joins: Sequence[tuple[int, Request]], leaves: Sequence[tuple[int, str]] = ()
) -> list[Finished]:
    """Run until every request ended; `joins` and `leaves` say before which step something happens."""
    scheduler, pages = limits.scheduler(), Pages(limits.block_size)
    finished: list[Finished] = []
    steps = 0
    last = max((at for at, _ in (*joins, *leaves)), default=0)
    while steps <= last or not scheduler.idle:
        for at, request in joins:
            if at == steps:
                scheduler.add(request)
        for at, name in leaves:
            if at == steps:
                scheduler.cancel(name)
        if not scheduler.idle:
            step = scheduler.plan()
            check(limits, scheduler, step)
            finished += scheduler.accept(step, pages.run(step))
        steps += 1
        assert steps < 20_000
    assert scheduler.free_blocks == limits.blocks
    return finished


limits_of = st.builds(
    Limits,
    tokens=st.integers(1, 20),
    seqs=st.integers(1, 5),
    blocks=st.integers(1, 16),
    block_size=st.integers(1, 5),
    length=st.integers(2, 40),
)
arrivals = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=24),
        st.integers(1, 12),
        st.frozensets(st.integers(0, VOCABULARY - 1), max_size=1),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(limits=limits_of, arrivals=arrivals, data=st.data())
def test_every_request_ends_with_the_tokens_that_it_gets_alone(
    limits: Limits, arrivals: list[tuple[int, list[int], int, frozenset[int]]], data: st.DataObject
) -> None:
    requests = [(at, Request(str(n), tuple(p), m, s)) for n, (at, p, m, s) in enumerate(arrivals)]
    joins = [(at, request) for at, request in requests if limits.fits(request)]
    for _, request in requests:
        if not limits.fits(request):
            with pytest.raises(UsageError, match="does not fit"):
                limits.scheduler().add(request)
    gone = data.draw(st.sets(st.sampled_from([r.name for _, r in joins])) if joins else st.just(set()))
    leaves = [(data.draw(st.integers(at, at + 9)), request.name) for at, request in joins if request.name in gone]

    finished = serve(limits, joins, leaves)

    answers = {f.name: f.tokens for f in finished}
    assert len(answers) == len(finished)
    assert {r.name for _, r in joins} - gone <= answers.keys()
    for _, request in joins:
        assert answers.get(request.name) in ({None, alone(request)} if request.name in gone else {alone(request)})


def request(name: str, prompt: int, tokens: int = 3, stops: frozenset[int] = frozenset()) -> Request:
    return Request(name, tuple(n % VOCABULARY for n in range(prompt)), tokens, stops)


def shapes(step: Step) -> list[tuple[str, int, int, bool, bool]]:
    return [(p.name, p.start, len(p.tokens), p.prefilling, p.samples) for p in step.parts]


def test_decodes_and_chunks_of_a_prompt_share_a_step() -> None:
    scheduler = Limits(tokens=8).scheduler()
    scheduler.add(request("a", 3))
    scheduler.accept(scheduler.plan(), [5])
    scheduler.add(request("b", 12))

    first = scheduler.plan()
    scheduler.accept(first, [6])
    second = scheduler.plan()

    assert shapes(first) == [("a", 3, 1, False, True), ("b", 0, 7, True, False)]
    assert shapes(second) == [("a", 4, 1, False, True), ("b", 7, 5, True, True)]
    assert first.parts[0].tokens == [5]


def test_a_part_keeps_its_blocks_and_its_row_until_it_outgrows_them() -> None:
    scheduler = Limits().scheduler()
    scheduler.add(request("a", 2, 8))
    parts = []
    for _ in range(5):
        step = scheduler.plan()
        parts.append(step.parts[0])
        scheduler.accept(step, [0])

    assert [len(p.blocks) for p in parts] == [1, 1, 1, 2, 2]
    assert parts[0].blocks is parts[2].blocks
    assert parts[3].blocks is parts[4].blocks
    assert len({p.row for p in parts}) == 1


def test_the_youngest_gives_its_blocks_back_and_is_computed_again() -> None:
    limits = Limits(blocks=5, block_size=2)
    a, b = request("a", 3, 7), request("b", 2, 6)

    finished = serve(limits, [(0, a), (0, b)])

    assert [(f.name, f.tokens, f.preemptions) for f in finished] == [("a", alone(a), 0), ("b", alone(b), 1)]


def test_a_request_is_admitted_only_when_those_that_run_can_still_grow() -> None:
    scheduler = Limits(blocks=3, block_size=4).scheduler()
    scheduler.add(request("a", 4))
    scheduler.accept(scheduler.plan(), [0])
    scheduler.add(request("b", 8))

    assert [p.name for p in scheduler.plan().parts] == ["a"]


def test_a_stop_ends_a_request_early() -> None:
    (finished,) = serve(Limits(), [(0, request("a", 3, 9, frozenset({alone(request("a", 3))[1]})))])

    assert finished.tokens == alone(request("a", 3, 2))


def test_a_request_can_leave_while_it_is_computed_and_its_name_be_taken_at_once() -> None:
    scheduler = Limits().scheduler()
    scheduler.add(request("a", 3, 1))
    step = scheduler.plan()

    assert scheduler.cancel("a")
    assert not scheduler.cancel("a")
    scheduler.add(request("a", 5, 1))
    assert scheduler.accept(step, [1]) == ()
    second = scheduler.plan()

    assert shapes(second) == [("a", 0, 5, True, True)]
    assert [f.name for f in scheduler.accept(second, [1])] == ["a"]
    assert scheduler.idle
    assert scheduler.free_blocks == 32


def test_nothing_to_do_is_an_empty_step() -> None:
    scheduler = Limits().scheduler()

    step = scheduler.plan()

    assert step.parts == ()
    assert scheduler.accept(step, []) == ()


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (request("b", 0), "asks for nothing"),
        (request("b", 1, 0), "asks for nothing"),
        (request("a", 1), "already"),
        (request("b", 60, 5), "does not fit"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(bad: Request, reason: str) -> None:
    scheduler = Limits().scheduler()
    scheduler.add(request("a", 1))

    with pytest.raises(UsageError, match=reason):
        scheduler.add(bad)


def test_steps_are_planned_and_accepted_in_turns() -> None:
    scheduler = Limits().scheduler()
    scheduler.add(request("a", 1))
    step = scheduler.plan()

    with pytest.raises(UsageError, match="already"):
        scheduler.plan()
    with pytest.raises(UsageError, match="not the tokens"):
        scheduler.accept(step, [1, 2])
    scheduler.accept(step, [1])
    with pytest.raises(UsageError, match="not the tokens"):
        scheduler.accept(step, [1])
