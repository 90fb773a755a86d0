"""Limits and capture sizes from settings."""

import dataclasses
from typing import Any

import pytest

from precast.aot.capture_settings import batch_limits, planned_sizes
from precast.aot.settings import EXCLUDED, Settings, resolve_settings
from precast.capture.limits import BatchLimits, DraftTier, LoraLimits
from precast.capture.modes import CUDAGraphMode
from precast.capture.sizes import capture_sizes
from precast.errors import ConfigValueError, UsageError


def resolve(**given: Any) -> Settings:
    return resolve_settings({"target": "h200", **given})


def sizes_record(settings: Settings) -> Any:
    return next(r for r in settings.record if r.name == "compile_sizes")


def test_settings_left_alone_have_the_limits_left_alone() -> None:
    assert batch_limits(resolve()) == BatchLimits()


GIVEN: dict[str, Any] = {
    "max_num_batched_tokens": 100, "max_num_seqs": 9, "drafts": 3, "draft_schedule": "9:1,4:3",
    "adaptive_verification": True, "max_loras": 2, "specialize_lora": False, "specialize_active_lora": True,
    "num_ubatches": 2, "ubatch_decode_tokens": 8,
}  # fmt: skip


def test_every_limit_can_be_set() -> None:
    tiers = (DraftTier(4, 3), DraftTier(9, 1))
    wanted = BatchLimits(100, 9, 3, tiers, True, LoraLimits(2, False, True), 2, 8)
    assert batch_limits(resolve(**GIVEN)) == wanted
    default = BatchLimits()
    for field in dataclasses.fields(BatchLimits):
        assert getattr(wanted, field.name) != getattr(default, field.name), "each field is tried"


def test_limits_come_from_the_environment_and_a_file_too() -> None:
    environ = {"PRECAST_MAX_NUM_SEQS": "12", "PRECAST_DRAFT_SCHEDULE": "4:2"}
    file = {"drafts": 2, "specialize_lora": False, "draft_schedule": [[8, 1]], "cudagraph_capture_sizes": [4, 1]}
    settings = resolve_settings({"target": "cpu"}, environ, file)
    limits = batch_limits(settings)
    assert (limits.max_num_seqs, limits.drafts, limits.draft_schedule) == (12, 2, (DraftTier(4, 2),))
    assert (limits.lora.specialize, settings.cudagraph_capture_sizes) == (False, (1, 4))
    assert resolve_settings({"target": "cpu"}, {}, file).draft_schedule == ((8, 1),)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"draft_schedule": "4:3"}, "draft_schedule"), ({"drafts": 2, "draft_schedule": "4:1,4:2"}, "draft_schedule"),
        ({"draft_schedule": "4"}, "draft_schedule"), ({"draft_schedule": "4:x"}, "draft_schedule"),
        ({"draft_schedule": [[1, 2, 3]]}, "draft_schedule"), ({"max_loras": -1}, "max_loras"),
        ({"cudagraph_capture_sizes": ""}, "cudagraph_capture_sizes"), ({"num_ubatches": 0}, "num_ubatches"),
        ({"cudagraph_capture_sizes": "1,0"}, "cudagraph_capture_sizes"), ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"cudagraph_capture_sizes": "1,8", "max_cudagraph_capture_size": 16}, "largest capture size"),
        ({"interactivity": "perhaps"}, "interactivity"), ({"max_cudagraph_capture_size": 0}, "max_cudagraph"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("target", ["h200", "cpu"])
def test_limits_that_cannot_hold_are_refused_whatever_is_captured(
    given: dict[str, Any], told: str, target: str
) -> None:
    with pytest.raises(ConfigValueError, match=told):
        resolve(**given, target=target)


@pytest.mark.parametrize(("target", "largest"), [("h200", 512), ("b200", 1024), ("sm_90", 512), ("rtx4090", 512)])
def test_the_target_decides_how_far_the_default_sizes_go(target: str, largest: int) -> None:
    assert planned_sizes(resolve(target=target, max_num_seqs=2048)).largest == largest


def test_sizes_follow_every_setting_about_them() -> None:
    given = {"max_num_seqs": 12, "max_num_batched_tokens": 700, "max_cudagraph_capture_size": 2048}
    settings = resolve(**given, interactivity=True)
    limits = BatchLimits(max_num_seqs=12, max_num_batched_tokens=700)
    wanted = capture_sizes(limits, CUDAGraphMode.FULL_AND_PIECEWISE, largest=2048, interactivity=True)
    assert planned_sizes(settings) == wanted
    assert 700 in wanted.sizes
    assert planned_sizes(resolve(cudagraph_capture_sizes="8,4")).sizes == (4, 8)
    assert planned_sizes(resolve(cudagraph_mode="NONE")).sizes == ()


# Values other than the defaults, for every setting that decides captures alone.
CAPTURE: dict[str, Any] = {
    **{name: value for name, value in GIVEN.items() if name != "max_num_batched_tokens"},
    "cudagraph_mode": "PIECEWISE", "cudagraph_capture_sizes": "1,2,4", "max_cudagraph_capture_size": 4,
    "interactivity": True,
}  # fmt: skip


def test_capture_settings_move_no_key() -> None:
    assert set(CAPTURE) <= set(EXCLUDED)
    plain, changed = resolve(), resolve(**CAPTURE)
    assert all(getattr(plain, name) != getattr(changed, name) for name in CAPTURE), "each of them is tried"
    assert changed.key_values() == plain.key_values()
    assert changed.ranges() == plain.ranges()


def test_capture_sizes_may_be_compile_sizes_and_then_move_the_key_as_any_list_does() -> None:
    settings = resolve(compile_sizes="cudagraph_capture_sizes,6", cudagraph_capture_sizes="4,2")
    assert settings.compile_sizes == (2, 4, 6)
    assert settings.ranges() == ((1, 8192), (2, 2), (4, 4), (6, 6))
    assert settings.key_values() == resolve(compile_sizes="2,4,6").key_values()
    record = sizes_record(settings)
    assert (record.lowered_from, record.value) == ([6, "cudagraph_capture_sizes"], [2, 4, 6])
    assert record.reason == "`cudagraph_capture_sizes` stands for 2 sizes"
    assert len(resolve(compile_sizes="cudagraph_capture_sizes").compile_sizes) == 51


def test_without_graphs_there_are_no_capture_sizes_to_compile_and_the_record_says_so() -> None:
    settings = resolve(target="cpu", compile_sizes="cudagraph_capture_sizes,6")
    assert settings.compile_sizes == (6,)
    assert sizes_record(settings).reason.endswith("0 sizes, as mode NONE captures no graphs")


def test_settings_that_are_not_resolved_do_not_leave_sizes_out() -> None:
    for use in (Settings.ranges, Settings.key_values):
        with pytest.raises(UsageError, match="not resolved"):
            use(Settings(compile_sizes=(4, "cudagraph_capture_sizes")))


def test_no_other_word_is_a_compile_size() -> None:
    with pytest.raises(ConfigValueError, match="compile_sizes"):
        resolve(compile_sizes="4,capture")
