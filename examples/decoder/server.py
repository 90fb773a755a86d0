"""A continuous-batching loop: the scheduler plans a step, dispatch chooses its graph, the batch runs, tokens come back.

Prompts and single tokens share a step. One paged cache holds all requests, and a step computes only the logits from
which a token is chosen.

Shapes: T rows of a step, N rows to choose a token for, H hidden size.
"""

# ruff: noqa: N803, N806 - dimension suffixes are capitals

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from precast.capture.descriptor import BatchDescriptor
from precast.capture.dispatch import longest_query, uniform_tokens
from precast.capture.limits import BatchLimits
from precast.capture.modes import CUDAGraphMode
from precast.examples.decoder.model import DecoderModel
from precast.examples.decoder.scheduler import Finished, Part, Request, Scheduler, Step
from precast.examples.decoder.serving import DecoderState

__all__ = ["ModeCount", "Runner", "Served", "Server", "serve"]


class Runner(Protocol):
    """What computes steps over a state, such as a `GraphManager`."""

    def dispatch(
        self,
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None = None,
        num_active_loras: int = 0,
        max_query_len: int | None = None,
    ) -> BatchDescriptor:
        """Choose the graph of a batch, or none."""
        ...

    def run(self, descriptor: BatchDescriptor) -> Tensor:
        """Compute the hidden states of the rows that lie in the state's buffers."""
        ...


@dataclass(slots=True)
class ModeCount:
    """Steps that ran in one mode.

    Attributes:
        steps: How many.
        tokens: Tokens that they computed.
        padding: Padded rows that they computed too.
    """

    steps: int = 0
    tokens: int = 0
    padding: int = 0

    @property
    def waste(self) -> float:
        """Share of the rows that were padded."""
        rows = self.tokens + self.padding
        return self.padding / rows if rows else 0.0


class Server:
    """Requests, the cache that they share, and what computes them.

    Args:
        model: Computes the logits; its forward is not called.
        state: Buffers that the runner reads.
        limits: Limits of a batch; the state was made for the same.
        runner: Chooses a graph for each batch and runs it.

    Attributes:
        scheduler: Requests join and leave here.
        counts: Steps by the mode that they ran in.
    """

    __slots__ = ("_model", "_runner", "_state", "counts", "scheduler")

    def __init__(self, model: DecoderModel, state: DecoderState, limits: BatchLimits, runner: Runner) -> None:
        cache = state.context.cache
        self.scheduler = Scheduler(
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_num_seqs=limits.max_num_seqs,
            num_blocks=cache.num_blocks,
            block_size=cache.block_size,
            max_length=state.max_length,
        )
        self.counts = {mode: ModeCount() for mode in CUDAGraphMode if not mode.is_pair}
        self._model, self._state, self._runner = model, state, runner

    def step(self) -> tuple[Finished, ...]:
        """Compute one step, and return the requests that ended with it; does nothing where no request is left."""
        step = self.scheduler.plan()
        if not step.parts:
            return self.scheduler.accept(step, [])
        descriptor = self._dispatch(step)
        count = self.counts[descriptor.mode]
        count.steps += 1
        count.tokens += step.num_tokens
        count.padding += descriptor.num_tokens - step.num_tokens
        ids = [token for part in step.parts for token in part.tokens]
        self._state.load(step.parts, ids, descriptor.num_tokens)
        return self.scheduler.accept(step, self._sample(self._runner.run(descriptor), step))

    def _dispatch(self, step: Step) -> BatchDescriptor:
        lengths = [part.count for part in step.parts]
        prefilling = [part.prefilling for part in step.parts]
        uniform = uniform_tokens(lengths, prefilling, [part.start for part in step.parts])
        return self._runner.dispatch(
            len(lengths), step.num_tokens, uniform, max_query_len=longest_query(lengths, prefilling)
        )

    def _sample(self, hidden_TH: Tensor, step: Step) -> list[int]:
        """Choose the likeliest token for each part whose tokens are all computed; waits for the device."""
        rows = _last_rows(step.parts)
        if not rows:
            return []
        if rows == list(range(len(rows))):
            chosen_NH = hidden_TH[: len(rows)]
        else:
            at_N = torch.tensor(rows, dtype=torch.int64, device="cpu", pin_memory=hidden_TH.is_cuda)
            chosen_NH = hidden_TH[at_N.to(hidden_TH.device, non_blocking=True)]
        with torch.no_grad():
            tokens: list[int] = self._model.compute_logits(chosen_NH).argmax(-1).tolist()
        return tokens


def _last_rows(parts: Iterable[Part]) -> list[int]:
    """Return the row of the last token of each part that samples."""
    rows, end = [], 0
    for part in parts:
        end += part.count
        if part.samples:
            rows.append(end - 1)
    return rows


@dataclass(frozen=True, slots=True)
class Served:
    """What a loop produced.

    Attributes:
        answers: New token ids of each request by its name.
        seconds: Wall time of all steps.
        counts: Steps by the mode that they ran in.
        preemptions: How often a request gave its blocks back and was computed again.
    """

    answers: Mapping[str, tuple[int, ...]]
    seconds: float
    counts: Mapping[CUDAGraphMode, ModeCount]
    preemptions: int

    @property
    def tokens_per_s(self) -> float:
        """New tokens of all requests per second."""
        count = sum(map(len, self.answers.values()))
        return count / self.seconds if self.seconds > 0 else 0.0


def serve(
    server: Server, arrivals: Sequence[tuple[int, Request]], clock: Callable[[], float] = time.perf_counter
) -> Served:
    """Run until every request ended.

    Args:
        server: With no requests yet.
        arrivals: Requests, and before which step each of them joins; where nothing is left to do, time runs on to the
            next arrival.
        clock: Seconds from any start.

    Raises:
        UsageError: A request could not run even alone.
    """
    coming = sorted(arrivals, key=lambda arrival: arrival[0], reverse=True)
    answers: dict[str, tuple[int, ...]] = {}
    began, now = clock(), 0
    while coming or not server.scheduler.idle:
        if server.scheduler.idle:
            now = max(now, coming[-1][0])
        while coming and coming[-1][0] <= now:
            server.scheduler.add(coming.pop()[1])
        for finished in server.step():
            answers[finished.name] = finished.tokens
        now += 1
    return Served(answers, clock() - began, server.counts, server.scheduler.preemptions)
