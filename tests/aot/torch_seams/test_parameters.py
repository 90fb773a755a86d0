"""Diverted parameters: no memory, right shapes, and `nn.Module` as before afterwards."""

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor

from precast.aot.torch_seams.parameters import parameters_diverted


def test_parameters_are_fake_with_shape_and_dtype_and_buffers_real() -> None:
    with parameters_diverted():
        module = nn.Sequential(nn.Linear(3, 5, dtype=torch.bfloat16), nn.BatchNorm1d(5))
    weight = module[0].weight
    assert isinstance(weight.data, FakeTensor)
    assert (weight.shape, weight.dtype, weight.requires_grad) == ((5, 3), torch.bfloat16, False)
    assert torch.equal(module[1].running_var, torch.ones(5))


def test_a_tied_parameter_stays_tied() -> None:
    with parameters_diverted():
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
    assert second.weight is first.weight


def test_a_parameter_that_is_none_stays_none() -> None:
    with parameters_diverted():
        assert nn.Linear(3, 5, bias=False).bias is None


@pytest.mark.parametrize("fails", [False, True])
def test_registration_is_put_back(fails: bool) -> None:
    before = nn.Module.register_parameter
    try:
        with parameters_diverted():
            assert nn.Module.register_parameter is not before
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert nn.Module.register_parameter is before
    assert not isinstance(nn.Linear(2, 2).weight.data, FakeTensor)
