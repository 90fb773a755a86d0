"""The state that a server of this family captures graphs over: inputs, KV cache and metadata that never move.

Shapes: T tokens, S slots of earlier tokens, L layers, K key-value heads, D head dim.
"""

# ruff: noqa: N803, N806 - dimension suffixes are capitals

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from precast.capture.limits import BatchLimits
from precast.capture.state import BatchShape
from precast.errors import UsageError
from precast.examples.decoder.host_rows import send, spread
from precast.examples.decoder.kv_cache import AttentionContext, RequestTokens, Tokens
from precast.examples.decoder.spec import decoder_config, new_context

__all__ = ["DecoderState"]

_BLOCK_SIZE = 16
# Most tokens before a request's new ones in a batch of random numbers: two blocks, less one token.
_LONGEST_HISTORY = 31


class DecoderState:
    """Inputs, KV cache and metadata of a serving process, on the device where the module lies.

    Args:
        module: A DecoderModel.
        limits: Limits of a batch.
        num_blocks: Blocks of the KV cache; as many as `fill` needs for the widest batch if None.
        max_length: Most tokens of a request, prompt and answer; the model's longest position if None.
        block_size: Tokens per block.

    Attributes:
        context: The KV cache and the metadata.
        input_ids_T: Token ids, int64, for as many rows as a step may have.
        positions_T: Their positions, int64.

    Raises:
        UsageError: The module is not a DecoderModel.
    """

    __slots__ = ("_vocabulary", "context", "input_ids_T", "max_length", "positions_T")

    def __init__(
        self,
        module: nn.Module,
        limits: BatchLimits,
        *,
        num_blocks: int | None = None,
        max_length: int | None = None,
        block_size: int = _BLOCK_SIZE,
    ) -> None:
        config = decoder_config(module)
        rows, requests = limits.max_num_batched_tokens, limits.max_num_seqs
        if num_blocks is None:
            num_blocks = _blocks(requests * (_LONGEST_HISTORY + block_size - 1) + rows, block_size)
        self.max_length = config.max_position_embeddings if max_length is None else max_length
        # A batch of random numbers may be one request as long as a step.
        width = _blocks(max(self.max_length, rows + _LONGEST_HISTORY), block_size)
        self.context: AttentionContext = new_context(
            module,
            num_blocks=num_blocks,
            max_tokens=rows,
            max_requests=requests,
            max_blocks=min(width, num_blocks),
            block_size=block_size,
        )
        device = self.context.metadata.slots_T.device
        self.input_ids_T, self.positions_T = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(2))
        self._vocabulary = config.vocab_size

    def inputs(self, num_tokens: int) -> tuple[Tensor, ...]:
        """Return token ids and positions of so many rows, where they always lie."""
        return self.input_ids_T[:num_tokens], self.positions_T[:num_tokens]

    def use(self) -> AbstractContextManager[AttentionContext]:
        """Make this the state in which the attention op runs."""
        return self.context.use()

    def load(self, requests: Sequence[Tokens], token_ids: Sequence[int], num_tokens: int) -> None:
        """Put the next step's batch in place: one copy per buffer, and none is waited for.

        Args:
            requests: What each request brings.
            token_ids: The ids of their tokens, one request after another.
            num_tokens: Rows of the step; those after the requests' tokens are padded rows.

        Raises:
            UsageError: The batch does not fit the buffers, or a request has too few or unknown blocks.
        """
        if len(token_ids) != sum(r.count for r in requests):
            why = f"{len(token_ids)} ids came for {sum(r.count for r in requests)} tokens"
            raise UsageError("Token ids and requests do not fit together", why, "give the ids of each request's tokens")
        self.context.fill(requests, rows=num_tokens, positions_T=self.positions_T)
        send(torch.tensor(token_ids, dtype=torch.int64, device="cpu"), self.input_ids_T, num_tokens)

    def describe(self, shape: BatchShape) -> None:
        """Put a batch in place that graphs can be captured over: it reads and writes no slot of the cache.

        Args:
            shape: Lengths of the requests, all of which start at position 0, and rows of the step.

        Raises:
            UsageError: The shape does not fit the buffers.
        """
        self.context.describe(shape.query_lens, rows=shape.num_tokens, positions_T=self.positions_T)
        self.input_ids_T[: shape.num_tokens].zero_()

    def fill(self, shape: BatchShape, seed: int) -> None:
        """Put a random batch in place, in a cache of NaN where nothing but its requests' earlier tokens has numbers.

        So a step that reads any other slot gives NaN. Everything that the cache held is lost.

        Args:
            shape: Lengths of the requests, and rows of the step.
            seed: Equal seeds fill equally, on one kind of device.

        Raises:
            UsageError: The shape does not fit the buffers or the cache.
        """
        requests = self._random_requests(shape, seed)
        generator = torch.Generator("cpu").manual_seed(seed)
        ids_T = torch.randint(self._vocabulary, (sum(shape.query_lens),), generator=generator, device="cpu")
        self.load(requests, ids_T.tolist(), shape.num_tokens)
        self._fill_cache(_slots(requests, self.context.cache.block_size), seed)

    def written(self, shape: BatchShape) -> tuple[Tensor, Tensor]:
        """Return copies of the keys and values that the last batch wrote, [L, T, K, D] each, without padded rows."""
        slots_T = self.context.metadata.slots_T[: sum(shape.query_lens)]
        cache = self.context.cache
        keys, values = (
            torch.stack([layer.flatten(0, 1)[slots_T] for layer in layers]) for layers in (cache.keys_L, cache.values_L)
        )
        return keys, values

    def _random_requests(self, shape: BatchShape, seed: int) -> list[RequestTokens]:
        """Give each request a history and blocks that do not lie side by side; no histories where blocks are short."""
        generator = torch.Generator("cpu").manual_seed(seed)
        size, there = self.context.cache.block_size, self.context.cache.num_blocks
        count = len(shape.query_lens)
        histories = torch.randint(_LONGEST_HISTORY + 1, (count,), generator=generator, device="cpu").tolist()
        widths = [_blocks(h + n, size) for h, n in zip(histories, shape.query_lens, strict=True)]
        if sum(widths) > there:
            histories, widths = [0] * count, [_blocks(n, size) for n in shape.query_lens]
        if sum(widths) > there:
            why = f"its {count} requests need {sum(widths)} KV blocks, the cache has {there}"
            raise UsageError(
                f"A batch of {shape.num_tokens} rows does not fit the KV cache", why, "allocate more blocks"
            )
        order = torch.randperm(there, generator=generator, device="cpu")[: sum(widths)].split(widths)
        return [
            RequestTokens(h, n, tuple(own.tolist()))
            for h, n, own in zip(histories, shape.query_lens, order, strict=True)
        ]

    def _fill_cache(self, slots_S: Tensor, seed: int) -> None:
        cache = self.context.cache
        device = cache.keys_L[0].device
        slots_S = slots_S.to(device)
        generator = torch.Generator(device).manual_seed(seed)
        for layer in (*cache.keys_L, *cache.values_L):
            layer.fill_(float("nan"))
            shape = (len(slots_S), *layer.shape[2:])
            layer.flatten(0, 1)[slots_S] = torch.randn(shape, generator=generator, dtype=layer.dtype, device=device)


def _slots(requests: Sequence[RequestTokens], block_size: int) -> Tensor:
    """Return the slots of the tokens before each request's new ones, int64 on the CPU."""
    blocks = torch.tensor([b for r in requests for b in r.blocks], dtype=torch.int64, device="cpu")
    widths = torch.tensor([len(r.blocks) for r in requests], dtype=torch.int64, device="cpu")
    firsts = (widths.cumsum(0) - widths).tolist()
    firsts_S, positions_S = spread([0] * len(requests), [r.start for r in requests], firsts)
    return blocks[firsts_S + positions_S // block_size] * block_size + positions_S % block_size


def _blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)
