"""The scheduler of a continuous batch: which requests compute which tokens in the next step, and in which KV blocks.

Plain Python, with no tensor in sight. A step takes the next tokens of every running request, oldest first, and then
admits waiting ones, until its tokens or its requests are used up; a prompt that does not fit whole is computed in
chunks. A request gets blocks for all of its prompt when it is admitted, and one more whenever it outgrows them. Where
there is none left, the youngest request gives its blocks back and waits to be computed again. So the oldest one always
moves on, and every request ends.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from precast.errors import UsageError

__all__ = ["BlockPool", "Finished", "Part", "Request", "Scheduler", "Step"]


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody asks for.

    Attributes:
        name: No two requests that are not finished have the same.
        prompt: Token ids, one at least.
        max_tokens: How many tokens to add, one at least.
        stops: Token ids after which it ends early; the stop itself is part of the answer.
    """

    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    stops: frozenset[int] = frozenset()


@dataclass(slots=True)
class Part:
    """What one request brings into a step. Not frozen, since a step may have hundreds and freezing doubles their cost.

    Attributes:
        name: The request's.
        row: The request's row of the block table, the same for as long as it runs.
        start: Position of the first token.
        count: How many tokens it brings.
        tokens: Their ids.
        blocks: The request's KV blocks in order of position; the same object until they change.
        prefilling: The request still computes tokens that it was admitted with.
        samples: The last of the tokens is the last one known, so the next one is chosen from what it computes.
    """

    name: str
    row: int
    start: int
    count: int
    tokens: list[int]
    blocks: tuple[int, ...]
    prefilling: bool
    samples: bool


@dataclass(frozen=True, slots=True)
class Step:
    """What is computed next.

    Attributes:
        parts: What each request brings; none where nothing is left to do.
        num_tokens: Tokens of all parts.
    """

    parts: tuple[Part, ...]
    num_tokens: int

    @property
    def num_samples(self) -> int:
        """Tokens that are chosen after the step."""
        return sum(part.samples for part in self.parts)


@dataclass(frozen=True, slots=True)
class Finished:
    """A request's answer.

    Attributes:
        name: The request's.
        tokens: Ids of the new tokens.
        preemptions: How often it gave its blocks back and was computed again.
    """

    name: str
    tokens: tuple[int, ...]
    preemptions: int


