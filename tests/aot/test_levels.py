"""Levels and lowering rules: two tables that must hold together with the rest."""

from typing import Any

import pytest

from precast.aot.levels import DEFAULT_LEVEL, LEVELS, RULES
from precast.aot.settings import SETTING_NAMES, Settings, resolve_settings, settle_settings
from precast.capture.modes import CUDAGraphMode


def test_every_mode_of_a_level_exists() -> None:
    assert {str(v["cudagraph_mode"]) for v in LEVELS.values()} <= set(CUDAGraphMode.__members__)


@pytest.mark.parametrize("mode", CUDAGraphMode.__members__)
def test_every_mode_can_be_set(mode: str) -> None:
    assert resolve_settings({"cudagraph_mode": mode}, detect_target=lambda: "cuda").cudagraph_mode == mode


def test_every_mode_that_a_rule_makes_exists() -> None:
    for mode in CUDAGraphMode.__members__:
        for compile_, ops, target in ((False, None, "cuda"), (True, (), "cuda"), (True, None, "cpu")):
            values = {"compile": compile_, "splitting_ops": ops, "target": target}
            made = [r.lower(mode, values) for r in RULES if r.setting == "cudagraph_mode"]
            assert {m for m in made if m is not None} <= set(CUDAGraphMode.__members__)


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
