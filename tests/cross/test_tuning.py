"""Configs in `inductor` artifacts: one of each kernel, or all of them for the node. Needs a CUDA build of torch."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from precast.aot.compile import CompileRequest, compile_pieces
from precast.aot.described import compiling_for
from precast.aot.progress import Silent
from precast.aot.settings import resolve_settings
from precast.aot.target import named_target
from precast.aot.torch_seams.inductor import load_artifact
from precast.aot.torch_seams.tuning import configs_chosen
from precast.aot.trace import build_for_tracing, trace
from precast.examples.decoder.spec import tiny
from precast.splitter.split import split

pytestmark = [
    pytest.mark.cross,
    pytest.mark.skipif(torch.version.cuda is None, reason="this torch is a build for the CPU alone"),
]

H200 = named_target("h200", {})


@pytest.fixture(scope="module")
def artifacts() -> Mapping[str, bytes]:
    """A piece with persistent reductions and pointwise kernels, once with one config of each and once with all."""
    spec = tiny(dtype="bfloat16")
    with compiling_for(H200):
        traced = trace(spec, build_for_tracing(spec), "cuda")
    made = split(traced.graph_module, traced.inputs, traced.arguments, traced.result, spec.splitting_ops)
    built = {}
    for tune in ("static", "keep"):
        options = resolve_settings({"target": "h200", "payload": "inductor", "tune": tune}, {}).inductor_options()
        request = CompileRequest("inductor", H200, options, ("precast.examples.decoder.attention",), (), 0)
        (piece,) = compile_pieces([made.pieces[1]], [(1, 512)], request, Silent())
        built[tune] = piece.data
    return built


@pytest.fixture(autouse=True)
def empty_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))


@contextmanager
def kernels_loaded() -> Iterator[list[Any]]:
    """Yield the kernels that are loaded while the block runs."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    loaded: list[Any] = []
    real = CachingAutotuner.precompile

    def precompile(kernel: Any, *args: Any, **kwargs: Any) -> None:
        real(kernel, *args, **kwargs)
        loaded.append(kernel)

    with mock.patch.object(CachingAutotuner, "precompile", precompile):
        yield loaded


def configs(data: bytes, chosen: Mapping[str, str], on_chosen: Any) -> list[Any]:
    with compiling_for(H200), kernels_loaded() as loaded, configs_chosen(chosen, on_chosen):
        load_artifact(data)
    return loaded


def test_one_config_of_each_kernel_is_shipped_and_no_call_times_anything(artifacts: Mapping[str, bytes]) -> None:
    loaded = configs(artifacts["static"], {}, lambda *_: pytest.fail("chosen"))
    assert len(loaded) >= 4
    assert [len(kernel.launchers) for kernel in loaded] == [1] * len(loaded)


def test_all_configs_are_shipped_and_the_node_s_choice_is_taken_over(artifacts: Mapping[str, bytes]) -> None:
    chosen: dict[str, str] = {}
    loaded = configs(artifacts["keep"], {}, chosen.__setitem__)
    several = [kernel for kernel in loaded if len(kernel.launchers) > 1]
    assert len(several) >= 4
    wanted = []
    for kernel in several:  # as the first call would, with the last config as the fastest
        times = {launcher: -at for at, launcher in enumerate(kernel.launchers)}
        wanted.append(kernel.launchers[-1].config)
        with mock.patch.object(kernel, "benchmark_all_configs", lambda *_, times=times, **__: times):
            kernel.autotune_to_one_config()
    assert len(chosen) == len(several)
    again = configs(artifacts["keep"], chosen, lambda *_: pytest.fail("chosen again"))
    assert [len(kernel.launchers) for kernel in again] == [1] * len(loaded)
    taken = {str(kernel.launchers[0].config) for kernel in again}
    assert {str(config) for config in wanted} <= taken


def test_all_configs_cost_bytes(artifacts: Mapping[str, bytes]) -> None:
    assert len(artifacts["static"]) < len(artifacts["keep"])
