"""Identity: all that a trace can bake in moves it, and neither weights nor names of hooks do."""

# mypy: allow-subclassing-any

import copy
import enum
import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from precast.aot.identity import identity_of, own_modules

SCALE = 2.0
OPTIONS = {"scale": 2.0}
_LOG = logging.getLogger(__name__)


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


@dataclass(slots=True)
class Config:
    width: int = 4
    eps: float = 1e-5
    dtype: torch.dtype = torch.float32
    kind: Kind = Kind.ONE


class Block(nn.Module):
    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.factor


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.sizes = [1, 2]
        self.names = {"a", "b", "c"}
        self.inner = SimpleNamespace(depth=2, more={"deep": (1, 2.0)})
        self.function: Callable[[Tensor], Tensor] = lambda x: x
        self.partial = functools.partial(torch.mul, other=2)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(4)
        self.register_buffer("table", torch.zeros(4))
        self.logger = _LOG
        self.lock = threading.Lock()
        self.again = [self]

    @property
    def doubled(self) -> float:
        return helper(2.0)

    def forward(self, x: Tensor) -> Tensor:
        _LOG.debug("%s", x)
        for block in self.blocks:
            x = block(x) * SCALE * OPTIONS["scale"] * self.doubled
        return self.function(self.norm(x))


def helper(x: float, by: float = 1.0) -> float:
    return x * by


def identity(model: nn.Module, given: Any = None) -> str | None:
    return identity_of(model, type(model).forward, given)


def _closure(value: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x * value


CHANGES: dict[str, Callable[[Model], object]] = {
    "number of an object": lambda m: setattr(m.config, "eps", 1e-6),
    "int is no float": lambda m: setattr(m.config, "width", 4.0),
    "dtype": lambda m: setattr(m.config, "dtype", torch.float16),
    "enum": lambda m: setattr(m.config, "kind", Kind.TWO),
    "list": lambda m: m.sizes.append(3),
    "order": lambda m: m.sizes.reverse(),
    "set": lambda m: m.names.add("d"),
    "deep": lambda m: setattr(m.inner, "more", {"deep": (1, 3.0)}),
    "function": lambda m: setattr(m, "function", torch.relu),
    "closure": lambda m: setattr(m, "function", _closure(3.0)),
    "partial": lambda m: setattr(m, "partial", functools.partial(torch.mul, other=3)),
    "layer's number": lambda m: setattr(m.norm, "eps", 1e-3),
    "layer": lambda m: m.blocks.append(Block()),
    "kind of layer": lambda m: setattr(m, "norm", nn.Identity()),
    "shape": lambda m: setattr(m.blocks[0], "linear", nn.Linear(4, 4, bias=False)),
    "parameter's dtype": lambda m: m.blocks[0].half(),
    "buffer's shape": lambda m: setattr(m, "table", torch.zeros(5)),
    "new attribute": lambda m: setattr(m, "more", 1),
    "mode": lambda m: m.eval(),
    "mode of a part": lambda m: m.norm.eval(),
    "hook of a part": lambda m: m.norm.register_forward_hook(lambda *_: None),
    "forward of a part": lambda m: setattr(m.norm, "forward", torch.relu),
    "tied": lambda m: setattr(m.blocks[1].linear, "weight", m.blocks[0].linear.weight),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_trace_may_bake_in_counts(change: str) -> None:
    model = Model()
    before = identity(model)
    CHANGES[change](model)
    assert before is not None
    assert identity(model) not in (before, None)


def test_equal_instances_are_told_the_same() -> None:
    assert identity(Model()) == identity(Model()) is not None


def _load(model: Model) -> None:
    model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})
    model.requires_grad_(False)


INERT: dict[str, Callable[[Model], object]] = {
    "weights": _load,
    "hooks of the root": lambda m: m.register_forward_hook(lambda *_: None),
    "hooks of state dicts": lambda m: m.norm.register_state_dict_post_hook(lambda *_: None),
    "logger": lambda m: setattr(m, "logger", logging.getLogger("another")),
    "hook handles": lambda m: [m.norm.register_forward_hook(lambda *_: None).remove() for _ in range(3)],
}


@pytest.mark.parametrize("change", INERT)
def test_what_no_trace_sees_does_not_count(change: str) -> None:
    model = Model()
    before = identity(model)
    INERT[change](model)
    assert identity(model) == before


@pytest.mark.parametrize(
    ("name", "value"),
    [("SCALE", 3.0), ("OPTIONS", {"scale": 3.0}), ("helper", lambda x: x), ("_LOG", None)],
)
def test_globals_that_its_functions_read_count(name: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity(Model())
    monkeypatch.setitem(globals(), name, value)
    assert identity(Model()) != before


def test_what_its_classes_hold_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity(Model())
    monkeypatch.setattr(Block, "factor", 2.0)
    after = identity(Model())
    assert after != before
    monkeypatch.setattr(helper, "__defaults__", (2.0,))
    assert identity(Model()) not in (before, after)


def test_a_global_that_nobody_reads_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity(Model())
    monkeypatch.setitem(globals(), "UNREAD", 3.0)
    assert identity(Model()) == before


class Opaque:
    __slots__ = ()


@pytest.mark.parametrize(
    "value", [Opaque(), iter([1]), torch.Generator(), memoryview(b"")], ids=lambda v: type(v).__name__
)
def test_what_keeps_its_state_elsewhere_leaves_the_answer_open(value: object) -> None:
    model = Model()
    model.kept = [value]
    assert identity(model) is None


def test_a_class_typed_at_a_prompt_has_no_identity() -> None:
    scope: dict[str, Any] = {"__name__": "prompt", "nn": nn}
    exec("class Typed(nn.Module):\n    def forward(self, x): return x", scope)
    assert identity(scope["Typed"]()) is None


def test_what_is_given_counts() -> None:
    model = Model()
    assert len({identity(model, g) for g in (None, 1, "1", [1])}) == 4


def test_modules_of_the_classes_are_named() -> None:
    assert own_modules(Model()) == (__name__,)


def test_a_copy_is_told_the_same() -> None:
    model = Model()
    del model.lock  # it cannot be copied
    assert identity(copy.deepcopy(model)) == identity(model)
