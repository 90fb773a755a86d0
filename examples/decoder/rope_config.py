"""The rotary embedding's part of a config.json, in its older and its newer spelling."""

from dataclasses import dataclass

from precast.examples.decoder.config_reader import ConfigReader

__all__ = ["Llama3Scaling", "read_rope"]

_ROPE_KEYS = frozenset({"rope_theta", "rope_type", "type", "partial_rotary_factor"})
_LLAMA3_KEYS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """The `llama3` rope type: low frequencies are divided by a factor, and those between are blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


def read_rope(reader: ConfigReader, max_positions: int) -> tuple[float, Llama3Scaling | None]:
    """Read theta and scaling from either spelling; the dictionary's own theta wins, as in transformers."""
    old, new = reader.values.get("rope_scaling"), reader.values.get("rope_parameters")
    if old and new and old != new:
        reader.problems.append("`rope_scaling` and `rope_parameters` contradict each other")
    given = old or new or {}
    if not isinstance(given, dict):
        reader.problems.append(f"rope parameters must be an object, got {given!r}")
        given = {}
    rope = ConfigReader({"rope_theta": reader.values.get("rope_theta"), **given}, reader.problems)
    kind = rope.text("rope_type", rope.text("type", "default"))
    llama3_keys = frozenset(_LLAMA3_KEYS) if kind == "llama3" else frozenset[str]()
    if kind not in ("default", "llama3"):
        reader.problems.append(f"rope type {kind!r} is not supported")
    else:
        strange = sorted(set(given) - _ROPE_KEYS - llama3_keys)
        reader.problems.extend(f"rope parameter `{key}` is not supported for rope type {kind}" for key in strange)
    for partial in (rope, reader):
        if partial.number("partial_rotary_factor", 1.0) != 1.0:
            reader.problems.append("`partial_rotary_factor` other than 1 is not supported")
    theta = rope.number("rope_theta", 10000.0)
    return theta, _llama3(rope, max_positions) if kind == "llama3" else None


def _llama3(rope: ConfigReader, max_positions: int) -> Llama3Scaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if not low < high:
        rope.problems.append(f"llama3 needs low_freq_factor below high_freq_factor, got {low} and {high}")
    original = rope.integer("original_max_position_embeddings", max_positions)
    return Llama3Scaling(rope.number("factor"), low, high, original)
