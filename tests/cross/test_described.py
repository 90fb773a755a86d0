"""A described GPU: what torch is told, what it makes of that, what stays behind. Needs a CUDA build of torch."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from precast.aot.compile import CompileRequest, compile_pieces
from precast.aot.described import compiling_for
from precast.aot.kernels import offer_kernels, op_calls, pack_kernels, record_kernels, unpack_kernels
from precast.aot.payloads import payload_kind
from precast.aot.payloads.generated import source_digests
from precast.aot.progress import Silent
from precast.aot.target import Target, named_target
from precast.aot.torch_seams import described
from precast.aot.torch_seams.described_aoti import cuda_headers
from precast.aot.trace import build_for_tracing, trace
from precast.errors import IncompatibleError, NoGpuError
from precast.examples.decoder.spec import tiny
from precast.splitter.split import Split, split

pytestmark = [
    pytest.mark.cross,
    pytest.mark.skipif(torch.version.cuda is None, reason="this torch is a build for the CPU alone"),
]

H200 = named_target("h200", {})


@pytest.fixture(scope="module")
def pieces() -> Split:
    spec = tiny(dtype="bfloat16")
    with compiling_for(H200):
        traced = trace(spec, build_for_tracing(spec), "cuda")
    return split(traced.graph_module, traced.inputs, traced.arguments, traced.result, spec.splitting_ops)


def _built(made: Split, kind: str) -> list[bytes]:
    request = CompileRequest(kind, H200, {}, ("precast.examples.decoder.attention",), (), 0)
    return [c.data for c in compile_pieces(made.pieces, [(1, 512)], request, Silent())]


def test_aoti_builds_of_two_folders_are_equal_and_name_no_folder(
    pieces: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for name in ("one", "another"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv("TMPDIR", str(tmp_path / name))
        monkeypatch.setattr("tempfile.tempdir", None)
        made.append(_built(pieces, "aoti"))
    assert made[0] == made[1]
    assert not any(str(tmp_path).encode() in data for data in made[0])
    assert all(len(source_digests(data)) == 2 for data in made[0])  # of the wrapper and of the host's kernels
    assert all(b"sm_90" in data or b"cubin" in data or b"\x7fELF" in data for data in made[0])


def test_inductor_pieces_are_built(pieces: Split) -> None:
    assert all(len(data) > 10_000 for data in _built(pieces, "inductor"))


def test_another_gpu_gives_other_machine_code() -> None:
    spec = tiny(dtype="bfloat16")
    found = {}
    for name in ("h200", "a100"):
        target = named_target(name, {})
        with compiling_for(target):
            graph = trace(spec, build_for_tracing(spec), "cuda").graph_module.graph
        found[name] = record_kernels(spec, op_calls(graph, spec.splitting_ops), target)
    assert [k.label for k in found["h200"]] == [k.label for k in found["a100"]]
    assert all(h.cubin != a.cubin for h, a in zip(found["h200"], found["a100"], strict=True))


def test_kernels_behind_splitting_ops_travel_as_equal_bytes() -> None:
    spec = tiny(dtype="bfloat16")
    with compiling_for(H200):
        graph = trace(spec, build_for_tracing(spec), "cuda").graph_module.graph
    calls = op_calls(graph, spec.splitting_ops)
    assert len(calls) == 4
    kernels = record_kernels(spec, calls, H200)
    assert {"_attend_kernel", "_write_kv_kernel"} <= {k.function for k in kernels}
    packed = pack_kernels(kernels)
    assert packed == pack_kernels(tuple(reversed(record_kernels(spec, calls, H200))))
    assert set(unpack_kernels(packed)) == set(kernels)
    assert str(Path(sys.prefix)).encode() not in packed


def test_a_kernel_with_another_source_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    spec = tiny(dtype="bfloat16")
    with compiling_for(H200):
        graph = trace(spec, build_for_tracing(spec), "cuda").graph_module.graph
    kernel = record_kernels(spec, op_calls(graph, spec.splitting_ops), H200)[0]
    with pytest.raises(IncompatibleError, match="is not the one that was compiled"):
        offer_kernels([replace(kernel, source="0" * 64)], tmp_path, 0)
    with pytest.raises(IncompatibleError, match="is not here"):
        offer_kernels([replace(kernel, function="_gone")], tmp_path, 0)


def _answers() -> dict[str, Any]:
    """What this process says about devices, and every name that the context replaces."""
    import triton.knobs
    from torch._dynamo import device_interface
    from torch._inductor.fx_passes import joint_graph
    from torch._inductor.runtime import static_triton_launcher
    from torch._subclasses import fake_tensor
    from triton.runtime import driver

    return {
        "available": torch.cuda.is_available,
        "properties": torch.cuda.get_device_properties,
        "init": torch.cuda._lazy_init,
        "accelerator": torch.accelerator.is_available,
        "interfaces": dict(device_interface.device_interfaces),
        "launcher": static_triton_launcher.StaticallyLaunchedCudaKernel.__dict__["C_impl"],
        "folder": joint_graph.UniformValueConstantFolder,
        "context": fake_tensor.init_gpu_context,
        "avoid": fake_tensor.FakeTensorMode.__dict__["avoid_device_init"],
        "driver": driver._active,
        "lines": triton.knobs.compilation.disable_line_info,
        "environment": dict(os.environ),
    }


def test_the_context_leaves_nothing_behind(pieces: Split) -> None:
    from torch._inductor.runtime.hints import DeviceProperties
    from torch._inductor.utils import is_big_gpu
    from torch.utils._triton import has_triton_tensor_descriptor_host_tma

    before = _answers()
    with compiling_for(H200):
        assert torch.cuda.get_device_name() == "NVIDIA H200"
        assert DeviceProperties.create(torch.device("cuda")).multi_processor_count == 132
        assert is_big_gpu(torch.device("cuda"))
        assert has_triton_tensor_descriptor_host_tma()
    assert _answers() == before
    assert {f.cache_info().currsize for f in (is_big_gpu, has_triton_tensor_descriptor_host_tma)} == {0}
    with compiling_for(named_target("l40s", {})):  # memoised answers of the last one are gone
        assert DeviceProperties.create(torch.device("cuda")).multi_processor_count == 142


def test_an_error_inside_leaves_nothing_behind(pieces: Split) -> None:
    before = _answers()
    with pytest.raises(KeyError), compiling_for(H200):
        raise KeyError("inside")
    assert _answers() == before


def test_nothing_runs_on_a_described_gpu() -> None:
    with compiling_for(H200), pytest.raises(NoGpuError, match="was asked of a described GPU"):
        torch.zeros(4, device="cuda")


@pytest.fixture
def moved(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    module, name = request.param
    owner, last, _ = described.seam(module, name)
    monkeypatch.delattr(owner, last)
    return str(name)


@pytest.mark.parametrize(
    "moved",
    [("torch._subclasses.fake_tensor", "init_gpu_context"), ("torch.cuda", "_exchange_device")],
    indirect=True,
)
def test_a_seam_that_has_moved_is_an_error_by_name(moved: str) -> None:
    with pytest.raises(IncompatibleError) as raised, compiling_for(H200):
        pass
    assert moved in raised.value.why


def test_where_the_headers_were_guessed_is_a_seam_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, last, _ = described.seam("torch.utils.cpp_extension", "CUDA_HOME")
    monkeypatch.delattr(owner, last)
    with pytest.raises(IncompatibleError, match="CUDA_HOME"):
        cuda_headers()


def test_without_headers_nothing_is_compiled_and_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("precast.aot.torch_seams.described_aoti._NEEDED_HEADERS", ("not_there.h",))
    with pytest.raises(IncompatibleError, match="headers were not found") as caught:
        payload_kind("aoti").require_tools(H200)
    assert f"nvidia-cuda-crt=={torch.version.cuda}.*" in caught.value.hint
    payload_kind("inductor").require_tools(H200)


def test_a_gpu_without_a_description_is_refused() -> None:
    with pytest.raises(NoGpuError, match="is not described"), compiling_for(Target("cuda", "sm_90")):
        pass
