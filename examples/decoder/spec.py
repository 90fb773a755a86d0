"""Model specs of the decoder family: from a Hugging Face configuration, and a tiny one to try things with."""

# ruff: noqa: N806 - dimension suffixes are capitals

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from precast.aot.spec import Json, ModelSpec, TensorInput
from precast.capture.limits import BatchLimits
from precast.capture.state import GraphState
from precast.capture.support import AttentionGraphSupport
from precast.errors import UsageError
from precast.examples.decoder.attention import OP_NAME
from precast.examples.decoder.config import DecoderConfig, apply_overrides, parse_config
from precast.examples.decoder.kv_cache import AttentionContext, AttentionMetadata, KVCache, RequestTokens
from precast.examples.decoder.model import DecoderModel
from precast.examples.decoder.weights import find_weights, load_weights, randomize_weights

__all__ = ["decoder_config", "from_config", "new_context", "sample", "tiny"]

_BLOCK_SIZE = 16
_LONGEST_SAMPLE = 128

# The same as configs/tiny-llama/config.json, which is not part of the installed package.
_TINY: dict[str, Json] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def from_config(
    config: Mapping[str, Json], overrides: Mapping[str, Json] | None = None, folder: Path | None = None
) -> ModelSpec:
    """Make the spec of a decoder.

    Args:
        config: A parsed Hugging Face config.json.
        overrides: Values that replace keys of it, such as `num_hidden_layers` or `dtype`.
        folder: Where the weights lie; without it, or without weights in it, they are random.

    Raises:
        ConfigKeyError: An override names no key of a configuration.
        ConfigValueError: The configuration asks for what this family does not compute.
    """
    parsed = parse_config(apply_overrides(config, overrides or {}))
    return ModelSpec(
        name=folder.resolve().name if folder else str(config.get("_name_or_path") or parsed.architecture),
        build=partial(_build, parsed),
        inputs=(TensorInput("input_ids", ("tokens",)), TensorInput("positions", ("tokens",))),
        splitting_ops=(OP_NAME,),
        sample=sample,
        config=parsed.to_json(),
        load_weights=_weight_loader(folder),
        state=_state,
        graph_state=_graph_state,
        # Its kernels read all lengths on the device, and are launched for rows alone.
        graph_support={OP_NAME: AttentionGraphSupport.ALWAYS},
    )


def tiny(**overrides: Json) -> ModelSpec:
    """Make the spec of a four-layer Llama to try things with; arguments replace keys of its config.json."""
    return from_config({"_name_or_path": "tiny-llama", **_TINY}, overrides)


def new_context(
    module: nn.Module,
    *,
    num_blocks: int,
    max_tokens: int,
    max_requests: int,
    max_blocks: int,
    block_size: int = _BLOCK_SIZE,
) -> AttentionContext:
    """Allocate an empty KV cache and metadata that fit a decoder, on the device where the module lies.

    Args:
        module: A DecoderModel.
        num_blocks: Blocks in the cache.
        max_tokens: Most tokens of a batch, padded rows included.
        max_requests: Most requests of a batch.
        max_blocks: Most blocks of one request.
        block_size: Tokens per block.

    Raises:
        UsageError: The module is not a DecoderModel.
    """
    config = decoder_config(module)
    device = next(module.parameters()).device
    cache = KVCache.allocate(
        num_layers=config.num_hidden_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        dtype=getattr(torch, config.dtype),
        device=device,
    )
    metadata = AttentionMetadata.allocate(
        max_tokens=max_tokens, max_requests=max_requests, max_blocks=max_blocks, device=device
    )
    return AttentionContext(cache, metadata)


@contextmanager
def sample(module: nn.Module, num_tokens: int, seed: int) -> Iterator[tuple[Tensor, ...]]:
    """Make a batch of several prompts over a fresh KV cache, which stays in use while the caller runs it.

    Args:
        module: A DecoderModel.
        num_tokens: Tokens in all; prompts are at most 128 tokens and at most the model's longest position.
        seed: Decides prompt lengths, token ids and which blocks each prompt gets.

    Yields:
        Token ids and positions, both int64 [T] on the module's device.

    Raises:
        UsageError: The module is not a DecoderModel.
    """
    config = decoder_config(module)
    generator = torch.Generator("cpu").manual_seed(seed)
    lengths = _lengths(num_tokens, min(_LONGEST_SAMPLE, config.max_position_embeddings), generator)
    widths = [-(-length // _BLOCK_SIZE) for length in lengths]
    # Shuffled, so that a batch does not work by the accident of contiguous blocks.
    blocks = torch.randperm(sum(widths), generator=generator, device="cpu").split(widths)
    requests = [RequestTokens(0, n, tuple(b.tolist())) for n, b in zip(lengths, blocks, strict=True)]
    ids_T = torch.randint(config.vocab_size, (num_tokens,), generator=generator, device="cpu")
    context = new_context(
        module,
        num_blocks=max(1, sum(widths)),
        # Room for padded rows, up to any capture size that the tokens may be padded to.
        max_tokens=1 << max(4, (num_tokens - 1).bit_length()),
        max_requests=max(1, len(lengths)),
        max_blocks=max([1, *widths]),
    )
    positions_T = context.fill(requests)
    with context.use():
        yield ids_T.to(positions_T.device), positions_T


@contextmanager
def _state(module: nn.Module, num_tokens: int) -> Iterator[None]:
    """Allocate a cache and metadata whose values nobody reads."""
    context = new_context(module, num_blocks=1, max_tokens=num_tokens, max_requests=1, max_blocks=1)
    with context.use():
        yield


def _graph_state(module: nn.Module, limits: BatchLimits) -> GraphState:
    """Allocate the buffers of a server."""
    # An import statement would make the server's code part of the key, and nothing that is compiled depends on it.
    serving = import_module("precast.examples.decoder.serving")
    state: GraphState = serving.DecoderState(module, limits)
    return state


def _build(config: DecoderConfig) -> nn.Module:
    return DecoderModel(config).requires_grad_(False).eval()


def _weight_loader(folder: Path | None) -> Callable[[nn.Module], None]:
    def fill(module: nn.Module) -> None:
        """Look for the files only now: precompiling needs none."""
        decoder_config(module)
        files = find_weights(folder) if folder else ()
        if files:
            load_weights(module, files)
        else:
            randomize_weights(module)

    return fill


def _lengths(num_tokens: int, longest: int, generator: torch.Generator) -> list[int]:
    lengths: list[int] = []
    while (left := num_tokens - sum(lengths)) > 0:
        length = int(torch.randint(1, longest + 1, (), generator=generator, device="cpu"))
        lengths.append(min(length, left))
    return lengths


def decoder_config(module: nn.Module) -> DecoderConfig:
    """Return a decoder's configuration.

    Raises:
        UsageError: The module is not a DecoderModel.
    """
    if not isinstance(module, DecoderModel):
        raise UsageError(
            f"Not a decoder of this family: {type(module).__name__}",
            "the KV cache takes its shape from the decoder's configuration",
            "pass the module that the spec builds",
        )
    return module.config
