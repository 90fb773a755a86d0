"""Stamps: each one alone refuses, and names both values."""

import subprocess
import sys
from typing import Any

import pytest
from tests.aot.support import manifest

from precast.aot import stamps
from precast.aot.stamps import Mismatch, mismatches, payload_stamps, require_compatible
from precast.aot.target import Target
from precast.errors import IncompatibleError

HERE = Target("cpu", "x86-64-v3")


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "detect_target", lambda device, environ: HERE)


def entry(kind: str = "aoti", target: Target = HERE, **changes: str) -> Any:
    made = {**payload_stamps(kind, target), **changes}
    return manifest(target=target.to_json(), stamps={kind: made})


@pytest.mark.parametrize("kind", ["aoti", "inductor"])
def test_an_entry_of_this_node_fits(kind: str) -> None:
    assert mismatches(entry(kind), {}) == ()
    require_compatible(entry(kind), {})


@pytest.mark.parametrize("field", payload_stamps("inductor", HERE))
def test_each_field_alone_refuses_and_names_both_values(field: str) -> None:
    node_value = payload_stamps("inductor", HERE)[field]
    changes: Any = {field: "other"}
    made = entry("inductor", **changes)
    assert mismatches(made, {}) == (Mismatch(field, "other", node_value),)
    with pytest.raises(IncompatibleError) as caught:
        require_compatible(made, {})
    assert caught.value.why == f"{field}: entry other, node {node_value}"
    assert caught.value.entry == made.key


def test_all_differing_fields_are_told_at_once() -> None:
    with pytest.raises(IncompatibleError) as caught:
        require_compatible(entry(torch="1.0", system="plan9"), {})
    assert "torch: entry 1.0" in caught.value.why
    assert "system: entry plan9" in caught.value.why


@pytest.mark.parametrize(("arch", "fits"), [("x86-64-v2", True), ("x86-64-v3", True), ("x86-64-v4", False)])
def test_code_for_a_smaller_isa_loads_on_a_larger(arch: str, fits: bool) -> None:
    assert (mismatches(entry(arch=arch), {}) == ()) is fits


def test_a_stamp_that_this_version_does_not_know_refuses() -> None:
    assert mismatches(entry(firmware="7"), {}) == (Mismatch("firmware", "7", "absent"),)


def test_a_gpu_architecture_must_be_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "detect_target", lambda device, environ: Target("cuda", "sm_100"))
    found = mismatches(entry(target=Target("cuda", "sm_90")), {})
    assert found == (Mismatch("arch", "sm_90", "sm_100"),)


def test_a_cuda_entry_on_a_node_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("precast.aot.target._cuda_capability", lambda environ: None)
    found = {m.field: m.node for m in mismatches(entry(target=Target("cuda", "sm_90")), {})}
    assert found["device"] == "no gpu"


def test_only_what_a_kind_depends_on_is_stamped() -> None:
    assert set(payload_stamps("aoti", HERE)) == {"torch", "system", "device", "arch"}
    assert "python" in payload_stamps("inductor", HERE)
    assert "triton" in payload_stamps("inductor", Target("cuda", "sm_90"))
    assert "triton" not in payload_stamps("inductor", HERE)


_OPTIMIZED = """
from tests.aot.support import manifest
from precast.aot.stamps import require_compatible
from precast.errors import OptimizedModeError
try:
    require_compatible(manifest(), {})
except OptimizedModeError as error:
    print(int(error.exit_code))
"""


@pytest.mark.parametrize("flag", ["-O", "-OO"])
def test_python_without_assertions_is_refused(flag: str) -> None:
    command = [sys.executable, flag, "-W", "ignore", "-c", f"import sys; sys.path[:0] = ['src', '.']\n{_OPTIMIZED}"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"5\n"
