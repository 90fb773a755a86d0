"""Levels and lowering rules: two tables that must hold together with the rest."""

from itertools import pairwise, product
from typing import Any

import pytest

from precast.aot.graph_facts import GraphFacts
from precast.aot.levels import DEFAULT_LEVEL, LEVELS, RULES
from precast.aot.setting_values import parse_value
from precast.aot.settings import SETTING_NAMES, Settings, resolve_settings, settle_graph_mode, settle_settings
from precast.aot.spec import MODEL_KINDS
from precast.cache.manifest import SettingRecord
from precast.capture.modes import CUDAGraphMode
from precast.capture.support import AttentionGraphSupport as Support
from precast.errors import ConfigValueError

OP = "m::attention"


def test_every_mode_of_a_level_exists() -> None:
    assert {str(v["cudagraph_mode"]) for v in LEVELS.values()} <= set(CUDAGraphMode.__members__)


@pytest.mark.parametrize("mode", CUDAGraphMode.__members__)
def test_every_mode_can_be_set(mode: str) -> None:
    assert resolve_settings({"cudagraph_mode": mode}, detect_target=lambda: "cuda").cudagraph_mode == mode


def test_levels_set_real_fields_and_the_default_is_one_of_them() -> None:
    assert {n for v in LEVELS.values() for n in v} <= set(SETTING_NAMES)
    assert DEFAULT_LEVEL in LEVELS
    assert Settings().optimization_level == DEFAULT_LEVEL


def test_what_settings_leave_open_is_filled_by_the_default_level() -> None:
    settled = settle_settings(Settings(target="cuda"), {})
    for name, value in LEVELS[DEFAULT_LEVEL].items():
        assert getattr(settled, name) == value


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({"optimization_level": 0}, "NONE"),
        ({"optimization_level": 1}, "PIECEWISE"),
        ({"optimization_level": 2}, "FULL_AND_PIECEWISE"),
        ({"optimization_level": 3}, "FULL_AND_PIECEWISE"),
        ({"compile": False, "cudagraph_mode": "PIECEWISE"}, "NONE"),
        ({"compile": False, "cudagraph_mode": "FULL_AND_PIECEWISE"}, "FULL_DECODE_ONLY"),
        ({"compile": False, "cudagraph_mode": "FULL"}, "FULL"),
        ({"splitting_ops": (), "cudagraph_mode": "PIECEWISE"}, "NONE"),
        ({"splitting_ops": (), "cudagraph_mode": "FULL_AND_PIECEWISE"}, "FULL"),
        ({"splitting_ops": ("a::b",), "cudagraph_mode": "PIECEWISE"}, "PIECEWISE"),
    ],
)
def test_modes_are_lowered_as_the_table_says(given: dict[str, Any], mode: str) -> None:
    assert resolve_settings(given, detect_target=lambda: "cuda").cudagraph_mode == mode


@pytest.mark.parametrize("level", LEVELS)
def test_no_level_captures_graphs_on_a_cpu(level: int) -> None:
    assert resolve_settings({"optimization_level": level, "target": "cpu"}).cudagraph_mode == "NONE"


def test_every_rule_gives_a_reason() -> None:
    assert all(r.reason and r.setting in SETTING_NAMES for r in RULES)


def facts(
    support: Support = Support.ALWAYS, kind: str = "decoder", ops: tuple[str, ...] = (OP,), pieces: int = 3
) -> GraphFacts:
    return GraphFacts(kind, {OP: support}, ops, pieces)


def settled(given: dict[str, Any], known: GraphFacts) -> Settings:
    return settle_graph_mode(resolve_settings({"target": "h200", **given}), known)


def mode_record(settings: Settings) -> SettingRecord:
    return next(r for r in settings.record if r.name == "cudagraph_mode")


BOTH, DECODE = "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"
NEVER, SINGLE, UNIFORM, ALWAYS = Support


