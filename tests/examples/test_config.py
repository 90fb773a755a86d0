"""Reading config.json: what is understood, in which spellings, and what is refused."""

from collections.abc import Mapping
from typing import Any

import pytest

from precast.errors import ConfigKeyError, ConfigValueError
from precast.examples.decoder.config import DecoderConfig, apply_overrides, parse_config
from precast.examples.decoder.rope_config import Llama3Scaling

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], **SIZES}
MISTRAL: dict[str, Any] = {"architectures": ["MistralForCausalLM"], **SIZES}
QWEN3: dict[str, Any] = {"architectures": ["Qwen3ForCausalLM"], **SIZES, "head_dim": 8}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_missing_keys_take_the_defaults_of_transformers() -> None:
    assert parse_config(LLAMA) == DecoderConfig(
        architecture="LlamaForCausalLM",
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        rope_scaling=None,
        sliding_window=None,
        attention_bias=False,
        mlp_bias=False,
        qk_norm=False,
        tie_word_embeddings=False,
        dtype="float32",
    )


def test_families_differ_in_norm_and_window() -> None:
    assert parse_config(MISTRAL).sliding_window == 4096
    assert parse_config({**MISTRAL, "sliding_window": None}).sliding_window is None
    assert parse_config(QWEN3).qk_norm
    assert parse_config({**QWEN3, "sliding_window": 8}).sliding_window is None
    assert parse_config({"model_type": "llama", **SIZES}).architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"torch_dtype": "bfloat16"}, {"dtype": "bfloat16"}),
        ({"torch_dtype": "torch.float16"}, {"dtype": "float16"}),
        ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}),
        ({"rope_theta": 500000}, {"rope_theta": 5e5}),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
        ),
        (
            {"rope_scaling": {"type": "llama3", **LLAMA3}},
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        ),
        ({"num_key_value_heads": None}, {"num_key_value_heads": 4}),
        ({"head_dim": None, "rope_scaling": None}, {}),
        ({"bos_token_id": 1, "use_cache": True, "rope_interleaved": False}, {}),
        ({"layer_types": ["full_attention"] * 3}, {}),
    ],
)
def test_two_spellings_of_one_thing_give_equal_configs(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert parse_config({**LLAMA, **one}) == parse_config({**LLAMA, **other})


def test_llama3_scaling_is_read_whole() -> None:
    config = parse_config({**LLAMA, "rope_scaling": {"rope_type": "llama3", **LLAMA3}})

    assert config.rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 64)
    assert config.to_json()["rope_scaling"] == LLAMA3


