"""The decoder's configuration, read from a Hugging Face config.json.

Every key of the file is either read, known to be without effect on what the model computes, or switched off
(null, false, zero, empty). Anything else is refused: a key that is passed over in silence means wrong numbers
in silence.
"""

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from precast.aot.spec import Json
from precast.errors import ConfigKeyError, ConfigValueError
from precast.examples.decoder.config_reader import ConfigReader
from precast.examples.decoder.rope_config import Llama3Scaling, read_rope

__all__ = ["DecoderConfig", "apply_overrides", "parse_config"]

# Two names of one thing each: an override of either replaces both.
_ROPE_SPELLINGS = ("rope_scaling", "rope_parameters")
_SPELLINGS = (("dtype", "torch_dtype"), _ROPE_SPELLINGS)
_DTYPES = ("float32", "float16", "bfloat16")

_READ_KEYS = frozenset(
    {
        *("architectures", "model_type", "dtype", "torch_dtype", "vocab_size", "tie_word_embeddings"),
        *("hidden_size", "intermediate_size", "num_hidden_layers", "hidden_act", "rms_norm_eps"),
        *("num_attention_heads", "num_key_value_heads", "head_dim", "attention_bias", "mlp_bias"),
        *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"),
        *(
            "max_position_embeddings",
            "sliding_window",
            "use_sliding_window",
            "max_window_layers",
            "layer_types",
        ),
    }
)

