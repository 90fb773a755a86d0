"""The `inductor` payload's options: a load must find everything in the bundle."""

from functools import reduce

import pytest

from precast.aot.payloads.inductor import InductorPayload
from precast.aot.target import Target


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nothing_is_timed_while_building(device: str) -> None:
    options = InductorPayload().options(Target(device, "x"))
    assert not any(options[n] for n in ("max_autotune", "max_autotune_pointwise", "coordinate_descent_tuning"))


def test_on_cuda_the_kernels_travel_in_the_bundle() -> None:
    options = InductorPayload().options(Target("cuda", "sm_90"))
    assert options["bundle_triton_into_fx_graph_cache"]
    assert options["strict_static_triton_launcher"]
    assert not options["dynamic_scale_rblock"]


def test_every_option_exists_in_this_torch() -> None:
    import torch._inductor.config as config

    for target in (Target("cpu", "x86-64-v4"), Target("cuda", "sm_90")):
        for name in InductorPayload().options(target):
            assert reduce(getattr, name.split("."), config) is not ...
