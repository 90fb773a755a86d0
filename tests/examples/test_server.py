"""The serving loop: tokens as if each request were alone, without graphs and on graphs that the CPU replays."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.capture.support import ReplayingBackend
from tests.examples.padding import eager_pieces
from torch import Tensor

from precast.aot.binding import BoundState
from precast.aot.graphs import graph_manager
from precast.capture.candidates import candidates
from precast.capture.descriptor import BatchDescriptor
from precast.capture.limits import BatchLimits
from precast.capture.manager import GraphManager
from precast.capture.modes import CUDAGraphMode
from precast.errors import UsageError
from precast.examples.decoder.generation import generate
from precast.examples.decoder.model import DecoderModel
from precast.examples.decoder.runner import eager_runner
from precast.examples.decoder.scheduler import Request
from precast.examples.decoder.server import ModeCount, Server, serve
from precast.examples.decoder.serving import DecoderState
from precast.examples.decoder.spec import tiny

LIMITS = BatchLimits(max_num_batched_tokens=16, max_num_seqs=4)
SIZES = (1, 2, 4, 8, 16)
NONE, PIECEWISE, FULL = CUDAGraphMode.NONE, CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL


class Replayed:
    """Runs a manager inside its state: unlike a CUDA graph, what the CPU replays looks the cache up again."""

    def __init__(self, manager: GraphManager, state: DecoderState) -> None:
        self.manager = manager
        self.dispatch = manager.dispatch
        self._state = state

    def run(self, descriptor: BatchDescriptor) -> Tensor:
        with self._state.use(), torch.no_grad():
            hidden: Tensor = self.manager.run(descriptor)
        return hidden


@pytest.fixture(scope="module")
def module() -> DecoderModel:
    spec = tiny(num_hidden_layers=2)
    module = spec.build()
    assert spec.load_weights is not None
    assert isinstance(module, DecoderModel)
    spec.load_weights(module)
    return module


@pytest.fixture(scope="module")
def pieces(module: DecoderModel) -> BoundState:
    return eager_pieces(tiny(num_hidden_layers=2), module, "cpu")


@pytest.fixture(scope="module")
def answers(module: DecoderModel) -> dict[str, tuple[int, ...]]:
    return {r.name: generate(module, [r.prompt], r.max_tokens).tokens[0] for r in requests()}


def requests() -> list[Request]:
    chance = Random(1)
    lengths = ((3, 7), (21, 4), (1, 9), (40, 1), (16, 5), (8, 6), (2, 2))
    return [
        Request(f"r{n}", tuple(chance.randrange(512) for _ in range(prompt)), tokens)
        for n, (prompt, tokens) in enumerate(lengths)
    ]


def make_state(module: DecoderModel, num_blocks: int = 64) -> DecoderState:
    state = DecoderState(module, LIMITS, num_blocks=num_blocks, max_length=64, block_size=4)
    for layer in (*state.context.cache.keys_L, *state.context.cache.values_L):
        layer.fill_(float("nan"))
    return state


@contextmanager
def replayed(pieces: BoundState, state: DecoderState, mode: CUDAGraphMode) -> Iterator[Replayed]:
    manager = graph_manager(pieces, state, candidates(mode, SIZES, LIMITS), ReplayingBackend())
    manager.capture()
    yield Replayed(manager, state)
    counts = manager.counts()
    assert (counts.uncaptured, counts.late_captures) == (0, 0)


def eager_server(module: DecoderModel, num_blocks: int = 64) -> Server:
    state = make_state(module, num_blocks)
    return Server(module, state, LIMITS, eager_runner(module, state, LIMITS))


def test_without_graphs_each_request_gets_its_own_tokens(
    module: DecoderModel, answers: dict[str, tuple[int, ...]]
) -> None:
    served = serve(eager_server(module), list(enumerate(requests())))

    assert served.answers == answers
    assert len(set(answers.values())) == len(answers)
    assert served.counts[NONE].steps > 0
    assert served.counts[NONE].padding == 0
    assert {mode for mode, c in served.counts.items() if c.steps} == {NONE}


@pytest.mark.parametrize(
    ("mode", "used"),
    [
        (CUDAGraphMode.FULL_AND_PIECEWISE, {PIECEWISE, FULL}),
        (CUDAGraphMode.FULL_DECODE_ONLY, {NONE, FULL}),
        (CUDAGraphMode.PIECEWISE, {PIECEWISE}),
    ],
    ids=lambda value: value.name if isinstance(value, CUDAGraphMode) else None,
)
def test_on_graphs_each_request_gets_its_own_tokens(
    module: DecoderModel,
    pieces: BoundState,
    answers: dict[str, tuple[int, ...]],
    mode: CUDAGraphMode,
    used: set[CUDAGraphMode],
) -> None:
    state = make_state(module)
    with replayed(pieces, state, mode) as runner:
        served = serve(Server(module, state, LIMITS, runner), [(2 * n, r) for n, r in enumerate(requests())])

        ran = runner.manager.counts()
    assert served.answers == answers
    assert {m for m, c in served.counts.items() if c.steps} == used
    assert (ran.none, ran.piecewise, ran.full) == tuple(served.counts[m].steps for m in (NONE, PIECEWISE, FULL))
    assert sum(c.padding for m, c in served.counts.items() if m is not NONE) > 0


@settings(max_examples=2, deadline=None)
@given(order=st.permutations(range(7)), gaps=st.lists(st.integers(0, 4), min_size=7, max_size=7))
def test_the_order_in_which_requests_join_does_not_matter(
    module: DecoderModel, answers: dict[str, tuple[int, ...]], order: list[int], gaps: list[int]
) -> None:
    starts = [sum(gaps[: n + 1]) for n in range(7)]

    served = serve(eager_server(module), [(starts[n], requests()[at]) for n, at in enumerate(order)])

    assert served.answers == answers


def test_requests_that_gave_their_blocks_back_get_the_same_tokens(module: DecoderModel) -> None:
    growing = [Request(f"r{n}", (n, n + 1, n + 2), 11) for n in range(3)]

    served = serve(eager_server(module, num_blocks=8), [(0, request) for request in growing])

    assert served.preemptions > 0
    assert served.answers == {r.name: generate(module, [r.prompt], 11).tokens[0] for r in growing}


def test_a_request_that_leaves_does_not_disturb_the_others(
    module: DecoderModel, answers: dict[str, tuple[int, ...]]
) -> None:
    server = eager_server(module)
    for request in requests():
        server.scheduler.add(request)
    found = {}
    for step in count():
        if server.scheduler.idle:
            break
        if step == 2:
            assert server.scheduler.cancel("r0")
        found.update({f.name: f.tokens for f in server.step()})

    assert found == {name: tokens for name, tokens in answers.items() if name != "r0"}


def test_padding_is_counted_by_mode(module: DecoderModel, pieces: BoundState) -> None:
    state = make_state(module)
    with replayed(pieces, state, CUDAGraphMode.FULL_AND_PIECEWISE) as runner:
        server = Server(module, state, LIMITS, runner)
        # A prompt of 5 in a graph of 8, then one of 5 with a decode in a graph of 8, then two of three decodes in 2.
        served = serve(server, [(0, Request("a", (1, 2, 3, 4, 5), 3)), (1, Request("b", (6, 7, 8, 9, 10), 2))])

    assert served.counts[PIECEWISE] == ModeCount(2, 11, 5)
    assert served.counts[FULL] == ModeCount(1, 2, 0)
    assert served.counts[PIECEWISE].waste == 5 / 16
    assert ModeCount().waste == 0.0


def test_time_runs_on_to_the_next_arrival(module: DecoderModel) -> None:
    ticks = count(step=2)

    served = serve(eager_server(module), [(1000, Request("a", (1,), 2))], clock=lambda: float(next(ticks)))

    assert served.counts[NONE].steps == 2
    assert (served.seconds, served.tokens_per_s) == (2.0, 1.0)


def test_a_step_with_nothing_to_do_is_not_counted(module: DecoderModel) -> None:
    server = eager_server(module)

    assert server.step() == ()
    assert server.counts[NONE].steps == 0


def test_eager_code_has_no_graphs(module: DecoderModel) -> None:
    state = make_state(module)

    with pytest.raises(UsageError, match="without graphs"):
        eager_runner(module, state, LIMITS, mode=FULL)
