"""Several targets in one call: how they are named, where the names come from, which are equal."""

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from precast.aot import target
from precast.aot.description import described_target
from precast.aot.target_list import (
    one_of_several,
    settings_by_target,
    target_names,
    wanted_targets,
    with_target,
)
from precast.errors import ConfigValueError, NoGpuError, UsageError


def targets(flags: Any = None, environ: Any = None, file: Any = None) -> list[tuple[str, str]]:
    found = settings_by_target(flags or {}, environ or {}, file or {}, detect_target=lambda: "cpu")
    records = [next(r for r in s.record if r.name == "target") for s in found]
    assert [r.value for r in records] == [s.target for s in found]
    return [(str(r.value), r.origin) for r in records]


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("h200", ("h200",)), ("h200,l40s", ("h200", "l40s")), (" h200 , l40s ,", ("h200", "l40s")),
        (["h200", "l40s"], ("h200", "l40s")), (("h200", "l40s,h200"), ("h200", "l40s")), ("", ("",)), (7, (7,)),
        ([], ("",)), ("h200,gpu.json", ("h200", "gpu.json")),
    ],
)  # fmt: skip
def test_names_stand_in_a_list_or_between_commas_and_count_once(value: object, names: tuple[object, ...]) -> None:
    assert target_names(value) == names


def test_the_path_of_a_file_may_hold_a_comma(tmp_path: Path) -> None:
    path = tmp_path / "one, two.json"
    path.write_text("{}")
    assert target_names(str(path)) == (str(path),)


def test_flags_go_before_the_environment_and_that_before_files() -> None:
    file, environ = {"target": ["a100", "l4"]}, {"PRECAST_TARGET": "h200,l40s"}
    assert targets({"target": ("b200",)}, environ, file) == [("b200", "flag")]
    assert targets({}, environ, file) == [("h200", "environment"), ("l40s", "environment")]
    assert targets({}, {}, file) == [("a100", "file"), ("l4", "file")]
    assert targets() == [("cpu", "default")]


def test_each_target_has_the_settings_that_it_would_have_alone() -> None:
    flags = {"target": ("x86-64-v3", "h200"), "max_num_batched_tokens": 64}
    cpu, gpu = settings_by_target(flags, {}, {})
    assert (cpu.cudagraph_mode, gpu.cudagraph_mode) == ("NONE", "FULL_AND_PIECEWISE")
    assert cpu.max_num_batched_tokens == gpu.max_num_batched_tokens == 64
    assert settings_by_target({**flags, "target": "h200"}, {}, {}) == (gpu,)


@pytest.mark.parametrize("value", [("h200", "h2000"), "h200,", 7, ("h200", 7), ""])
def test_one_wrong_name_is_refused(value: object) -> None:
    if value == "h200,":
        assert targets({"target": value}) == [("h200", "flag")]
    else:
        with pytest.raises(ConfigValueError):
            targets({"target": value})


def test_names_of_equal_targets_become_one(tmp_path: Path) -> None:
    gpu = tmp_path / "node.json"
    gpu.write_text(json.dumps({**described_target("h200").to_json(), "name": "ours"}))
    found = wanted_targets(settings_by_target({"target": ("h200", "l40s", "sm_90", "h100", str(gpu))}, {}, {}), {})
    assert [w.names for w in found] == [("h200", "sm_90", "h100", str(gpu)), ("l40s",)]
    assert [w.settings.target for w in found] == ["h200", "l40s"]
    assert [w.target.arch for w in found] == ["sm_90", "sm_89"]


def test_a_target_that_is_not_here_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "_gpu_here", lambda environ: None)
    with pytest.raises(NoGpuError):
        wanted_targets(settings_by_target({"target": ("h200", "cuda")}, {}, {}), {})


@pytest.mark.parametrize(("here", "chosen"), [("x86-64-v4", "x86-64-v4"), ("x86-64-v2", "h200")])
def test_a_command_for_one_target_takes_this_machine_s_or_the_first_and_says_so(
    here: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(target, "cpu_isa", lambda: here)
    monkeypatch.setattr(target, "_gpu_here", lambda environ: None)
    names = ["h200", "x86-64-v3", "x86-64-v4"]
    one = one_of_several(settings_by_target({}, {"PRECAST_TARGET": ",".join(names)}, {}), {})
    record = next(r for r in one.record if r.name == "target")
    assert (one.target, record.value, record.lowered_from) == (chosen, chosen, names)
    assert "this machine" in record.reason


def test_one_target_is_taken_as_it_is() -> None:
    (one,) = settings_by_target({"target": "h200"}, {}, {})
    assert one_of_several([one], {}) is one


def test_a_pattern_names_each_target() -> None:
    assert with_target("--output", "m-{target}.mega", ["h200", "a/b/node.json", "sm_90"]) == (
        "m-h200.mega",
        "m-node.mega",
        "m-sm_90.mega",
    )
    assert with_target("--output", "m.mega", ["h200"]) == ("m.mega",)


@pytest.mark.parametrize(("pattern", "names"), [("m.mega", ["h200", "l4"]), ("{target}", ["a/gpu.json", "b/gpu.json"])])
def test_two_targets_never_share_a_name(pattern: str, names: list[str]) -> None:
    with pytest.raises(UsageError, match="is one name for 2 targets") as caught:
        with_target("--tag", pattern, names)
    assert "{target}" in caught.value.hint
