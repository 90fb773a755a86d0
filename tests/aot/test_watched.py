"""Watched tensors: whatever would make compiled code stale or misread is seen, and nothing else is."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from precast.aot.watched import Watched

PATHS = ("0.weight", "0.bias", "1.0.weight", "1.0.mean", "1.0.plain")


def model() -> nn.Sequential:
    inner = nn.Linear(4, 4)
    inner.register_buffer("mean", torch.zeros(4))
    inner.plain = torch.zeros(3)
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(inner))


def _in_place(m: nn.Sequential) -> None:
    with torch.no_grad():
        m[0].weight.fill_(3)
        m[1][0].mean.add_(1)
    m[0].bias.data = torch.ones(4)
    m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()})
    m.requires_grad_(False)
    m.extra = 3
    m[1][0].bias = nn.Parameter(torch.ones(4))  # nobody watches it


def test_values_may_change_in_place() -> None:
    m = model()
    watched = Watched(m, PATHS)
    assert watched.unchanged()
    _in_place(m)
    assert watched.unchanged()


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "parameter": lambda m: setattr(m[0], "weight", nn.Parameter(torch.zeros(4, 4))),
    "state dict by assignment": lambda m: m.load_state_dict(model().state_dict(), assign=True),
    "buffer": lambda m: setattr(m[1][0], "mean", torch.zeros(4)),
    "attribute": lambda m: setattr(m[1][0], "plain", torch.zeros(3)),
    "layer": lambda m: m.__setitem__(0, nn.Linear(4, 4)),
    "outer layer": lambda m: m.__setitem__(1, nn.Sequential(m[1][0])),
    "dtype": lambda m: m.half(),
    "strides": lambda m: setattr(m[0].weight, "data", m[0].weight.data.t()),
    "view": lambda m: setattr(m[0].bias, "data", m[0].bias.data[:2]),
    "dtype of one": lambda m: setattr(m[0].bias, "data", m[0].bias.data.to(torch.bfloat16)),
    "removed": lambda m: delattr(m[1][0], "mean"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_replaced_or_laid_out_anew_is_seen(change: str) -> None:
    m = model()
    watched = Watched(m, PATHS)
    CHANGES[change](m)
    assert not watched.unchanged()