# One line a rule of vllm-behaviour.md 1.3, each with the steps that it makes.
@pytest.mark.parametrize(
    ("given", "known", "steps"),
    [
        ({"cudagraph_mode": BOTH}, facts(), [BOTH]),
        ({"cudagraph_mode": "FULL"}, facts(), ["FULL"]),
        ({"cudagraph_mode": "FULL", "enforce_eager": True}, facts(), ["FULL", "NONE"]),
        ({"cudagraph_mode": BOTH}, facts(kind="pooling"), [BOTH, "PIECEWISE"]),
        ({"cudagraph_mode": DECODE, "compile": False}, facts(kind="pooling"), [DECODE, "PIECEWISE", "NONE"]),
        ({"cudagraph_mode": BOTH}, facts(kind="encoder_decoder"), [BOTH, DECODE]),
        ({"cudagraph_mode": "PIECEWISE"}, facts(kind="encoder_decoder"), ["PIECEWISE", DECODE]),
        ({"cudagraph_mode": BOTH}, facts(NEVER, kind="encoder_decoder"), [BOTH, DECODE, "NONE"]),
        ({"cudagraph_mode": BOTH, "splitting_ops": ()}, facts(ops=()), [BOTH, "FULL"]),
        ({"cudagraph_mode": BOTH, "splitting_ops": ()}, facts(UNIFORM, ops=()), [BOTH, "FULL", DECODE]),
        ({"cudagraph_mode": BOTH, "splitting_ops": ()}, facts(NEVER, ops=()), [BOTH, "FULL", DECODE, "NONE"]),
        ({"cudagraph_mode": BOTH}, GraphFacts("decoder", {}, (), 1), [BOTH, "FULL"]),
        ({"cudagraph_mode": "PIECEWISE"}, facts(ops=("m::other",)), ["PIECEWISE", "NONE"]),
        ({"cudagraph_mode": BOTH}, facts(ops=("m::other",)), [BOTH, "FULL"]),
        ({"cudagraph_mode": "FULL"}, facts(UNIFORM), ["FULL", BOTH]),
        ({"cudagraph_mode": "FULL"}, facts(SINGLE), ["FULL", BOTH]),
        ({"cudagraph_mode": "FULL"}, facts(SINGLE, ops=("m::other",)), ["FULL", DECODE]),
        ({"cudagraph_mode": "FULL", "compile": False}, facts(SINGLE), ["FULL", DECODE]),
        ({"cudagraph_mode": BOTH}, facts(NEVER), [BOTH, "PIECEWISE"]),
        ({"cudagraph_mode": DECODE}, facts(NEVER), [DECODE, "PIECEWISE"]),
        ({"cudagraph_mode": DECODE, "compile": False}, facts(NEVER), [DECODE, "NONE"]),
        ({"cudagraph_mode": "PIECEWISE"}, facts(NEVER), ["PIECEWISE"]),
        ({"cudagraph_mode": BOTH}, facts(SINGLE), [BOTH]),
        ({"cudagraph_mode": BOTH, "drafts": 2}, facts(SINGLE), [BOTH, "PIECEWISE"]),
        ({"cudagraph_mode": BOTH, "drafts": 2}, facts(UNIFORM), [BOTH]),
        ({"cudagraph_mode": "FULL", "drafts": 2}, facts(SINGLE), ["FULL", BOTH, "PIECEWISE"]),
        ({"cudagraph_mode": BOTH, "drafts": 2, "adaptive_verification": True}, facts(UNIFORM), [BOTH, "PIECEWISE"]),
        ({"cudagraph_mode": BOTH, "drafts": 2, "adaptive_verification": True}, facts(), [BOTH]),
        ({"cudagraph_mode": "FULL", "adaptive_verification": True}, facts(), ["FULL", BOTH]),
        ({"cudagraph_mode": "FULL", "adaptive_verification": True}, facts(pieces=0), ["FULL", BOTH, DECODE]),
        ({"cudagraph_mode": BOTH, "drafts": 3, "draft_schedule": "8:3,32:1"}, facts(UNIFORM), [BOTH]),
        ({"cudagraph_mode": BOTH}, facts(pieces=0), [BOTH, DECODE]),
        ({"cudagraph_mode": "PIECEWISE"}, facts(pieces=0), ["PIECEWISE", "NONE"]),
        ({"cudagraph_mode": BOTH}, facts(NEVER, pieces=0), [BOTH, "NONE"]),
    ],
)  # fmt: skip
def test_each_effect_is_written_down(given: dict[str, Any], known: GraphFacts, steps: list[str]) -> None:
    found = settled(given, known)
    record = mode_record(found)
    assert [given["cudagraph_mode"], *(step.after for step in record.lowerings)] == steps
    assert all(step.reason and "{" not in step.reason for step in record.lowerings)
    assert found.cudagraph_mode == record.value == steps[-1]


def test_a_reason_names_the_attention_op_and_what_it_can_do() -> None:
    record = mode_record(settled({"cudagraph_mode": BOTH, "drafts": 1}, facts(SINGLE)))
    told = "m::attention can be captured for decode steps of one token a request"
    assert record.reason == f"{told}, and drafts bring more than one token a request"
    record = mode_record(settled({"cudagraph_mode": BOTH}, facts(ops=("m::other",))))
    assert record.reason == "the graph is not cut at m::attention, so its pieces hold attention"


