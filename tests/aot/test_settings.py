"""Settings: who wins, what is written down, and what is refused."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.aot.levels import LEVELS
from precast.aot.settings import EXCLUDED, KEY_FIELDS, SETTING_NAMES, Settings, resolve_settings, settle_settings
from precast.cache.manifest import SettingRecord
from precast.errors import ConfigKeyError, ConfigValueError


def resolve(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Mapping[str, object] | None = None,
    device: str = "cuda",
) -> Settings:
    return resolve_settings(flags, environ, file, detect_target=lambda: device)


def record(settings: Settings, name: str) -> SettingRecord:
    (found,) = [r for r in settings.record if r.name == name]
    return found


def test_every_field_is_in_the_key_or_excluded_with_a_reason() -> None:
    fields = {f.name for f in dataclasses.fields(Settings)}
    assert set(KEY_FIELDS) | set(EXCLUDED) == fields
    assert not set(KEY_FIELDS) & set(EXCLUDED)
    assert all(EXCLUDED.values())


def test_the_key_holds_its_fields_and_no_other() -> None:
    assert tuple(Settings().key_values()) == KEY_FIELDS


SOURCES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("flag", {"flags": {"max_num_batched_tokens": 1}}),
    ("environment", {"environ": {"PRECAST_MAX_NUM_BATCHED_TOKENS": "2"}}),
    ("file", {"file": {"max_num_batched_tokens": 3}}),
    ("default", {}),
)


@pytest.mark.parametrize("first", range(4))
def test_flag_wins_over_environment_over_file_over_default(first: int) -> None:
    given: dict[str, Any] = {}
    for _, arguments in SOURCES[first:]:
        given |= arguments
    found = record(resolve(**given), "max_num_batched_tokens")
    assert (found.value, found.origin) == ((1, 2, 3, 8192)[first], SOURCES[first][0])


@pytest.mark.parametrize(
    ("given", "origin", "mode"),
    [
        ({}, "level", "PIECEWISE"), ({"file": {"cudagraph_mode": "FULL"}}, "file", "FULL"),
        ({"environ": {"PRECAST_CUDAGRAPH_MODE": "none"}}, "environment", "NONE"),
    ],
)  # fmt: skip
def test_the_level_fills_only_what_is_open(given: dict[str, Any], origin: str, mode: str) -> None:
    settings = resolve({"optimization_level": 1}, **given)
    assert (settings.cudagraph_mode, record(settings, "cudagraph_mode").origin) == (mode, origin)


def test_the_level_itself_may_come_from_the_environment() -> None:
    settings = resolve(environ={"PRECAST_OPTIMIZATION_LEVEL": "0"})
    assert not settings.compile
    assert record(settings, "optimization_level").origin == "environment"


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_resolves(level: int) -> None:
    assert resolve({"optimization_level": level}).optimization_level == level


def test_there_is_one_record_a_setting() -> None:
    assert tuple(r.name for r in resolve().record) == SETTING_NAMES


def test_a_lowered_value_says_from_what_and_why() -> None:
    found = record(resolve({"cudagraph_mode": "FULL"}, device="cpu"), "cudagraph_mode")
    assert (found.value, found.lowered_from, found.origin) == ("NONE", "FULL", "flag")
    assert found.reason == "a CPU has no CUDA graphs"


def test_a_value_that_is_not_lowered_gives_no_reason() -> None:
    found = record(resolve({"cudagraph_mode": "FULL"}), "cudagraph_mode")
    assert (found.lowered_from, found.reason) == (None, "")


def test_a_value_lowered_twice_keeps_what_was_asked_for() -> None:
    settings = resolve({"compile": False, "splitting_ops": [], "cudagraph_mode": "FULL_AND_PIECEWISE"})
    assert record(settings, "cudagraph_mode").lowered_from == "FULL_AND_PIECEWISE"
    assert settings.cudagraph_mode == "FULL_DECODE_ONLY"


@pytest.mark.parametrize(("device", "payload"), [("cpu", "aoti"), ("cuda", "aoti")])
def test_auto_is_resolved_by_the_target(device: str, payload: str) -> None:
    settings = resolve(device=device)
    assert (settings.target, settings.payload) == (device, payload)


@pytest.mark.parametrize("origin", ["flags", "file"])
def test_an_unknown_name_is_refused_with_the_nearest(origin: str) -> None:
    with pytest.raises(ConfigKeyError) as caught:
        resolve(**{origin: {"max_num_batch_tokens": 3}})  # type: ignore[arg-type]
    assert "max_num_batch_tokens" in caught.value.what
    assert caught.value.hint == "did you mean `max_num_batched_tokens`?"


def test_a_name_like_nothing_lists_the_settings() -> None:
    with pytest.raises(ConfigKeyError) as caught:
        resolve({"zzz": 1})
    assert "cudagraph_mode" in caught.value.hint


def test_the_record_is_no_setting() -> None:
    with pytest.raises(ConfigKeyError):
        resolve({"record": ()})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("optimization_level", 4), ("optimization_level", -1), ("optimization_level", "fast"),
        ("max_num_batched_tokens", 0), ("max_num_batched_tokens", 1.5), ("max_num_batched_tokens", True),
        ("max_num_batched_tokens", None), ("jobs", -1), ("compile_sizes", [0]), ("compile_sizes", "1,x"),
        ("compile_range_endpoints", [-3]), ("payload", "pt2"), ("target", "tpu"), ("cudagraph_mode", "HALF"),
        ("compile", "maybe"), ("inductor_config", "a=1"), ("inductor_config", [1]),
        ("inductor_config", {"post_grad_custom_post_pass": print}), ("inductor_config", {"a": {1}}),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigValueError) as caught:
        resolve({name: value})
    assert f"`{name}`" in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("compile_sizes", "8, 1,8", (1, 8)), ("compile_sizes", 4, (4,)), ("compile_range_endpoints", (9, 3), (3, 9)),
        ("splitting_ops", "b::b,a::a", ("b::b", "a::a")), ("splitting_ops", "", ()), ("compile", "False", False),
        ("cudagraph_mode", "piecewise", "PIECEWISE"), ("jobs", "2", 2), ("inductor_config", {"a.b": 1}, {"a.b": 1}),
    ],
)  # fmt: skip
def test_a_value_may_come_as_text_or_as_itself(name: str, value: Any, expected: Any) -> None:
    assert getattr(resolve({name: value}), name) == expected


@pytest.mark.parametrize("option", ["max_autotune", "max_autotune_gemm", "shape_padding", "dynamic_scale_rblock"])
def test_an_option_that_needs_the_gpu_is_refused_for_one_and_not_for_a_cpu(option: str) -> None:
    with pytest.raises(ConfigValueError, match=f"cannot turn on `{option}`") as caught:
        resolve({"inductor_config": {option: True}, "target": "h200"})
    assert "--tune keep" in caught.value.hint
    assert resolve({"inductor_config": {option: False}, "target": "h200"}).inductor_config == {option: False}
    assert resolve({"inductor_config": {option: True}, "target": "cpu"}).inductor_config == {option: True}


@given(st.lists(st.integers(1, 600)), st.lists(st.integers(1, 600)), st.integers(1, 600))
def test_ranges_cover_each_token_count_once_and_never_repeat(ends: list[int], sizes: list[int], most: int) -> None:
    settings = Settings(max_num_batched_tokens=most, compile_range_endpoints=tuple(ends), compile_sizes=tuple(sizes))
    ranges = settings.ranges()
    assert len(set(ranges)) == len(ranges)
    spans = ranges[: len({*ends, most})]
    assert [n for low, high in spans for n in range(low, high + 1)] == list(range(1, max([*ends, most]) + 1))
    assert set(ranges) - set(spans) <= {(s, s) for s in sizes}


def test_order_and_repetition_do_not_change_the_key() -> None:
    one = Settings(compile_sizes=(4, 1, 4), compile_range_endpoints=(9, 3), splitting_ops=("b::b", "a::a"))
    two = Settings(compile_sizes=(1, 4), compile_range_endpoints=(3, 9), splitting_ops=("a::a", "b::b", "a::a"))
    assert one.key_values() == two.key_values()


def test_settings_made_by_hand_are_resolved_like_flags() -> None:
    settings = settle_settings(Settings(target="cpu", max_num_batched_tokens=64, cudagraph_mode="FULL"), {})
    assert (settings.payload, settings.max_num_batched_tokens) == ("aoti", 64)
    assert record(settings, "cudagraph_mode").lowered_from == "FULL"
    assert record(settings, "max_num_batched_tokens").origin == "flag"


def test_settings_made_by_hand_keep_what_they_switch_off() -> None:
    assert not settle_settings(Settings(target="cpu", compile=False), {}).compile


def test_resolved_settings_stay_as_they_are() -> None:
    settings = resolve({"jobs": 3})
    assert settle_settings(settings, {"PRECAST_JOBS": "5"}) is settings


def test_no_settings_means_those_of_the_environment() -> None:
    assert settle_settings(None, {"PRECAST_TARGET": "cpu", "PRECAST_JOBS": "5"}).jobs == 5


def test_a_caller_s_settings_are_complete_and_the_level_fills_what_is_open() -> None:
    environ = {"PRECAST_MAX_NUM_BATCHED_TOKENS": "512"}
    given = settle_settings(Settings(target="cuda", optimization_level=1, max_num_batched_tokens=8192), environ)
    assert (given.max_num_batched_tokens, given.cudagraph_mode, given.compile) == (8192, "PIECEWISE", True)
    full = Settings(target="cuda", optimization_level=1, cudagraph_mode="FULL_AND_PIECEWISE")
    assert settle_settings(full, environ).cudagraph_mode == "FULL_AND_PIECEWISE"
    assert settle_settings(None, environ).max_num_batched_tokens == 512


@pytest.mark.parametrize("name", ["compile_range_endpoints", "compile_sizes"])
def test_a_range_or_size_that_no_step_reaches_is_refused(name: str) -> None:
    with pytest.raises(ConfigValueError, match="100"):
        resolve_settings({"target": "cpu", "max_num_batched_tokens": 64, name: "8,100"}, {})
