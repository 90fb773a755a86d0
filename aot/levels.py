"""Optimization levels and lowering rules, as two tables (seed step 1, vllm-behaviour.md 1.1 and 1.3).

A level fills only what the user left open. A rule lowers a value that cannot hold, and leaves a record of from what, to
what and why (W27). Some rules need facts about the model, and hold as soon as these are known.

Rows of the table in vllm-behaviour.md 1.3 that have no rule here:

- Dynamic drafts with full graphs: its older runner captures one decode length. `capture.candidates` captures each
  length of the schedule, as the newer runner does.
- KV connectors, all-to-all kernels of experts, attention fused with quantization, and Mamba layers: a compiler of
  single models has none of them.
- The check that a lowered mode is still one of its attention backend is a test of this table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from precast.aot.graph_facts import GraphFacts
from precast.aot.target import device_of
from precast.capture.modes import CUDAGraphMode
from precast.capture.support import AttentionGraphSupport
from precast.errors import ConfigValueError

__all__ = ["DEFAULT_LEVEL", "LEVELS", "RULES", "Case", "Rule"]

DEFAULT_LEVEL = 2

# O3 equals O2, as in the system that these levels come from.
LEVELS: Mapping[int, Mapping[str, Any]] = MappingProxyType(
    {
        0: MappingProxyType({"compile": False, "cudagraph_mode": "NONE"}),
        1: MappingProxyType({"compile": True, "cudagraph_mode": "PIECEWISE"}),
        2: MappingProxyType({"compile": True, "cudagraph_mode": "FULL_AND_PIECEWISE"}),
        3: MappingProxyType({"compile": True, "cudagraph_mode": "FULL_AND_PIECEWISE"}),
    }
)


@dataclass(frozen=True, slots=True)
class Case:
    """What a rule looks at.

    Attributes:
        values: All settings as they are now, by name.
        facts: What is known about the model; None while nothing is.
        asked: The graph mode that was asked for, before any rule.
    """

    values: Mapping[str, Any]
    facts: GraphFacts | None = None
    asked: str = ""

    @property
    def mode(self) -> CUDAGraphMode:
        """The graph mode as it is now."""
        return CUDAGraphMode[self.values["cudagraph_mode"]]

    @property
    def support(self) -> AttentionGraphSupport:
        """What the model's attention can be captured for; everything while nothing is known."""
        return AttentionGraphSupport.ALWAYS if self.facts is None else self.facts.weakest

    @property
    def is_cut(self) -> bool:
        """Whether the graph is cut at all, as far as is known."""
        ops = self.values["splitting_ops"] if self.facts is None else self.facts.splitting_ops
        return ops is None or bool(ops)

    @property
    def has_pieces(self) -> bool:
        """Whether piecewise graphs are possible, as far as is known: compiled pieces, with attention between them."""
        if not self.values["compile"] or not self.is_cut:
            return False
        return self.facts is None or (bool(self.facts.pieces) and not self.facts.unsplit)

    def words(self) -> dict[str, str]:
        """Return what a reason may name."""
        if self.facts is None:
            return {}
        return {"attention": self.facts.attention_text(), "unsplit": ", ".join(self.facts.unsplit)}


@dataclass(frozen=True, slots=True)
class Rule:
    """One way in which a setting is lowered.

    Attributes:
        setting: Name of the field.
        lower: Returns the new value, or None where the rule does not apply; raises where nothing lower is as good.
        reason: Why, in one line; may name `{attention}` or `{unsplit}` of the facts.
    """

    setting: str
    lower: Callable[[Case], Any]
    reason: str


def _compile_of_eager(case: Case) -> Any:
    return False if case.values["enforce_eager"] and case.values["compile"] else None


def _tune_on_cpu(case: Case) -> Any:
    return "static" if _on_cpu(case) and case.values["tune"] != "static" else None


def _payload_of_kept_configs(case: Case) -> Any:
    return "inductor" if case.values["payload"] == "auto" and case.values["tune"] == "keep" else None


def _payload(case: Case) -> Any:
    return "aoti" if case.values["payload"] == "auto" else None


def _graphs_of_eager(case: Case) -> Any:
    return "NONE" if case.values["enforce_eager"] and case.mode is not CUDAGraphMode.NONE else None


def _graphs_on_cpu(case: Case) -> Any:
    return "NONE" if _on_cpu(case) and case.mode is not CUDAGraphMode.NONE else None


def _full_of_pooling(case: Case) -> Any:
    return "PIECEWISE" if _kind(case) == "pooling" and _has_full(case.mode) else None


def _mixed_of_encoder(case: Case) -> Any:
    left = (CUDAGraphMode.NONE, CUDAGraphMode.FULL_DECODE_ONLY)
    return "FULL_DECODE_ONLY" if _kind(case) == "encoder_decoder" and case.mode not in left else None


def _piecewise_without_compile(case: Case) -> Any:
    return None if case.values["compile"] else _WITHOUT_PIECEWISE.get(case.mode.name)


