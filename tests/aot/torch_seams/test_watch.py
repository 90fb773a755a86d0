"""The watch: it sees each kind of compile work, and leaves everything as it was."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo import convert_frame
from torch._inductor import cpp_builder, graph

from precast.aot.torch_seams import watch
from precast.aot.torch_seams.watch import KINDS, CompileWatch


def compiled(scale: int) -> Any:
    torch._dynamo.reset()
    return torch.compile(lambda x: x * scale, backend="eager")


def test_nothing_done_is_nothing_counted() -> None:
    with CompileWatch() as seen:
        torch.ones(2) + 1
    assert seen.counts() == dict.fromkeys(KINDS, 0)
    assert seen.missing == []
    assert seen.details == []


def test_a_dynamo_trace_is_counted() -> None:
    with CompileWatch() as seen:
        compiled(2)(torch.ones(2))
    assert seen.counts()["dynamo_frames"] >= 1


def test_a_capture_of_precast_s_own_is_counted() -> None:
    from precast.aot.torch_seams.capture import capture_graph

    with CompileWatch() as seen:
        capture_graph(torch.nn.Linear(2, 2).requires_grad_(False), (torch.ones(3, 2),))
    assert seen.counts()["dynamo_frames"] >= 1


def test_running_what_is_compiled_counts_nothing() -> None:
    run = compiled(3)
    run(torch.ones(2))
    with CompileWatch() as seen:
        run(torch.ones(2))
    assert seen.counts() == dict.fromkeys(KINDS, 0)


COMPILERS = (
    "x86_64-conda-linux-gnu-c++", "x86_64-linux-gnu-gcc-13", "aarch64-linux-gnu-g++-12.3", "ptxas-blackwell", "icpx",
    "ccache", "sccache", "nvc++", "clang-17", "clang++", "ld.lld", "x86_64-conda-linux-gnu-ld",
)  # fmt: skip


@pytest.fixture
def compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("gcc", "g++-12", "ptxas", "harmless", *COMPILERS):
        program = tmp_path / name
        program.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


@pytest.mark.parametrize(
    "command", [["gcc", "-v"], ["g++-12"], ["ptxas", "x"], ["sh", "-c", "gcc x"], ["bash", "-c", "g++-12"]]
)
def test_a_compiler_process_is_counted_whatever_its_path(compilers: Path, command: list[str]) -> None:
    with CompileWatch() as seen:
        subprocess.run(command, check=True)
    assert seen.counts()["compiler_processes"] >= 1


def test_a_compiler_by_its_full_path_and_by_shell_is_counted(compilers: Path) -> None:
    with CompileWatch() as seen:
        subprocess.run([str(compilers / "gcc")], check=True)
        by_path = seen.counts()["compiler_processes"]
        subprocess.run("gcc -c x.c", shell=True, check=True)
    assert by_path >= 1
    assert seen.counts()["compiler_processes"] > by_path


def test_another_process_is_not_counted(compilers: Path) -> None:
    with CompileWatch() as seen:
        subprocess.run(["harmless", "gcc"], check=True)
    assert seen.counts()["compiler_processes"] == 0


def test_a_process_after_the_watch_is_not_counted(compilers: Path) -> None:
    with CompileWatch() as seen:
        pass
    subprocess.run(["gcc"], check=True)
    assert seen.counts()["compiler_processes"] == 0


def test_everything_is_put_back() -> None:
    def names() -> list[Any]:
        return [
            convert_frame._compile, convert_frame.fullgraph_capture, graph.GraphLowering.run,
            cpp_builder.CppBuilder.build, list(sys.meta_path),
        ]  # fmt: skip

    before = names()
    with CompileWatch():
        assert names() != before
    assert names() == before


def test_everything_is_put_back_after_an_error() -> None:
    before = convert_frame._compile
    with pytest.raises(ZeroDivisionError), CompileWatch():
        raise ZeroDivisionError
    assert convert_frame._compile is before


def test_a_name_imported_elsewhere_is_watched_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    here = sys.modules[__name__]
    real = convert_frame.fullgraph_capture
    monkeypatch.setattr(here, "fullgraph_capture", real, raising=False)
    with CompileWatch():
        assert here.fullgraph_capture is not real
    assert here.fullgraph_capture is real


def test_sections_count_apart() -> None:
    with CompileWatch() as seen:
        with seen.section("eager"):
            compiled(4)(torch.ones(2))
        with seen.section("run"):
            torch.ones(2)
    assert seen.counts("eager")["dynamo_frames"] >= 1
    assert seen.counts("run") == seen.counts() == dict.fromkeys(KINDS, 0)
    assert all(d.startswith("eager: dynamo_frames: ") for d in seen.details)


def test_a_section_ends_with_an_error() -> None:
    with CompileWatch() as seen:
        with pytest.raises(ZeroDivisionError), seen.section("eager"):
            raise ZeroDivisionError
        compiled(5)(torch.ones(2))
    assert seen.counts("eager")["dynamo_frames"] == 0
    assert seen.counts()["dynamo_frames"] >= 1


def test_a_name_that_torch_no_longer_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {**watch._POINTS, "torch._inductor.graph": (("GraphLowering.gone", "inductor_compiles"),)}
    monkeypatch.setattr(watch, "_POINTS", points)
    with CompileWatch() as seen:
        pass
    assert seen.missing == ["torch._inductor.graph.GraphLowering.gone"]


_IMPORTED_LATE = """
import sys
from precast.aot.torch_seams.watch import CompileWatch
import torch
assert "torch._dynamo" not in sys.modules
with CompileWatch() as seen:
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
print(seen.counts()["dynamo_frames"] >= 1, seen.missing)
"""


def test_a_module_that_is_imported_under_watch_is_watched_too() -> None:
    program = f"import sys; sys.path.insert(0, 'src')\n{_IMPORTED_LATE}"
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, check=True)
    assert out.stdout.decode().strip() == "True []"


@pytest.mark.parametrize("name", COMPILERS)
def test_a_compiler_is_known_with_its_triplet_and_version(compilers: Path, name: str) -> None:
    with CompileWatch() as seen:
        subprocess.run([name, "-v"], check=True)
    assert (seen.counts()["compiler_processes"], seen.counts()["processes"]) == (1, 1)


@pytest.mark.parametrize(
    "command",
    [
        ["env", "A=b", "gcc"], ["nice", "-n5", "gcc"], ["sh", "-ec", "A=b gcc"], ["sh", "-c", "cd / && gcc -v | cat"],
        ["sh", "-c", "true; env gcc"], ["sh", "-c", "echo $(gcc -v)"],
    ],
)  # fmt: skip
def test_a_compiler_behind_a_shell_or_a_launcher_is_counted(compilers: Path, command: list[str]) -> None:
    with CompileWatch() as seen:
        subprocess.run(command, check=True)
    assert seen.counts()["compiler_processes"] == 1


def test_a_compiler_under_another_name_is_counted(compilers: Path) -> None:
    with CompileWatch() as seen:
        subprocess.run(["something"], executable=str(compilers / "gcc"), check=True)
    assert seen.counts()["compiler_processes"] == 1


@pytest.mark.parametrize("name", ["nvidia-smi", "gcc-wrapper", "cat", "python3.11", "ldconfig", "x86_64", "asd", ""])
def test_other_programs_are_no_compilers(name: str) -> None:
    assert not watch._is_compiler(name)


def forked() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def spawned() -> None:
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


def by_multiprocessing() -> None:
    from multiprocessing.util import spawnv_passfds

    os.waitpid(spawnv_passfds(b"/bin/true", [b"true"], []), 0)


@pytest.mark.parametrize(
    "start",
    [
        lambda: subprocess.run(["harmless"], check=True), lambda: subprocess.run("harmless", shell=True, check=True),
        lambda: subprocess.run(["/bin/true"], check=True, close_fds=False), lambda: os.system("true"), forked, spawned,
        by_multiprocessing,
    ],
    ids=["run", "shell", "posix_spawn inside", "system", "fork", "posix_spawn", "multiprocessing"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_any_process_is_counted_once_and_told(compilers: Path, start: Any) -> None:
    with CompileWatch() as seen, seen.section("load"):
        start()
    assert seen.counts("load") == {**dict.fromkeys(KINDS, 0), "processes": 1}
    assert seen.details[0].startswith("load: processes: ")


def test_a_wrapper_that_somebody_holds_counts_nothing_after_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert_frame, "_compile", lambda: 7)
    with CompileWatch() as seen:
        held = convert_frame._compile
    assert held() == 7
    assert seen.counts()["dynamo_frames"] == 0


def test_names_imported_while_the_watch_is_on_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    here = sys.modules[__name__]
    real = convert_frame.fullgraph_capture
    monkeypatch.setattr(here, "under_another_name", real, raising=False)
    monkeypatch.setattr(here, "imported_late", None, raising=False)
    with CompileWatch():
        assert here.under_another_name is not real
        here.imported_late = convert_frame.fullgraph_capture  # type: ignore[attr-defined]
        assert here.imported_late is not real
    assert here.imported_late is here.under_another_name is real


_LEFT = """
import importlib.machinery as machinery, sys
from precast.aot.torch_seams.watch import CompileWatch
import torch
with CompileWatch():
    import torch._dynamo.convert_frame as module
    from torch._dynamo.convert_frame import _compile as late
print(type(module.__spec__.loader) is type(module.__loader__) is machinery.SourceFileLoader)
print(late.__code__.co_name, module._compile.__code__.co_name)
"""


def test_a_module_imported_under_watch_is_left_as_any_other() -> None:
    program = f"import sys; sys.path.insert(0, 'src')\n{_LEFT}"
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, check=True)
    first, *names = out.stdout.decode().split()
    assert first == "True"
    assert "counted" not in names