class BlockPool:
    """The numbers of the KV blocks that nobody owns."""

    __slots__ = ("_free",)

    def __init__(self, num_blocks: int) -> None:
        self._free = list(reversed(range(num_blocks)))

    @property
    def free(self) -> int:
        """How many blocks nobody owns."""
        return len(self._free)

    def take(self, count: int) -> tuple[int, ...]:
        """Hand out blocks; the caller has looked that there are enough."""
        return tuple(self._free.pop() for _ in range(count))

    def give(self, blocks: Iterable[int]) -> None:
        """Take blocks back; what they hold stays there, and nobody may rely on it."""
        self._free.extend(blocks)


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request as it grows.

    Attributes:
        request: What was asked for.
        tokens: Prompt and answer so far.
        longest: How many they may become.
        computed: How many of them have keys and values in the cache.
        known: How many there were when the request was admitted.
        row: Row of the block table; -1 while waiting.
        blocks: KV blocks; none while waiting.
        preemptions: How often it gave them back.
    """

    request: Request
    tokens: list[int]
    longest: int
    computed: int = 0
    known: int = 0
    row: int = -1
    blocks: tuple[int, ...] = ()
    preemptions: int = 0

    def part(self, count: int) -> Part:
        start, end = self.computed, self.computed + count
        tokens, prefilling, samples = self.tokens[start:end], start < self.known, end == len(self.tokens)
        return Part(self.request.name, self.row, start, count, tokens, self.blocks, prefilling, samples)

    def answer(self) -> tuple[int, ...]:
        return tuple(self.tokens[len(self.request.prompt) :])


class Scheduler:
    """Plans steps, one at a time: `plan`, compute, `accept`.

    Args:
        max_num_batched_tokens: Most tokens of a step.
        max_num_seqs: Most requests that run at a time.
        num_blocks: Blocks of the KV cache.
        block_size: Tokens per block.
        max_length: Most tokens of a request, prompt and answer.
    """

    __slots__ = (
        "_by_name", "_max_length", "_most_tokens", "_num_blocks", "_planned", "_pool", "_rows", "_running", "_size",
        "_waiting", "preemptions",
    )  # fmt: skip

    def __init__(
        self, *, max_num_batched_tokens: int, max_num_seqs: int, num_blocks: int, block_size: int, max_length: int
    ) -> None:
        self._most_tokens = max_num_batched_tokens
        self._num_blocks, self._size, self._max_length = num_blocks, block_size, max_length
        self._pool = BlockPool(num_blocks)
        self._rows = list(reversed(range(max_num_seqs)))
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []  # oldest first
        self._by_name: dict[str, _Sequence] = {}
        self._planned: dict[str, _Sequence] | None = None
        self.preemptions = 0

    @property
    def idle(self) -> bool:
        """Whether no request is left."""
        return not self._by_name

    @property
    def free_blocks(self) -> int:
        """KV blocks that nobody owns."""
        return self._pool.free

    def owned(self) -> dict[str, tuple[int, ...]]:
        """Return the KV blocks of each running request, oldest first."""
        return {seq.request.name: seq.blocks for seq in self._running}

    def add(self, request: Request) -> None:
        """Let a request join; it waits for the next step with room for it.

        Raises:
            UsageError: It asks for nothing, has the name of another one, or could not run even alone.
        """
        if not request.prompt or request.max_tokens < 1:
            why = f"it has {len(request.prompt)} prompt tokens and asks for {request.max_tokens}"
            raise UsageError(f"Request {request.name} asks for nothing", why, "give a prompt and ask for a token")
        if request.name in self._by_name:
            raise UsageError(f"There is a request {request.name} already", "", "choose another name")
        length = len(request.prompt) + request.max_tokens
        # The last token of an answer is never computed, so it needs no place in the cache.
        if length > self._max_length or self._blocks_for(length - 1) > self._num_blocks:
            why = f"{length} tokens; a request has at most {self._max_length}, the cache {self._num_blocks} blocks"
            raise UsageError(f"Request {request.name} does not fit", why, "ask for fewer tokens or give more blocks")
        self._by_name[request.name] = seq = _Sequence(request, list(request.prompt), length)
        self._waiting.append(seq)

    def cancel(self, name: str) -> bool:
        """Let a request leave before it ends; between `plan` and `accept` too, then its token is dropped.

        Returns:
            Whether there was such a request.
        """
        if (seq := self._by_name.pop(name, None)) is None:
            return False
        if self._planned is not None:
            self._planned.pop(name, None)
        if seq.row < 0:
            self._waiting.remove(seq)
        else:
            self._running.remove(seq)
            self._release(seq)
        return True

    def plan(self) -> Step:
        """Choose what the next step computes.

        Raises:
            UsageError: The last step was not accepted yet.
        """
        if self._planned is not None:
            raise UsageError("A step is planned already", "its tokens are not known", "call accept first")
        left, before, at = self._most_tokens, self.preemptions, 0
        self._planned = planned = {}
        parts: list[Part] = []
        while left and at < len(self._running):  # a request that is younger may drop out on the way
            seq = self._running[at]
            count = min(len(seq.tokens) - seq.computed, left)
            end = seq.computed + count
            if end <= len(seq.blocks) * self._size or self._grow(seq, end):
                planned[seq.request.name] = seq
                parts.append(seq.part(count))
                left -= count
            at += 1
        # What was just given back is meant for those that run.
        while left and self.preemptions == before and (admitted := self._admit()):
            count = min(len(admitted.tokens), left)
            planned[admitted.request.name] = admitted
            parts.append(admitted.part(count))
            left -= count
        return Step(tuple(parts), self._most_tokens - left)

    def accept(self, step: Step, tokens: Sequence[int]) -> tuple[Finished, ...]:
        """Take in the tokens that were chosen after the planned step.

        Args:
            step: What `plan` returned.
            tokens: One id for each part that samples, in order.

        Returns:
            The requests that ended with it.

        Raises:
            UsageError: No step was planned, or the number of tokens is wrong.
        """
        if self._planned is None or len(tokens) != step.num_samples:
            why = f"{len(tokens)} tokens came for {step.num_samples} parts that sample"
            raise UsageError("These are not the tokens of a planned step", why, "call plan, then accept once")
        planned, self._planned = self._planned, None
        chosen = iter(tokens)
        finished = []
        for part in step.parts:
            token = next(chosen) if part.samples else None
            if (seq := planned.get(part.name)) is None:
                continue  # it left while the step ran
            seq.computed += part.count
            if token is not None:
                seq.tokens.append(token)
                if len(seq.tokens) == seq.longest or token in seq.request.stops:
                    finished.append(seq)
        for seq in finished:
            del self._by_name[seq.request.name]
            self._running.remove(seq)
            self._release(seq)
        return tuple(Finished(seq.request.name, seq.answer(), seq.preemptions) for seq in finished)

    def _grow(self, seq: _Sequence, length: int) -> bool:
        """Give a running request the blocks that it lacks for so many tokens; False where it sits this step out."""
        missing = self._blocks_for(length) - len(seq.blocks)
        while missing > self._pool.free:
            if (youngest := self._running[-1]) is seq:
                return False
            self._preempt(youngest)
        seq.blocks += self._pool.take(missing)
        return True

    def _preempt(self, seq: _Sequence) -> None:
        self._running.remove(seq)
        self._release(seq)
        seq.row, seq.blocks, seq.computed = -1, (), 0
        seq.preemptions += 1
        self.preemptions += 1
        self._waiting.appendleft(seq)

    def _admit(self) -> _Sequence | None:
        """Let the next request run, if a row and blocks for all that it knows are free."""
        if not self._waiting or not self._rows:
            return None
        seq = self._waiting[0]
        need = self._blocks_for(len(seq.tokens))
        # One block for each running request stays free, or the new one would soon have to give its own back.
        if need + len(self._running) > self._pool.free:
            return None
        self._waiting.popleft()
        seq.row, seq.blocks, seq.known = self._rows.pop(), self._pool.take(need), len(seq.tokens)
        self._running.append(seq)
        return seq

    def _release(self, seq: _Sequence) -> None:
        self._rows.append(seq.row)
        self._pool.give(seq.blocks)

    def _blocks_for(self, length: int) -> int:
        return -(-length // self._size)
