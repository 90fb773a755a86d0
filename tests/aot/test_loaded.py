"""A loaded entry under check: the model is built once, and compile work is refused where it must not be."""

import pytest
from tests.aot import graphed
from tests.aot.support import Recorder

from precast.aot.loaded import LoadedEntry, require_zero
from precast.aot.phases import PhaseClock
from precast.aot.subject import Subject
from precast.aot.torch_seams.watch import CompileWatch
from precast.errors import VerifyError


def watch(*kinds: str) -> CompileWatch:
    made = CompileWatch()
    with made.section("run"):
        for kind in kinds:
            made._count(kind, "what it was")
    return made


def test_the_model_is_built_and_bound_once() -> None:
    built = []

    def spec() -> object:
        built.append(1)
        return graphed.spec()

    pieces = graphed.pieces()
    source = type("Source", (), {"manifest": pieces.manifest})()
    entry = LoadedEntry(Subject(source, spec), pieces, CompileWatch(), PhaseClock(), Recorder())  # type: ignore[arg-type]
    first = entry.model()
    assert entry.model() is first
    assert (len(built), entry.device) == (1, "cpu")
    assert {"build model", "bind"} <= set(entry.clock.seconds())


@pytest.mark.parametrize("kind", ["dynamo_frames", "inductor_compiles", "triton_compiles", "cpp_builds"])
def test_any_compile_is_refused_and_told(kind: str) -> None:
    with pytest.raises(VerifyError, match="traced or compiled") as caught:
        require_zero(watch(kind), "run", "k" * 64, processes=True)
    assert "what it was" in caught.value.why
    assert require_zero(watch(kind), "another", "k", processes=False)[kind] == 0


def test_a_process_is_refused_only_where_none_may_start() -> None:
    assert require_zero(watch("processes"), "run", "k", processes=True)["processes"] == 1
    with pytest.raises(VerifyError, match="a process was started"):
        require_zero(watch("processes"), "run", "k", processes=False)


def test_own_ops_may_compile_kernels_where_that_is_said_and_nothing_else() -> None:
    seen = watch("triton_compiles", "compiler_processes", "processes")
    assert require_zero(seen, "run", "k", processes=True, own_ops=True)["triton_compiles"] == 1
    with pytest.raises(VerifyError):
        require_zero(watch("triton_compiles", "dynamo_frames"), "run", "k", processes=True, own_ops=True)


def test_a_torch_that_cannot_be_watched_proves_nothing() -> None:
    blind = watch()
    blind.missing.append("torch._dynamo.convert_frame._compile")
    with pytest.raises(VerifyError, match="cannot be watched"):
        require_zero(blind, "run", "k", processes=True)
