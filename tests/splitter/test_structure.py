"""The structural key: equal for equal work, different for any difference that matters."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.models import Layers, make_spec, split_spec
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from precast.errors import UnsupportedOpError
from precast.splitter.structure import describe, structural_key

Change = Callable[["Piece"], Any]


class Piece:
    """A small piece, in which a test changes one thing."""

    def __init__(self, prefix: str = "") -> None:
        self.graph = fx.Graph()
        self.prefix = prefix
        self.env = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.env)
        self.tokens = self.symbol()

    def symbol(self) -> Any:
        return self.env.create_unbacked_symint()

    def input(
        self, *shape: Any, dtype: torch.dtype = torch.float32, stride: Any = None, device: str = "cpu"
    ) -> fx.Node:
        node = self.graph.placeholder(f"{self.prefix}i{len(self.graph.nodes)}")
        with self.mode:
            node.meta["example_value"] = (
                torch.empty(shape, dtype=dtype, device=device)
                if stride is None
                else torch.empty_strided(shape, stride, dtype=dtype, device=device)
            )
        return node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return self.graph.create_node("call_function", target, args, kwargs, f"{self.prefix}node")

    def key(self, *outputs: fx.Node) -> str:
        self.graph.output(outputs)
        return structural_key(fx.GraphModule({}, self.graph))


def usual(
    prefix: str = "",
    shape: Callable[[Any], tuple[Any, ...]] = lambda t: (t, 4),
    target: Any = torch.add,
    other: Any = 2,
    **kwargs: Any,
) -> str:
    given = {k: kwargs.pop(k) for k in ("dtype", "stride", "device") if k in kwargs}
    piece = Piece(prefix)
    x = piece.input(*shape(piece.tokens), **given)
    return piece.key(piece.call(target, x, other, **kwargs))


def test_names_do_not_count() -> None:
    assert usual() == usual("another_")


def test_symbols_are_numbered_by_appearance() -> None:
    late = Piece()
    for _ in range(11):
        late.symbol()
    late.tokens = late.symbol()
    x = late.input(late.tokens, 4)
    assert late.key(late.call(torch.add, x, 2)) == usual()


def test_the_device_index_does_not_count() -> None:
    assert usual(device="cuda:0") == usual(device="cuda:1")


@pytest.mark.parametrize(
    "change",
    [
        {"other": 3}, {"other": 2.0}, {"other": True}, {"other": None}, {"other": [2]}, {"other": "2"},
        {"other": float("inf")}, {"other": torch.float16}, {"other": slice(0, 2)}, {"other": ...},
        {"other": torch.device("cpu")},
        {"alpha": 1}, {"alpha": 2}, {"target": torch.sub}, {"target": torch.ops.aten.add.Tensor},
        {"target": torch.ops.aten.add.Scalar}, {"dtype": torch.bfloat16}, {"stride": (8, 1)}, {"device": "cuda"},
        {"shape": lambda t: (t, 5)}, {"shape": lambda t: (4, t)}, {"shape": lambda t: (7, 4)},
        {"shape": lambda t: (t,)}, {"shape": lambda t: (2 * t, 4)},
    ],
)  # fmt: skip
def test_each_difference_makes_another_key(change: dict[str, Any]) -> None:
    assert usual(**change) != usual()


def test_a_negative_zero_is_another_constant() -> None:
    assert usual(other=0.0) != usual(other=-0.0)


def two_inputs(first: Callable[[Any, Any], Any], second: Callable[[Any, Any], Any]) -> str:
    piece = Piece()
    t, u = piece.symbol(), piece.symbol()
    x, y = piece.input(first(t, u)), piece.input(second(t, u))
    return piece.key(piece.call(torch.dot, x, y))


def test_equal_sizes_differ_from_independent_ones() -> None:
    assert two_inputs(lambda t, u: t, lambda t, u: t) != two_inputs(lambda t, u: t, lambda t, u: u)


def test_the_relation_of_a_derived_size_counts() -> None:
    keys = [two_inputs(lambda t, u: t, s) for s in (lambda t, u: u, lambda t, u: 2 * t, lambda t, u: 3 * t)]
    assert len(set(keys)) == 3


def test_which_input_is_used_where_counts() -> None:
    def key(swap: bool) -> str:
        piece = Piece()
        x, y = piece.input(4), piece.input(4)
        return piece.key(piece.call(torch.sub, *((y, x) if swap else (x, y))))

    assert key(swap=True) != key(swap=False)


def test_which_values_leave_the_piece_counts() -> None:
    def key(both: bool) -> str:
        piece = Piece()
        x = piece.input(4)
        y = piece.call(torch.neg, x)
        z = piece.call(torch.abs, y)
        return piece.key(*((y, z) if both else (z,)))

    assert key(both=True) != key(both=False)


def test_the_order_of_keywords_does_not_count() -> None:
    def key(*names: str) -> str:
        piece = Piece()
        return piece.key(piece.call(torch.add, piece.input(4), **dict.fromkeys(names, 1)))

    assert key("alpha", "other") == key("other", "alpha")


def test_a_constant_without_a_stable_form_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="frozenset as a constant"):
        usual(other=frozenset({1}))


def test_an_input_that_is_no_tensor_is_refused() -> None:
    piece = Piece()
    x = piece.graph.placeholder("x")
    x.meta["example_value"] = 3
    with pytest.raises(UnsupportedOpError, match="int as input"):
        piece.key(x)


def test_no_line_of_a_description_holds_an_address() -> None:
    made = split_spec(make_spec(lambda: Layers(1)))
    for piece in made.pieces:
        assert not [line for line in describe(piece.graph_module) if "0x" in line or " at " in line]


def test_a_default_argument_of_a_layer_counts() -> None:
    keys = [{p.key for p in split_spec(make_spec(partial(Layers, 2, scale))).pieces} for scale in (0.5, 0.25)]
    assert len(keys[0] - keys[1]) == 2  # the first piece holds no scale


_PROGRAM = """
from tests.models import Layers, make_spec, split_spec
print(*[p.key for p in split_spec(make_spec(lambda: Layers(2))).pieces])
"""


def test_keys_are_the_same_in_another_process() -> None:
    env = {**os.environ, "PYTHONHASHSEED": "17", "PYTHONPATH": os.pathsep.join(["src", "."])}
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", _PROGRAM], env=env, capture_output=True, check=True)
    assert out.stdout.decode().split() == [p.key for p in split_spec(make_spec(lambda: Layers(2))).pieces]
