"""Batches over interleaved blocks, shared by the decoder's tests."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from precast.examples.decoder.kv_cache import RequestTokens
from precast.examples.decoder.model import DecoderModel
from precast.examples.decoder.spec import new_context

Forward = Callable[[DecoderModel, Sequence[Sequence[int]], int], list[Tensor]]


def prefill_then_decode(module: DecoderModel, sequences: Sequence[Sequence[int]], steps: int) -> list[Tensor]:
    """Give each sequence's logits: all but the last `steps` tokens in one batch, then one token each a step.

    Blocks hold four tokens, are dealt out in turns and backwards, and the batch has padded rows.
    """
    block_size, padding = 4, 3
    widths = [-(-len(ids) // block_size) for ids in sequences]
    turns = sorted((turn, owner) for owner, width in enumerate(widths) for turn in range(width))
    order = list(reversed(range(len(turns))))
    blocks = [tuple(order[i] for i, (_, o) in enumerate(turns) if o == owner) for owner in range(len(sequences))]
    context = new_context(
        module,
        num_blocks=len(turns),
        max_tokens=sum(map(len, sequences)) + padding,
        max_requests=len(sequences),
        max_blocks=max(widths),
        block_size=block_size,
    )
    for cache in (*context.cache.keys_L, *context.cache.values_L):
        cache.fill_(float("nan"))
    done = [0] * len(sequences)
    logits: list[list[Tensor]] = [[] for _ in sequences]
    with context.use(), torch.no_grad():
        for step in range(steps + 1):
            counts = [len(ids) - steps if step == 0 else 1 for ids in sequences]
            requests = [RequestTokens(d, c, b) for d, c, b in zip(done, counts, blocks, strict=True)]
            positions = context.fill(requests)
            ids = torch.tensor([i for seq, d, c in zip(sequences, done, counts, strict=True) for i in seq[d : d + c]])
            pad = torch.zeros(padding, dtype=torch.int64)
            hidden = module(torch.cat((ids, pad)), torch.cat((positions, pad)))[: len(ids)]
            for own, part in zip(logits, module.compute_logits(hidden).split(counts), strict=True):
                own.append(part)
            done = [d + c for d, c in zip(done, counts, strict=True)]
    return [torch.cat(parts) for parts in logits]


@pytest.fixture
def forward() -> Forward:
    """Run a decoder over several sequences at once: prefill, then decode token by token."""
    return prefill_then_decode
