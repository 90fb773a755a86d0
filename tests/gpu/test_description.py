"""The description of a known GPU against its driver, and against what torch says of it."""

import pytest
import torch

from precast.aot.description import describe_device, described_target, known_targets

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_known_gpu_has_the_code_facts_that_its_driver_tells() -> None:
    here = describe_device()
    known = [gpu for gpu in map(described_target, known_targets()) if gpu.name == here.name]
    if not known:
        pytest.skip(f"{here.name} is not described")
    assert (known[0].arch, known[0].code_facts()) == (here.arch, here.code_facts())


def test_the_driver_and_torch_tell_the_same() -> None:
    here, told = describe_device(), torch.cuda.get_device_properties(0)
    assert (here.name, here.capability) == (told.name, (told.major, told.minor))
    assert here.total_memory_bytes == told.total_memory
    assert here.l2_cache_bytes == told.L2_cache_size
    assert {fact: getattr(told, fact) for fact in here.code_facts()} == here.code_facts()