def test_full_of_attention_that_cannot_be_captured_is_refused_where_it_was_asked_for() -> None:
    with pytest.raises(ConfigValueError, match="`cudagraph_mode` cannot be 'FULL'") as caught:
        settled({"cudagraph_mode": "FULL"}, facts(NEVER))
    assert caught.value.why == "m::attention can be captured for nothing"
    assert "graph_support" in caught.value.hint
    assert settled({"cudagraph_mode": "FULL", "target": "cpu"}, facts(NEVER)).cudagraph_mode == "NONE"


def every_case() -> Any:
    """Give every combination of what a rule looks at, on a GPU."""
    ops = ((None, (OP,)), ((), ()), (("m::other",), ("m::other",)), ((OP, "m::other"), (OP, "m::other")))
    for mode, compiles, (asked, cut), drafts, adaptive in product(
        CUDAGraphMode.__members__, (True, False), ops, (0, 2), (True, False)
    ):
        given = {"cudagraph_mode": mode, "compile": compiles, "drafts": drafts, "adaptive_verification": adaptive}
        given |= {} if asked is None else {"splitting_ops": asked}
        resolved = resolve_settings({"target": "h200", **given})
        for support, kind, pieces in product(Support, MODEL_KINDS, (0, 3)):
            yield resolved, facts(support, kind, cut, pieces)


def fits(settings: Settings, known: GraphFacts) -> bool:
    """Tell whether graphs of the mode can be captured and are right, rule by rule and without any order."""
    mode = CUDAGraphMode[settings.cudagraph_mode]
    needed = Support.SINGLE_TOKEN_DECODE
    if settings.drafts:
        needed = Support.ALWAYS if settings.adaptive_verification else Support.UNIFORM_BATCH
    decode_full = mode.decode_mode is CUDAGraphMode.FULL
    return not any(
        (
            mode.needs_pieces() and not (settings.compile and known.pieces and OP in known.splitting_ops),
            decode_full and known.weakest < needed,
            mode.mixed_mode is CUDAGraphMode.FULL and known.weakest < Support.ALWAYS,
            mode is CUDAGraphMode.FULL and settings.adaptive_verification,
            decode_full and known.kind == "pooling",
            known.kind == "encoder_decoder" and mode.name not in ("NONE", DECODE),
        )
    )


def test_what_the_table_makes_always_fits_and_what_fits_is_left_alone() -> None:
    refused = count = 0
    for resolved, known in every_case():
        count += 1
        try:
            found = settle_graph_mode(resolved, known)
        except ConfigValueError:
            refused += 1
            assert known.weakest is Support.NEVER
            assert resolved.cudagraph_mode == "FULL"
            continue
        assert fits(found, known), (resolved, known)
        if fits(resolved, known):
            assert found.cudagraph_mode == resolved.cudagraph_mode
        assert settle_graph_mode(found, known) == found
        assert settle_graph_mode(found, known).record == found.record
        steps = mode_record(found).lowerings
        assert all(one.after == two.before for one, two in pairwise(steps))
        assert all(step.before != step.after for step in steps)
    assert 0 < refused < count / 10


def test_settling_changes_nothing_but_the_mode() -> None:
    resolved = resolve_settings({"target": "h200", "compile_sizes": "4,8", "drafts": 2})
    found = settle_graph_mode(resolved, facts(NEVER))
    changed = {n for n in SETTING_NAMES if getattr(found, n) != getattr(resolved, n)}
    assert changed == {"cudagraph_mode"}
    assert found.key_values() == resolved.key_values()


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_runs_eagerly_where_that_is_asked_for(level: int) -> None:
    found = resolve_settings({"target": "h200", "optimization_level": level, "enforce_eager": True})
    assert (found.compile, found.cudagraph_mode) == (False, "NONE")


def test_every_setting_can_be_read() -> None:
    for name in SETTING_NAMES:
        value = getattr(resolve_settings({"target": "cpu"}), name)
        assert value is None or parse_value(name, value) == value


@pytest.mark.parametrize(("target", "tune", "payload"), [("cpu", "static", "aoti"), ("h200", "keep", "inductor")])
def test_what_tune_asks_for_is_lowered_on_a_cpu_and_chooses_the_payload_on_a_gpu(
    target: str, tune: str, payload: str
) -> None:
    found = resolve_settings({"target": target, "tune": "keep"})
    assert (found.tune, found.payload) == (tune, payload)
