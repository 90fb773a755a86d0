"""Stamps: each one alone refuses, and names both values; what may be higher or larger on the node does not."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.aot.support import manifest

from precast.aot import stamps
from precast.aot.libraries import FIELDS, MARKERS
from precast.aot.node import Facts
from precast.aot.stamps import (
    UNKNOWN,
    Mismatch,
    incompatible,
    mismatches,
    outgrown,
    payload_stamps,
    require_compatible,
    stamp_misses,
)
from precast.aot.target import Target
from precast.cache.manifest import Manifest
from precast.errors import IncompatibleError

CPU = Target("cpu", "x86-64-v3")
GPU = Target("cuda", "sm_90")
KINDS = [("aoti", CPU), ("inductor", CPU), ("aoti", GPU), ("inductor", GPU)]

# A node that runs everything below, unless a test says otherwise.
NODE = {
    "torch": "2.13.0",
    "triton": "3.9.0",
    "python": "3.12",
    "system": "linux x86_64",
    "compiler": "c++",
    "driver": "13.1",
    "isa": "x86-64-v3",
    "glibc": "2.36",
    "glibcxx": "3.4.30",
    "cxxabi": "1.3.13",
    "libgcc": "12.0.0",
    MARKERS: "CXXABI_FLOAT128 GLIBC_ABI_DT_RELR",
}
LIBRARIES = {
    "glibc": "2.34", "glibcxx": "3.4.30", "cxxabi": "1.3.9", "libgcc": "3.0", MARKERS: "GLIBC_ABI_DT_RELR"
}  # fmt: skip


@pytest.fixture(autouse=True)
def stack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build with the stack that `NODE` has, whatever is installed here."""
    monkeypatch.setattr(stamps, "version", lambda name: NODE[name])
    monkeypatch.setattr(stamps, "python_minor", lambda: NODE["python"])
    monkeypatch.setattr(stamps, "system", lambda: NODE["system"])
    monkeypatch.setattr(stamps, "torch_cuda", lambda: "13.0")
    monkeypatch.setattr("precast.aot.torch_seams.triton.assembler_version", lambda arch: "12.9")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def node(target: Target, **changes: str) -> Facts:
    said = {**NODE, "device": target.device, "arch": target.arch, **changes}
    return {field: (lambda value=value: value) for field, value in said.items()}  # type: ignore[misc]


def entry(kind: str = "aoti", target: Target = CPU, **changes: str) -> Any:
    needs = [LIBRARIES] if kind == "aoti" else []
    made = {**payload_stamps(kind, target, needs), **changes}
    return manifest(target=target.to_json(), stamps={kind: made})


@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_an_entry_of_this_node_fits(kind: str, target: Target) -> None:
    assert mismatches(entry(kind, target), {}, node(target)) == ()


@pytest.mark.parametrize(("kind", "target"), KINDS)
def test_only_what_a_kind_depends_on_is_stamped(kind: str, target: Target) -> None:
    own = {
        ("aoti", "cpu"): {*FIELDS, MARKERS},
        ("aoti", "cuda"): {*FIELDS, MARKERS, "driver", "isa"},
        ("inductor", "cpu"): {"python", "compiler"},
        ("inductor", "cuda"): {"python", "triton", "driver"},
    }
    assert set(entry(kind, target).stamps[kind]) == {"torch", "system", "device", "arch", *own[kind, target.device]}


def each_field() -> list[Any]:
    """Every stamp of every kind; names only, so that collecting the tests asks no machine anything."""
    common, libraries = ["torch", "system", "device", "arch"], [*FIELDS, MARKERS]
    own = [libraries, ["python", "compiler"], [*libraries, "driver", "isa"], ["python", "triton", "driver"]]
    return [(kind, target, f) for (kind, target), fields in zip(KINDS, own, strict=True) for f in (*common, *fields)]


@pytest.mark.parametrize(("kind", "target", "field"), each_field())
def test_each_field_alone_refuses_and_names_both_values(kind: str, target: Target, field: str) -> None:
    made = entry(kind, target)
    (found,) = mismatches(made, {}, node(target, **{field: "absent"}))
    assert found == Mismatch(field, made.stamps[kind][field], "absent")


NEWER, OLDER = {"glibc": "2.40", "glibcxx": "3.4.33", "cxxabi": "1.3.15", "libgcc": "14.0.0", "driver": "14.0"}, {
    "glibc": "2.28", "glibcxx": "3.4.9", "cxxabi": "1.3", "libgcc": "2.9", "driver": "12.8",
}  # fmt: skip


@pytest.mark.parametrize("field", NEWER)
def test_a_newer_system_runs_what_an_older_one_made_and_not_the_reverse(field: str) -> None:
    made = entry("aoti", GPU)
    assert mismatches(made, {}, node(GPU, **{field: NEWER[field]})) == ()
    assert [m.field for m in mismatches(made, {}, node(GPU, **{field: OLDER[field]}))] == [field]


