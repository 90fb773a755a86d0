"""Twins: what is traced has the module's structure and none of its memory, and the module is left alone."""

# mypy: allow-subclassing-any

import copy
import functools

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from precast.aot.torch_seams.twins import holders, twin_of


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.arange(4.0))
        self.plain = torch.ones(3)
        self.kept = [self.head, {"head": self.head}, (self.head, 3)]
        self.bound = self.forward
        self.partial = functools.partial(self.scaled, factor=2.0)
        self.register_forward_hook(self.hook)

    def hook(self, module: nn.Module, args: object, result: Tensor) -> None: ...

    def scaled(self, x: Tensor, factor: float) -> Tensor:
        return x * factor

    def forward(self, x: Tensor) -> Tensor:
        return self.partial(self.head(self.embed(x)))


def test_a_twin_is_a_tree_of_its_own_with_fake_parameters() -> None:
    model = Model().train()
    before = copy.deepcopy({k: v for k, v in vars(model).items() if k not in ("bound", "partial", "kept")})
    twin = twin_of(model)
    assert type(twin) is Model
    assert twin.training
    assert [n for n, _ in twin.named_modules()] == [n for n, _ in model.named_modules()]
    assert all(isinstance(p, FakeTensor) or isinstance(p.data, FakeTensor) for p in twin.parameters())
    assert not {id(m) for m in twin.modules()} & {id(m) for m in model.modules()}
    assert twin.head.weight is twin.embed.weight
    assert twin.table is model.table
    assert twin.plain is model.plain
    twin.eval().requires_grad_(False)
    twin.extra = 1
    assert model.training
    assert model.embed.weight.requires_grad
    assert vars(model).keys() >= before.keys()
    assert "extra" not in vars(model)


def test_what_a_module_holds_of_itself_is_the_twin_s() -> None:
    twin = twin_of(Model())
    assert twin.kept[0] is twin.head
    assert twin.kept[1]["head"] is twin.head
    assert twin.kept[2][0] is twin.head
    assert twin.bound.__self__ is twin
    assert twin.partial.func.__self__ is twin
    assert next(iter(twin._forward_hooks.values())).__self__ is twin


def test_layouts_stay() -> None:
    model = nn.Linear(4, 6)
    model.weight = nn.Parameter(torch.zeros(4, 6, dtype=torch.bfloat16).t())
    twin = twin_of(model)
    assert twin.weight.stride() == (1, 6)
    assert twin.weight.dtype is torch.bfloat16


def test_every_step_of_a_path_has_its_holder() -> None:
    model = Model()
    steps = list(holders(model, "head.weight"))
    assert [name for _, name, _ in steps] == ["head", "weight"]
    assert steps[0][0] is model._modules
    assert steps[1][0] is model.head._parameters
    assert steps[-1][2] is model.embed.weight
    assert [name for _, name, _ in holders(model, "table")] == ["table"]
    assert next(holders(model, "plain"))[0] is vars(model)
