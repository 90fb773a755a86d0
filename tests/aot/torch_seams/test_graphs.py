"""What the seam to CUDA graphs can show without a GPU; tests/gpu/test_graphs.py has the rest."""

import pytest
import torch

from precast.aot.torch_seams.graphs import told_bytes, weak_tensor


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has"), 5 << 29),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU"), 20 << 20),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 512 bytes. GPU"), 512),
        (RuntimeError("CUDA error: out of memory"), 0),
        (RuntimeError("CUDA error: operation not permitted when stream is capturing"), None),
        (KeyError("out of memory"), None),
    ],
)
def test_the_bytes_that_were_wanted_are_read_from_the_error(error: Exception, wanted: int | None) -> None:
    assert told_bytes(error) == wanted


def test_a_tensor_that_lies_on_no_gpu_is_its_own_reference() -> None:
    tensor = torch.ones(3)
    assert weak_tensor(tensor) is tensor
