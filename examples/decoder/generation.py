"""A greedy decode loop over the paged cache: prompts first, then one token of each request at a time."""

# ruff: noqa: N806 - dimension suffixes are capitals

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from precast.errors import UsageError
from precast.examples.decoder.kv_cache import AttentionContext, RequestTokens
from precast.examples.decoder.model import DecoderModel
from precast.examples.decoder.spec import new_context

__all__ = ["Generation", "generate"]

_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Generation:
    """What a decode loop produced.

    Attributes:
        tokens: New token ids of each request.
        prefill_s: Seconds until the first token of every request was known.
        decode_s: Seconds for the others.
    """

    tokens: tuple[tuple[int, ...], ...]
    prefill_s: float
    decode_s: float

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens per second over all requests, without the prompts' step; 0 if there was no other step."""
        count = sum(max(0, len(tokens) - 1) for tokens in self.tokens)
        return count / self.decode_s if self.decode_s > 0 else 0.0


@dataclass(slots=True)
class _Request:
    """One request while it grows: `pending` are the tokens that the next step computes."""

    blocks: tuple[int, ...]
    pending: list[int]
    length: int = 0
    tokens: list[int] = field(default_factory=list)

    def batch(self) -> RequestTokens:
        return RequestTokens(self.length, len(self.pending), self.blocks)

    def accept(self, token: int) -> None:
        self.length += len(self.pending)
        self.pending = [token]
        self.tokens.append(token)


def generate(
    module: nn.Module,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    *,
    run: Callable[..., Tensor] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Generation:
    """Continue prompts by the likeliest token each time.

    Args:
        module: A DecoderModel with its weights; it computes the logits.
        prompts: Token ids of each request.
        num_tokens: How many tokens to add to each.
        run: Computes hidden states as the module does, such as what `precast.load` gives; the module itself
            if None.
        clock: Seconds from any start.

    Raises:
        UsageError: A prompt is empty, holds a token outside the vocabulary, or outgrows the model's
            positions.
    """
    model = _check(module, prompts, num_tokens)
    requests = _requests(prompts, num_tokens)
    context = new_context(
        model,
        num_blocks=sum(len(request.blocks) for request in requests),
        max_tokens=sum(map(len, prompts)),
        max_requests=len(requests),
        max_blocks=max(len(request.blocks) for request in requests),
        block_size=_BLOCK_SIZE,
    )
    times = [clock()]
    with torch.no_grad(), context.use():
        for _ in range(num_tokens):
            _step(model, run or model, context, requests)
            times.append(clock())
    return Generation(tuple(tuple(r.tokens) for r in requests), times[1] - times[0], times[-1] - times[1])


def _step(
    model: DecoderModel, run: Callable[..., Tensor], context: AttentionContext, requests: Sequence[_Request]
) -> None:
    """Compute the pending tokens of all requests in one batch, and choose the next token of each."""
    positions_T = context.fill([request.batch() for request in requests])
    device = positions_T.device
    ids_T = torch.tensor([token for request in requests for token in request.pending], device=device)
    hidden_TH = run(ids_T, positions_T)
    last_N = torch.tensor([len(request.pending) for request in requests], device=device).cumsum(0) - 1
    best = model.compute_logits(hidden_TH[last_N]).argmax(-1).tolist()
    for request, token in zip(requests, best, strict=True):
        request.accept(token)


def _requests(prompts: Sequence[Sequence[int]], num_tokens: int) -> list[_Request]:
    """Deal out blocks in turns, as requests of a server get them while they grow side by side."""
    widths = [-(-(len(prompt) + num_tokens) // _BLOCK_SIZE) for prompt in prompts]
    turns = sorted((turn, owner) for owner, width in enumerate(widths) for turn in range(width))
    blocks = [tuple(b for b, (_, o) in enumerate(turns) if o == owner) for owner in range(len(prompts))]
    return [_Request(own, list(prompt)) for own, prompt in zip(blocks, prompts, strict=True)]


def _check(module: nn.Module, prompts: Sequence[Sequence[int]], num_tokens: int) -> DecoderModel:
    if not isinstance(module, DecoderModel):
        raise UsageError(f"Not a decoder of this family: {type(module).__name__}", "", "pass the spec's module")
    vocabulary, positions = module.config.vocab_size, module.config.max_position_embeddings
    if num_tokens < 1 or not prompts or not all(prompts):
        raise UsageError("Nothing to generate", "a prompt is empty or no token is asked for", "give a prompt")
    if strays := [i for prompt in prompts for i in prompt if not 0 <= i < vocabulary]:
        why = f"the vocabulary has {vocabulary} tokens"
        raise UsageError(f"Token {strays[0]} does not exist", why, f"use ids from 0 to {vocabulary - 1}")
    if (longest := max(map(len, prompts)) + num_tokens) > positions:
        why = f"the model has {positions} positions"
        raise UsageError(f"A sequence of {longest} tokens is too long", why, "ask for fewer tokens")
    return module
