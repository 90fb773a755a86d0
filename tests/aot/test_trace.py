"""The trace: what it finds, and what it refuses because an artifact could not be right."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from tests.models import (
    ATTEND,
    Layers,
    Small,
    assert_same_as_module,
    make_spec,
    small,
    split_spec,
    stitched_forward,
    trace_spec,
)
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.library import Library

from precast.aot.spec import ModelSpec, TensorInput
from precast.aot.trace import build_for_tracing
from precast.errors import ConfigValueError, FactoryError, GraphBreakError, UnsupportedOpError, UsageError

OPS = torch.ops.precast_tests
GLOBAL = torch.ones(4)
STATE: dict[str, Any] = {}


def traced(forward: Callable[..., Any], **kwargs: Any) -> Any:
    return trace_spec(make_spec(small(forward), **kwargs))


@pytest.mark.parametrize(
    ("forward", "result"),
    [
        (lambda self, x: x + 1, {"$ref": "add"}),
        (lambda self, x: x, {"$ref": "x"}),
        (lambda self, x: (x + 1,), {"$tuple": [{"$ref": "add"}]}),
        (lambda self, x: [x + 1, x], {"$list": [{"$ref": "add"}, {"$ref": "x"}]}),
        (lambda self, x: {"a": x + 1, "b": None}, {"$dict": [["a", {"$ref": "add"}], ["b", None]]}),
        (lambda self, x: (x + 1, (3, "s", 0.5, True)), {"$tuple": [{"$ref": "add"}, {"$tuple": [3, "s", 0.5, True]}]}),
    ],
)
def test_the_form_of_the_result_is_found(forward: Callable[..., Any], result: Any) -> None:
    assert traced(forward).result == result


def test_two_uses_of_one_result_are_one_value() -> None:
    def forward(self: Any, x: Tensor) -> Any:
        y = x + 1
        return y, {"again": y}

    assert traced(forward).result == {"$tuple": [{"$ref": "y"}, {"$dict": [["again", {"$ref": "y"}]]}]}


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def test_a_result_that_json_cannot_describe_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="returns a Pair"):
        traced(lambda self, x: Pair(x + 1, x))


def test_a_parameter_as_result_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="returns a tensor"):
        traced(lambda self, x: (x + 1, self.linear.weight))


def test_arguments_states_and_sizes_are_told_apart() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.linear(x) + self.total_D + x.shape[0]

    inputs = {i.name: i for i in traced(forward).inputs.values()}
    assert {n: (i.kind, i.source) for n, i in inputs.items() if i.kind != "size"} == {
        "x": ("argument", "x"),
        "w_linear_weight": ("state", "linear.weight"),
        "w_linear_bias": ("state", "linear.bias"),
        "w_total_D": ("state", "total_D"),
    }
    assert [(i.source, i.dim) for i in inputs.values() if i.kind == "size"] == [("x", 0)]
    assert inputs["x"].shape == (None, 4)
    assert (inputs["w_linear_weight"].shape, inputs["w_linear_weight"].stride) == ((4, 4), (4, 1))
    assert inputs["w_linear_weight"].dtype == "float32"


def test_state_names_that_join_to_the_same_word_stay_apart() -> None:
    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.a_b = nn.Linear(4, 4, bias=False)
            self.a = nn.Module()
            self.a.b = nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return OPS.attend(self.a_b(x)) + self.a.b(x)

    assert_same_as_module(make_spec(Model))


def test_a_plain_attribute_that_is_a_tensor_is_state() -> None:
    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.arange(4.0)

        def forward(self, x: Tensor) -> Tensor:
            return OPS.attend(x) + self.table

    assert_same_as_module(make_spec(Model))


def test_other_weights_give_other_results_from_the_same_split() -> None:
    made = split_spec(make_spec(lambda: Layers(2)))
    x = torch.randn(5, 4)
    for seed in (1, 2):
        torch.manual_seed(seed)
        module = Layers(2).eval()
        torch.testing.assert_close(stitched_forward(made, module)(x), module(x))


class Tied(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(4, 4, bias=False)
        self.out = nn.Linear(4, 4, bias=False)
        self.out.weight = self.into.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(OPS.attend(self.into(x)))


def test_tied_weights_stay_tied_and_right() -> None:
    made = assert_same_as_module(make_spec(Tied))
    module = Tied().eval()
    with torch.no_grad():
        module.into.weight.mul_(3)
        x = torch.randn(5, 4)
        torch.testing.assert_close(stitched_forward(made, module)(x), module(x))


def test_tied_weights_that_were_untied_afterwards_are_one_tensor_of_the_plan() -> None:
    states = [i.source for i in split_spec(make_spec(Tied)).plan.inputs if i.kind == "state"]
    assert len(states) == len(set(states))
    assert set(states) <= {"into.weight", "out.weight"}


def test_parameters_take_no_memory_and_buffers_are_real() -> None:
    module = build_for_tracing(make_spec(Small))
    assert all(isinstance(p.data, FakeTensor) for p in module.parameters())
    assert not any(isinstance(b, FakeTensor) for b in module.buffers())
    assert not module.training


def test_a_constructor_that_raises_is_a_factory_error() -> None:
    def build() -> nn.Module:
        raise RuntimeError("no such layer")

    with pytest.raises(FactoryError, match="no such layer"):
        build_for_tracing(make_spec(build))


def test_an_error_of_the_constructor_on_purpose_passes_through() -> None:
    def build() -> nn.Module:
        raise UsageError("choose another size")

    with pytest.raises(UsageError, match="another size"):
        build_for_tracing(make_spec(build))


def graph_break(self: Any, x: Tensor) -> Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def data_dependent(self: Any, x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x + 1
    return x - 1


def asks_for_the_value(self: Any, x: Tensor) -> Tensor:
    return x + float(str(x.sum().tolist()))


@pytest.mark.parametrize("forward", [graph_break, data_dependent, asks_for_the_value], ids=lambda f: f.__name__)
def test_what_is_not_one_graph_is_refused_with_the_model_s_line(forward: Callable[..., Any]) -> None:
    with pytest.raises(GraphBreakError) as caught:
        traced(forward)
    found = re.search(r"test_trace\.py:(\d+): `(.+)`", caught.value.what)
    assert found is not None
    first = forward.__code__.co_firstlineno
    assert first < int(found[1]) <= first + 3
    assert "\n" not in caught.value.what + caught.value.why


def compares_the_size(self: Any, x: Tensor) -> Tensor:
    return x + 1 if x.shape[0] == 7 else x - 1


def size_decides_the_work(self: Any, x: Tensor) -> Tensor:
    for _ in range(x.shape[0]):
        x = x + 1
    return x


@pytest.mark.parametrize("forward", [compares_the_size, size_decides_the_work], ids=lambda f: f.__name__)
def test_a_forward_that_fixes_the_token_count_is_refused(forward: Callable[..., Any]) -> None:
    with pytest.raises(GraphBreakError):
        traced(forward)


def sets_an_attribute(self: Any, x: Tensor) -> Tensor:
    self.last = x + 1
    return x * 2


def sets_a_number(self: Any, x: Tensor) -> Tensor:
    self.calls = 3
    return x * 2


def replaces_a_buffer(self: Any, x: Tensor) -> Tensor:
    self.total_D = self.total_D + x.sum(0)
    return x * 2


def fills_a_global_dict(self: Any, x: Tensor) -> Tensor:
    STATE["last"] = x + 1
    return x * 2


def fills_a_dict(self: Any, x: Tensor) -> Tensor:
    self.__dict__["_modules"]["linear"].__dict__.setdefault("seen", {})
    self.notes["last"] = x + 1
    return x * 2


def appends_to_a_list(self: Any, x: Tensor) -> Tensor:
    STATE["list"].append(x + 1)
    return x * 2


@pytest.mark.parametrize(
    "forward",
    [sets_an_attribute, sets_a_number, replaces_a_buffer, fills_a_global_dict, fills_a_dict, appends_to_a_list],
    ids=lambda f: f.__name__,
)
def test_a_forward_that_stores_something_outside_is_refused(
    forward: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STATE, "list", [])
    monkeypatch.setattr(Small, "notes", {}, raising=False)
    with pytest.raises((UnsupportedOpError, GraphBreakError)):
        traced(forward)


def test_a_stored_attribute_is_named() -> None:
    with pytest.raises(UnsupportedOpError, match="assigns `last`"):
        traced(sets_an_attribute)


def test_a_global_tensor_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="GLOBAL"):
        traced(lambda self, x: x + GLOBAL)


def test_a_tensor_of_a_closure_is_refused() -> None:
    inner = torch.ones(4)
    with pytest.raises(UnsupportedOpError):
        traced(lambda self, x: x + inner)


def test_an_op_without_a_fake_implementation_is_refused() -> None:
    library = Library("precast_tests_nofake", "DEF")
    library.define("bare(Tensor x) -> Tensor")
    library.impl("bare", lambda x: x.clone(), "CPU")
    try:
        with pytest.raises(UnsupportedOpError, match="fake") as caught:
            traced(lambda self, x: torch.ops.precast_tests_nofake.bare(x))
        assert "test_trace.py" in caught.value.what
    finally:
        library._destroy()


def test_defaults_of_forward_are_constants_of_the_graph() -> None:
    def forward(self: Any, x: Tensor, scale: float = 3.0, mask: Tensor | None = None) -> Tensor:
        y = OPS.attend(x) * scale
        return y if mask is None else y * mask

    made = assert_same_as_module(make_spec(small(forward)))
    assert made.plan.arguments == ("x",)


def test_a_keyword_only_input_cannot_be_passed_and_says_so() -> None:
    with pytest.raises((GraphBreakError, UnsupportedOpError)):
        traced(lambda self, *, x: x + 1)


def test_an_input_name_that_forward_does_not_have_is_refused() -> None:
    with pytest.raises(UnsupportedOpError):
        traced(lambda self, y: y + 1)


def test_two_inputs_share_one_token_count() -> None:
    def forward(self: Any, x: Tensor, y: Tensor) -> Tensor:
        return OPS.attend(x) + y

    assert_same_as_module(make_spec(small(forward), names=("x", "y")))


def test_another_dynamic_dim_is_refused() -> None:
    with pytest.raises(ConfigValueError, match="`batch`"):
        traced(lambda self, x: x + 1, shape=("batch", 4))


def test_the_traced_files_hold_the_model_s_and_torch_s() -> None:
    files = trace_spec(make_spec(lambda: Layers(1))).traced_files
    assert {"models.py", "linear.py"} <= {f.name for f in files}


def test_the_arguments_keep_the_order_of_the_spec() -> None:
    def forward(self: Any, b: Tensor, a: Tensor) -> Tensor:
        return b - a

    inputs = (TensorInput("b", ("tokens",), "float32"), TensorInput("a", ("tokens",), "float32"))
    base = make_spec(small(forward), ())
    spec = ModelSpec(base.name, base.build, inputs, (), base.sample)
    assert trace_spec(spec).arguments == ("b", "a")
    assert_same_as_module(spec)


def test_a_second_trace_in_the_process_is_the_same() -> None:
    keys = [[p.key for p in split_spec(make_spec(lambda: Layers(2))).pieces] for _ in range(2)]
    assert keys[0] == keys[1]
    assert ATTEND in split_spec(make_spec(lambda: Layers(2))).plan.op_counts()