@pytest.mark.parametrize(("arch", "fits"), [("x86-64-v2", True), ("x86-64-v3", True), ("x86-64-v4", False)])
def test_machine_code_for_a_smaller_isa_loads_on_a_larger(arch: str, fits: bool) -> None:
    assert (mismatches(entry(arch=arch), {}, node(CPU)) == ()) is fits
    assert (mismatches(entry("aoti", GPU, isa=arch), {}, node(GPU)) == ()) is fits


def test_text_for_one_vector_width_does_not_load_on_another() -> None:
    wider = node(CPU, arch="x86-64-v4")
    assert [m.field for m in mismatches(entry("inductor"), {}, wider)] == ["arch"]
    assert mismatches(entry("aoti"), {}, wider) == ()


def test_a_gpu_architecture_must_be_equal() -> None:
    found = mismatches(entry("inductor", GPU), {}, node(GPU, arch="sm_100"))
    assert found == (Mismatch("arch", "sm_90", "sm_100"),)


@pytest.mark.parametrize(
    ("torch_cuda", "assembler", "needs"),
    [
        ("13.0", "12.9", "13.0"), ("12.6", "13.4", "13.0"), ("12.8", "12.9", "12.0"), (None, "13.4", "13.0"),
        ("12.8", None, "12.0"),
    ],
)  # fmt: skip
def test_a_driver_must_be_of_the_newest_toolkit_s_major_release(
    torch_cuda: str | None, assembler: str | None, needs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamps, "torch_cuda", lambda: torch_cuda)
    monkeypatch.setattr("precast.aot.torch_seams.triton.assembler_version", lambda arch: assembler)
    assert payload_stamps("inductor", GPU)["driver"] == needs


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_payloads_the_most_demanding_counts(order: int) -> None:
    needs = [{"glibc": "2.9", MARKERS: "B"}, {"glibc": "2.34", "glibcxx": "3.4.9"}, {"glibcxx": "3.4.30", MARKERS: "A"}]
    made = payload_stamps("aoti", CPU, needs[::order])
    assert (made["glibc"], made["glibcxx"], made[MARKERS]) == ("2.34", "3.4.30", "A B")


def test_a_stamp_that_this_version_does_not_know_refuses_by_name() -> None:
    assert mismatches(entry(firmware="7"), {}, node(CPU)) == (Mismatch("firmware", "7", UNKNOWN),)


def test_an_entry_from_before_some_stamps_is_judged_by_those_it_has() -> None:
    old = manifest(
        stamps={"aoti": {"torch": NODE["torch"], "system": NODE["system"], "device": "cpu", "arch": CPU.arch}}
    )
    assert mismatches(old, {}, node(CPU, glibc="2.2")) == ()


@pytest.mark.parametrize("file", ["manifest-v1.json", "manifest-v1-sources.json"])
def test_an_entry_of_an_earlier_release_still_fits(file: str) -> None:
    golden = Path(__file__).parents[1] / "cache" / "golden" / file
    assert mismatches(Manifest.from_json(golden.read_bytes()), {}, node(CPU, glibc="2.2")) == ()


def test_all_differing_fields_are_told_at_once() -> None:
    found = mismatches(entry(torch="1.0", system="plan9", glibc="2.99"), {}, node(CPU))
    error = incompatible(entry(), found)
    assert {m.field for m in found} == {"torch", "system", "glibc"}
    for field, value in (("torch", "1.0"), ("system", "plan9"), ("glibc", "2.99")):
        assert f"{field}: entry {value}, node {NODE[field]}" in error.why
        assert {"field": field, "entry": value, "node": NODE[field]} in error.details["differing"]
    assert error.entry == entry().key


def test_this_very_machine_is_asked_when_nobody_says_otherwise() -> None:
    made = entry(torch="1.0")
    with pytest.raises(IncompatibleError) as caught:
        require_compatible(made, {})
    assert "torch: entry 1.0, node 2." in caught.value.why


def test_only_what_a_build_here_would_mend_makes_a_lookup_pass_an_entry_over(monkeypatch: pytest.MonkeyPatch) -> None:
    made = entry("aoti", GPU, torch="1.0", glibc="2.99", **{MARKERS: "GLIBC_ABI_NEW"})
    here = node(GPU, arch="sm_80", driver="absent", device="no gpu", isa="x86-64-v2")
    assert {m.field for m in outgrown(made, {}, here)} == {"glibc", MARKERS}
    monkeypatch.setattr(stamps, "node_facts", lambda device, environ: here)
    assert {(r.code, r.entry, r.factor, r.a, r.b) for r in stamp_misses(made)} == {
        ("target_mismatch", made.key, "glibc", "2.99", NODE["glibc"]),
        ("target_mismatch", made.key, MARKERS, "GLIBC_ABI_NEW", NODE[MARKERS]),
    }
    assert stamp_misses(entry("aoti", GPU)) == ()


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


def test_comparing_stamps_imports_no_torch() -> None:
    code = """
import sys
sys.path[:0] = ["src", "."]
import precast.aot.stamps as stamps
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_every_stamp_that_is_made_has_a_fact() -> None:
    from precast.aot.node import node_facts

    facts: dict[str, Callable[[], str]] = dict(node_facts("cpu", {}))
    assert all(field in facts for kind, target in KINDS for field in entry(kind, target).stamps[kind])