# Used in training, by tokenizers or by generation loops only: no value of these changes a logit.
_INERT_KEYS = frozenset(
    {
        *("attention_dropout", "initializer_range", "pretraining_tp", "use_cache", "transformers_version"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id"),
        *("id2label", "label2id", "problem_type", "return_dict", "output_hidden_states", "output_attentions"),
        *("tokenizer_class", "task_specific_params", "finetuning_task", "is_llama_config", "prefix"),
        *("_name_or_path", "name_or_path", "auto_map", "transformers.js_config", "_attn_implementation"),
        *("chunk_size_feed_forward", "is_decoder"),
    }
)


@dataclass(frozen=True, slots=True)
class _Family:
    """What sets one Hugging Face architecture apart; defaults are those of its config class."""

    architecture: str
    model_type: str
    defaults: Mapping[str, Json]
    qk_norm: bool = False
    window_by_layer: bool = False
    refuses: frozenset[str] = frozenset()


_FAMILIES = (
    _Family("LlamaForCausalLM", "llama", {}, refuses=frozenset({"sliding_window", "use_sliding_window"})),
    _Family(
        "MistralForCausalLM",
        "mistral",
        {"num_key_value_heads": 8, "sliding_window": 4096},
        refuses=frozenset({"attention_bias", "mlp_bias", "use_sliding_window"}),
    ),
    _Family(
        "Qwen3ForCausalLM",
        "qwen3",
        {"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
        qk_norm=True,
        window_by_layer=True,
        refuses=frozenset({"mlp_bias"}),
    ),
)


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Every value that decides what the decoder computes, named as in config.json.

    Two files that say the same thing in different words (`rope_theta` or `rope_parameters`, `torch_dtype` or
    `dtype`) give equal configs.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    sliding_window: int | None
    attention_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool
    dtype: str

    def to_json(self) -> dict[str, Json]:
        """Give every field as JSON, for the key and the manifest."""
        return asdict(self)


def parse_config(config: Mapping[str, Json]) -> DecoderConfig:
    """Read a Hugging Face config.json.

    Args:
        config: The parsed file; missing keys take the defaults of the architecture's config class in
            transformers.

    Raises:
        ConfigValueError: A value is missing, malformed, or asks for what this family does not compute. All
            problems are gathered and named at once.
    """
    family = _family(config)
    reader = ConfigReader({**family.defaults, **config})
    problems = reader.problems
    problems += _strange_keys(config, family)
    hidden_size = reader.integer("hidden_size")
    heads = reader.integer("num_attention_heads")
    kv_heads = reader.integer("num_key_value_heads", heads)
    head_dim = reader.integer("head_dim", hidden_size // heads)
    if heads % kv_heads:
        problems.append(f"{heads} attention heads cannot share {kv_heads} key-value heads evenly")
    if head_dim % 2:
        problems.append(f"`head_dim` must be even for rotary embeddings, got {head_dim}")
    if reader.text("hidden_act", "silu") not in ("silu", "swish"):
        problems.append(f"`hidden_act` must be silu, got {config['hidden_act']!r}")
    layers = reader.integer("num_hidden_layers")
    positions = reader.integer("max_position_embeddings")
    theta, scaling = read_rope(reader, positions)
    result = DecoderConfig(
        architecture=family.architecture,
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=reader.integer("intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=positions,
        rms_norm_eps=reader.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        sliding_window=_sliding_window(reader, family, layers),
        attention_bias=reader.flag("attention_bias"),
        mlp_bias=reader.flag("mlp_bias"),
        qk_norm=family.qk_norm,
        tie_word_embeddings=reader.flag("tie_word_embeddings"),
        dtype=_dtype(reader),
    )
    _refuse(problems)
    return result


def apply_overrides(config: Mapping[str, Json], overrides: Mapping[str, Json]) -> dict[str, Json]:
    """Replace keys of a config.json, keeping its two spellings of one thing consistent.

    Args:
        config: The parsed file.
        overrides: New values by config.json key, such as `num_hidden_layers` or `dtype`.

    Raises:
        ConfigKeyError: A key is neither one that this family reads nor one that the file holds.
    """
    known = _READ_KEYS | _INERT_KEYS | frozenset(config)
    for key in overrides:
        if key not in known:
            near = difflib.get_close_matches(key, sorted(known), n=1)
            hint = f"did you mean `{near[0]}`?" if near else "use a key of config.json"
            raise ConfigKeyError(f"Unknown configuration key: {key}", "the decoder reads no such key", hint)
    dropped = {old for pair in _SPELLINGS for old in pair if overrides.keys() & pair}
    kept = {key: value for key, value in config.items() if key not in dropped}
    thetas = [rope["rope_theta"] for key in _ROPE_SPELLINGS if "rope_theta" in (rope := _object(config, key))]
    if "rope_theta" in overrides:
        # Inside a rope object, theta takes precedence over the key of the same name.
        ropes = {key: _object(kept, key) for key in _ROPE_SPELLINGS if _object(kept, key)}
        kept |= {key: {**rope, "rope_theta": overrides["rope_theta"]} for key, rope in ropes.items()}
    elif thetas:
        kept["rope_theta"] = thetas[0]
    return {**kept, **overrides}


def _object(config: Mapping[str, Json], key: str) -> dict[str, Json]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _family(config: Mapping[str, Json]) -> _Family:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    for family in _FAMILIES:
        if name == family.architecture or (name is None and config.get("model_type") == family.model_type):
            return family
    supported = ", ".join(family.architecture for family in _FAMILIES)
    raise ConfigValueError(
        f"Unsupported architecture: {name or config.get('model_type')}",
        "the decoder family does not compute it",
        f"use one of {supported}, or write a spec of your own",
    )


def _strange_keys(config: Mapping[str, Json], family: _Family) -> list[str]:
    known = _READ_KEYS | _INERT_KEYS
    strange = [key for key in sorted(config) if config[key] and (key not in known or key in family.refuses)]
    return [f"`{key}` is not supported by {family.architecture}" for key in strange]


def _sliding_window(reader: ConfigReader, family: _Family, layers: int) -> int | None:
    """Settle on one window for all layers, by the rules of the architecture in transformers."""
    window = reader.values.get("sliding_window")
    if family.window_by_layer and not reader.flag("use_sliding_window"):
        window = None
    types = reader.values.get("layer_types")
    kinds = set(map(str, types)) if isinstance(types, list) else set()
    if not kinds and window is not None:
        first = reader.integer("max_window_layers", minimum=0) if family.window_by_layer else 0
        kinds = {"sliding_attention" if layer >= first else "full_attention" for layer in range(layers)}
    if kinds - {"full_attention", "sliding_attention"}:
        reader.problems.append(f"`layer_types` {sorted(kinds)} are not supported")
    elif len(kinds) > 1:
        reader.problems.append("layers with different sliding windows are not supported")
    elif _contradictory(kinds, window, family):
        reader.problems.append("`layer_types` and `sliding_window` contradict each other")
    return reader.integer("sliding_window") if window is not None and "sliding_attention" in kinds else None


def _contradictory(kinds: set[str], window: Json, family: _Family) -> bool:
    """Tell whether layers slide without a window, or have one and do not slide."""
    if window is None:
        return "sliding_attention" in kinds
    return kinds == {"full_attention"} and not family.window_by_layer


def _dtype(reader: ConfigReader) -> str:
    key = "dtype" if reader.values.get("dtype") is not None else "torch_dtype"
    name = reader.text(key, "float32").removeprefix("torch.")
    if name not in _DTYPES:
        reader.problems.append(f"`dtype` must be one of {', '.join(_DTYPES)}, got {name!r}")
    return name


def _refuse(problems: list[str]) -> None:
    if problems:
        raise ConfigValueError(
            "The decoder family cannot compute this model",
            "; ".join(problems),
            "change these keys in config.json or with --set, or write a spec of your own",
        )
