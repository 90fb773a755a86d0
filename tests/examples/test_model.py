"""The decoder against transformers: logits of every family, and the bits of its norm and rotary factors."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from precast.examples.decoder.config import parse_config
from precast.examples.decoder.model import DecoderModel, RMSNorm, Rotary
from precast.examples.decoder.spec import from_config

Forward = Callable[[nn.Module, Sequence[Sequence[int]], int], list[Tensor]]

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "attn_implementation": "eager",
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "llama with llama3 rope": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": LLAMA3, "head_dim": 16}),
    "llama with biases": (LlamaForCausalLM, LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
    "smollm2": (
        LlamaForCausalLM,
        LlamaConfig,
        {
            "hidden_size": 72,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
        },
    ),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": None}),
    "mistral with a window": (MistralForCausalLM, MistralConfig, {"sliding_window": 5}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 24, "tie_word_embeddings": True}),
    "qwen3 with a window": (
        Qwen3ForCausalLM,
        Qwen3Config,
        {"head_dim": 8, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0},
    ),
}


def reference(family: str, **changes: Any) -> Any:
    """Make a transformers model whose every weight is random, norms and biases too."""
    model_class, config_class, own = FAMILIES[family]
    model = model_class(config_class(**{**SIZES, **own, **changes})).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.2, generator=generator)
    return model


def reload(folder: Path) -> DecoderModel:
    """Read a saved model the way a user does."""
    spec = from_config(json.loads((folder / "config.json").read_text()), {}, folder)
    module = spec.build()
    assert spec.load_weights is not None
    spec.load_weights(module)
    assert isinstance(module, DecoderModel)
    return module


def sequences(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(SIZES["vocab_size"], (n,), generator=generator).tolist() for n in lengths]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers_in_prefill_and_decode(
    family: str, tmp_path: Path, forward: Forward
) -> None:
    model = reference(family)
    model.save_pretrained(tmp_path)
    batch = sequences(45, 9, 14)

    results = forward(reload(tmp_path), batch, 5)

    for ids, logits in zip(batch, results, strict=True):
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0]
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_sharded_weights_give_the_same_logits_as_a_single_file(tied: bool, tmp_path: Path, forward: Forward) -> None:
    model = reference("llama", tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
    assert (tmp_path / "many" / "model.safetensors.index.json").is_file()
    batch = sequences(7)

    one, many = (forward(reload(tmp_path / folder), batch, 2)[0] for folder in ("one", "many"))

    assert torch.equal(one, many)


def test_bfloat16_logits_stay_close_to_those_of_transformers(tmp_path: Path, forward: Forward) -> None:
    model = reference("llama").to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    module = reload(tmp_path)
    ids = sequences(20)[0]

    logits = forward(module, [ids], 3)[0]

    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0]
    assert logits.dtype == torch.bfloat16
    assert (logits - expected).float().norm() < 0.03 * expected.float().norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_norm_gives_the_same_bits_as_that_of_transformers(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    own, other = RMSNorm(64, 1e-5, dtype), LlamaRMSNorm(64, 1e-5).to(dtype)
    with torch.no_grad():
        other.weight.copy_(own.weight.normal_())
    x = torch.randn(9, 64).to(dtype)

    assert torch.equal(own(x), other(x))


@pytest.mark.parametrize("rope", [{"rope_type": "default", "rope_theta": 10000.0}, LLAMA3])
def test_rotary_factors_give_the_same_bits_as_those_of_transformers(rope: dict[str, Any]) -> None:
    config = LlamaConfig(**SIZES, rope_parameters=rope)
    own = Rotary(parse_config({**config.to_dict(), "architectures": ["LlamaForCausalLM"]}))
    positions = torch.arange(0, 256, 5)

    cos, sin = own(positions, torch.float32)

    expected = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    for factor, full in zip((cos, sin), expected, strict=True):
        assert torch.equal(torch.cat((factor, factor), -1)[:, 0], full[0])