REFUSALS: Mapping[str, tuple[dict[str, Any], str]] = {
    "activation": ({**LLAMA, "hidden_act": "gelu"}, "hidden_act"),
    "rope type": ({**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
    "older rope type": ({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
    "rope parameter": ({**LLAMA, "rope_parameters": {"rope_type": "default", "mscale": 2.0}}, "mscale"),
    "factor without a type": ({**LLAMA, "rope_scaling": {"factor": 2.0}}, "factor"),
    "rope by layer": (
        {**LLAMA, "rope_parameters": {"full_attention": {"rope_theta": 1.0}}},
        "full_attention",
    ),
    "rope that is no object": ({**LLAMA, "rope_scaling": 3}, "object"),
    "two ropes": (
        {**LLAMA, "rope_scaling": {"rope_type": "default"}, "rope_parameters": {"rope_theta": 2.0}},
        "contradict",
    ),
    "partial rotary": ({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "incomplete llama3": ({**LLAMA, "rope_scaling": {"rope_type": "llama3"}}, "low_freq_factor"),
    "crossed llama3": (
        {**LLAMA, "rope_scaling": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 9.0}},
        "below",
    ),
    "interleaved rope": ({**LLAMA, "rope_interleaved": True}, "rope_interleaved"),
    "experts": ({**QWEN3, "num_experts": 8}, "num_experts"),
    "quantization": ({**LLAMA, "quantization_config": {"bits": 4}}, "quantization_config"),
    "a window in llama": ({**LLAMA, "sliding_window": 8}, "sliding_window"),
    "a bias in mistral": ({**MISTRAL, "attention_bias": True}, "attention_bias"),
    "a window in some layers": (
        {**QWEN3, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        "different sliding windows",
    ),
    "mixed layer types": (
        {**QWEN3, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
        "different sliding windows",
    ),
    "other layer types": ({**LLAMA, "layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
    "layers that slide without a window": (
        {**QWEN3, "layer_types": ["sliding_attention"] * 3},
        "contradict",
    ),
    "a window that no layer has": (
        {**MISTRAL, "sliding_window": 8, "layer_types": ["full_attention"] * 3},
        "contradict",
    ),
    "head counts": ({**LLAMA, "num_key_value_heads": 3}, "evenly"),
    "odd head dim": ({**LLAMA, "head_dim": 7}, "even"),
    "dtype": ({**LLAMA, "torch_dtype": "float64"}, "dtype"),
    "a missing size": ({k: v for k, v in LLAMA.items() if k != "vocab_size"}, "vocab_size"),
    "a size of nothing": ({**LLAMA, "hidden_size": 0}, "hidden_size"),
    "a size in words": ({**LLAMA, "hidden_size": "32"}, "hidden_size"),
    "a truth value for a size": ({**LLAMA, "num_hidden_layers": True}, "num_hidden_layers"),
    "a number for a truth value": ({**LLAMA, "tie_word_embeddings": 1}, "tie_word_embeddings"),
    "a negative epsilon": ({**LLAMA, "rms_norm_eps": -1.0}, "rms_norm_eps"),
    "a number for a name": ({**LLAMA, "hidden_act": 3}, "hidden_act"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_the_family_does_not_compute_is_refused(case: str) -> None:
    config, reason = REFUSALS[case]

    with pytest.raises(ConfigValueError) as caught:
        parse_config(config)

    assert reason in caught.value.why
    assert "\n" not in caught.value.why


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ConfigValueError) as caught:
        parse_config({**LLAMA, "hidden_act": "gelu", "num_experts": 8, "vocab_size": -1})

    assert all(word in caught.value.why for word in ("hidden_act", "num_experts", "vocab_size"))


@pytest.mark.parametrize("config", [{"architectures": ["GemmaForCausalLM"], **SIZES}, {"model_type": "mixtral"}, {}])
def test_another_architecture_is_refused_with_the_supported_ones(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigValueError, match="Unsupported architecture") as caught:
        parse_config(config)

    assert "Qwen3ForCausalLM" in caught.value.hint


@pytest.mark.parametrize(
    ("config", "overrides", "expected"),
    [
        (LLAMA, {"num_hidden_layers": 1}, {"num_hidden_layers": 1}),
        ({**LLAMA, "torch_dtype": "bfloat16"}, {"dtype": "float16"}, {"dtype": "float16"}),
        ({**LLAMA, "dtype": "bfloat16"}, {"torch_dtype": "float16"}, {"dtype": "float16"}),
        ({**LLAMA, "rope_parameters": {"rope_theta": 3.0}}, {"rope_theta": 4.0}, {"rope_theta": 4.0}),
        (
            {**LLAMA, "rope_parameters": {"rope_theta": 3.0}},
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            {"rope_theta": 3.0, "rope_scaling": LLAMA3},
        ),
        (
            {**LLAMA, "rope_scaling": {"rope_type": "llama3", **LLAMA3}, "rope_theta": 3.0},
            {"rope_parameters": {"rope_type": "default"}},
            {"rope_theta": 3.0, "rope_scaling": None},
        ),
    ],
)
def test_an_override_takes_effect_in_either_spelling(
    config: dict[str, Any], overrides: dict[str, Any], expected: dict[str, Any]
) -> None:
    result = parse_config(apply_overrides(config, overrides)).to_json()

    assert {key: result[key] for key in expected} == expected


def test_overrides_leave_the_original_alone() -> None:
    config = {**LLAMA, "rope_parameters": {"rope_theta": 3.0}}

    apply_overrides(config, {"rope_theta": 4.0, "vocab_size": 5})

    assert config == {**LLAMA, "rope_parameters": {"rope_theta": 3.0}}


def test_an_unknown_override_names_the_nearest_key() -> None:
    with pytest.raises(ConfigKeyError, match="num_hiden_layers") as caught:
        apply_overrides(LLAMA, {"num_hiden_layers": 2})

    assert "`num_hidden_layers`" in caught.value.hint
    with pytest.raises(ConfigKeyError):
        apply_overrides(LLAMA, {"zzzz": 2})