def _piecewise_without_split(case: Case) -> Any:
    return None if case.is_cut else _AS_ONE_PIECE.get(case.mode.name)


def _piecewise_with_attention_inside(case: Case) -> Any:
    return _AS_ONE_PIECE.get(case.mode.name) if case.facts is not None and case.facts.unsplit else None


def _full_of_adaptive_drafts(case: Case) -> Any:
    if not case.values["adaptive_verification"] or case.mode is not CUDAGraphMode.FULL:
        return None
    return _pair(case)


def _mixed_full_of_weak_attention(case: Case) -> Any:
    if case.support is AttentionGraphSupport.NEVER and case.mode is CUDAGraphMode.FULL and case.asked == "FULL":
        raise ConfigValueError(
            "`cudagraph_mode` cannot be 'FULL'",
            case.facts.attention_text() if case.facts else "",
            "use PIECEWISE, or declare in `ModelSpec.graph_support` what the op can be captured for",
        )
    if case.support is AttentionGraphSupport.ALWAYS or case.mode is not CUDAGraphMode.FULL:
        return None
    return _pair(case)


def _decode_full_of_attention_never(case: Case) -> Any:
    return _pieces_only(case) if case.support is AttentionGraphSupport.NEVER and _has_full(case.mode) else None


def _decode_full_with_drafts(case: Case) -> Any:
    weak = case.support < AttentionGraphSupport.UNIFORM_BATCH
    return _pieces_only(case) if weak and case.values["drafts"] and _has_full(case.mode) else None


def _decode_full_of_unequal_lengths(case: Case) -> Any:
    weak = case.support < AttentionGraphSupport.ALWAYS
    adaptive = case.values["adaptive_verification"] and case.values["drafts"]
    return _pieces_only(case) if weak and adaptive and _has_full(case.mode) else None


def _piecewise_without_pieces(case: Case) -> Any:
    return _WITHOUT_PIECEWISE.get(case.mode.name) if case.facts is not None and not case.facts.pieces else None


_WITHOUT_PIECEWISE = MappingProxyType({"PIECEWISE": "NONE", "FULL_AND_PIECEWISE": "FULL_DECODE_ONLY"})
_AS_ONE_PIECE = MappingProxyType({"PIECEWISE": "NONE", "FULL_AND_PIECEWISE": "FULL"})


def _on_cpu(case: Case) -> bool:
    return device_of(case.values["target"]) == "cpu"


def _kind(case: Case) -> str:
    return "" if case.facts is None else case.facts.kind


def _has_full(mode: CUDAGraphMode) -> bool:
    return CUDAGraphMode.FULL in (mode.decode_mode, mode.mixed_mode)


def _pair(case: Case) -> str:
    return "FULL_AND_PIECEWISE" if case.has_pieces else "FULL_DECODE_ONLY"


def _pieces_only(case: Case) -> str:
    # The source makes PIECEWISE of encoder-decoder models too, which its own rule for these rules out.
    return "PIECEWISE" if case.has_pieces and _kind(case) != "encoder_decoder" else "NONE"


_EAGER = "`enforce_eager` asks for a model without compiled code and graphs"
_MODE = "cudagraph_mode"

# In order of effect; a later rule sees what an earlier one made.
RULES: tuple[Rule, ...] = (
    Rule("compile", _compile_of_eager, _EAGER),
    Rule("tune", _tune_on_cpu, "a CPU has no Triton kernels to tune"),
    Rule("payload", _payload_of_kept_configs, "an aoti payload holds one config of a kernel"),
    Rule("payload", _payload, "aoti loads in milliseconds, with torch alone"),
    Rule(_MODE, _graphs_of_eager, _EAGER),
    Rule(_MODE, _graphs_on_cpu, "a CPU has no CUDA graphs"),
    Rule(_MODE, _full_of_pooling, "a pooling model has no decode steps, and its batches differ in their lengths"),
    Rule(_MODE, _mixed_of_encoder, "prompt steps of an encoder-decoder model run its encoder, outside of any graph"),
    Rule(_MODE, _piecewise_without_compile, "piecewise graphs need compiled pieces"),
    Rule(_MODE, _piecewise_without_split, "with no splitting ops the whole graph is one piece"),
    Rule(_MODE, _piecewise_with_attention_inside, "the graph is not cut at {unsplit}, so its pieces hold attention"),
    Rule(_MODE, _full_of_adaptive_drafts, "with adaptive verification decode steps need graphs of their own"),
    Rule(_MODE, _mixed_full_of_weak_attention, "{attention}, and FULL captures mixed batches too"),
    Rule(_MODE, _decode_full_of_attention_never, "{attention}, and decode graphs hold it"),
    Rule(_MODE, _decode_full_with_drafts, "{attention}, and drafts bring more than one token a request"),
    Rule(_MODE, _decode_full_of_unequal_lengths, "{attention}, and adaptive verification makes lengths unequal"),
    Rule(_MODE, _piecewise_without_pieces, "the graph has no compiled piece"),
)
