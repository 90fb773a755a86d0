"""The `inductor` payload's options: a load must find everything in the bundle."""

import json
import pickle
from functools import reduce
from typing import Any

import pytest
from torch._inductor.codecache import code_hash

from precast.aot.payloads.inductor import InductorPayload
from precast.aot.target import Target
from precast.aot.torch_seams.inductor import _without_traces_of_the_build
from precast.cache.paths import absolute_paths


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nothing_is_timed_while_building(device: str) -> None:
    options = InductorPayload().options(Target(device, "x"))
    assert not any(options[n] for n in ("max_autotune", "max_autotune_pointwise", "coordinate_descent_tuning"))


def test_on_cuda_the_kernels_travel_in_the_bundle() -> None:
    options = InductorPayload().options(Target("cuda", "sm_90"))
    assert options["bundle_triton_into_fx_graph_cache"]
    assert options["strict_static_triton_launcher"]
    assert not options["dynamic_scale_rblock"]
    assert not options["autotune_local_cache"]


def test_the_artifact_s_bytes_tell_no_stamp() -> None:
    assert InductorPayload().needs(b"anything") == {}


def test_every_option_exists_in_this_torch() -> None:
    import torch._inductor.config as config

    for target in (Target("cpu", "x86-64-v4"), Target("cuda", "sm_90")):
        for name in InductorPayload().options(target):
            assert reduce(getattr, name.split("."), config) is not ...


class Part:
    """A stand-in for what torch bundles; its fields are only known by name."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def test_what_a_bundle_says_about_its_build_is_dropped() -> None:
    result = Part(
        source_code="kernel", runnable_graph_str="/tmp/x", inductor_post_grad_graph_str="# File: /home/x.py",
        cache_key="k", cache_linemap=[(3, 'File "/home/x.py", line 1'), (9, "")], other_str=None, _triton_bundle=None,
    )  # fmt: skip
    outer = Part(
        compiled_fw=Part(result=result, forward_time_taken_ns=7), compiled_bw=None,
        aot_forward_graph_str="# File: /home/x.py:1", backward_time_taken_ns=9,
    )  # fmt: skip
    made, kept, _ = pickle.loads(_without_traces_of_the_build(pickle.dumps((outer, {"kept": 1}, {}))))
    assert (made.aot_forward_graph_str, made.backward_time_taken_ns, kept) == ("", 0, {"kept": 1})
    assert made.compiled_fw.forward_time_taken_ns == 0
    assert vars(made.compiled_fw.result) == {
        "source_code": "kernel", "runnable_graph_str": "", "inductor_post_grad_graph_str": "", "cache_key": "k",
        "cache_linemap": [(3, ""), (9, "")], "other_str": None, "_triton_bundle": None,
    }  # fmt: skip


def bundle_of(place: str) -> bytes:
    """A bundle with one Triton kernel, built below a folder."""
    metadata = {"name": "k", "num_warps": 4, "extern_libs": [["libdevice", f"{place}/triton/lib/libdevice.10.bc"]]}
    artifacts = [
        Part(filename="k.json", payload=json.dumps(metadata).encode()), Part(filename="k.cubin", payload=b"code")
    ]  # fmt: skip
    kernels = Part(
        static_autotuners=[Part(kernel=Part(filename=f"{place}/inductor/ab/cab.py")), Part(kernel=Part(filename=None))],
        kernel_artifacts=[Part(artifacts=artifacts)],
    )
    source = f"import torch\n# kernel path: {place}/inductor/ab/cab.py\nx = 1  # kernel path: kept\n"
    result = Part(source_code=source, cache_key=place, _triton_bundle=kernels)
    return pickle.dumps((Part(compiled_fw=Part(result=result), compiled_bw=None),))


def test_a_triton_bundle_from_another_folder_becomes_the_same_bytes() -> None:
    one, two = (_without_traces_of_the_build(bundle_of(place)) for place in ("/home/ci", "/srv/build/of/another"))
    assert one == two
    assert absolute_paths(one) == ()
    made = pickle.loads(one)[0].compiled_fw.result
    assert made.source_code == "import torch\n# kernel path:\nx = 1  # kernel path: kept\n"
    assert made.cache_key == code_hash(made.source_code)
    (kernel,) = made._triton_bundle.kernel_artifacts
    assert json.loads(kernel.artifacts[0].payload) == {
        "name": "k", "num_warps": 4, "extern_libs": [["libdevice", "libdevice.10.bc"]]
    }  # fmt: skip
    assert kernel.artifacts[1].payload == b"code"
    assert [tuner.kernel.filename for tuner in made._triton_bundle.static_autotuners] == ["cab.py", None]


def test_a_bundle_of_another_shape_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="another way"):
        _without_traces_of_the_build(pickle.dumps(({}, {})))
