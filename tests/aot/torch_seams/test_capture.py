"""Dynamo's seam: sources by name, errors with the model's line, stores that the graph would lose."""

import traceback
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from tests.models import small
from torch import Tensor, nn

from precast.aot import torch_seams
from precast.aot.torch_seams import capture as seam
from precast.aot.torch_seams.capture import (
    Capture,
    CaptureError,
    capture_graph,
    mark_dynamic_dim,
    placeholder_source,
    stores_outside,
)

STORED = 0


def capture(forward: Callable[..., Any], module: nn.Module | None = None) -> Capture:
    x = torch.zeros(7, 4)
    mark_dynamic_dim(x, 0, "tokens")
    return capture_graph(module or small(forward)().requires_grad_(False), (x,))


def test_placeholders_are_named_by_their_source() -> None:
    graph = capture(lambda self, x: self.linear(x)).graph_module.graph
    sources = {placeholder_source(n) for n in graph.nodes if n.op == "placeholder"}
    assert {"L['x']", "L['self']._modules['linear']._parameters['weight']"} <= sources


def test_equal_shape_ids_are_one_symbol() -> None:
    x, y = torch.zeros(7, 4), torch.zeros(7)
    mark_dynamic_dim(x, 0, "tokens")
    mark_dynamic_dim(y, 0, "tokens")
    captured = capture_graph(small(lambda self, x, y: x + y[:, None])(), (x, y))
    sizes = [n.meta["example_value"].shape for n in captured.graph_module.graph.nodes if n.op == "placeholder"
             and isinstance(n.meta["example_value"], Tensor)]  # fmt: skip
    assert str(sizes[0][0]) == str(sizes[1][0])


def test_rebuild_gives_the_form_of_the_result() -> None:
    captured = capture(lambda self, x: {"a": (x + 1, x), "b": [x * 2]})
    module, x, first, second = nn.Module(), torch.zeros(7, 4), torch.ones(1), torch.ones(2)
    assert captured.rebuild([first, second], module, x) == {"a": (first, x), "b": [second]}


def test_a_pure_forward_stores_nothing() -> None:
    assert stores_outside(capture(lambda self, x: {"a": [x + 1, (x,)]}).bytecode) == ()


def test_a_write_in_place_is_in_the_graph_and_no_store() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.total_D.add_(1)
        return x + self.total_D

    assert stores_outside(capture(forward).bytecode) == ()


def stored_attribute(self: Any, x: Tensor) -> Tensor:
    self.last = x
    return x + 1


def stored_buffer(self: Any, x: Tensor) -> Tensor:
    self.total_D = x.sum(0)
    return x + 1


@pytest.mark.parametrize(("forward", "name"), [(stored_attribute, "last"), (stored_buffer, "total_D")])
def test_a_store_is_named(forward: Callable[..., Any], name: str) -> None:
    assert name in stores_outside(capture(forward).bytecode)


def test_bytecode_of_each_kind_of_store_is_seen() -> None:
    def stores(self, items):  # type: ignore[no-untyped-def] # noqa: ANN001
        global STORED
        STORED = 1
        self.name = 2
        items["key"] = 3
        del self.name
        items.update({"other": 4})

    assert stores_outside(stores.__code__) == ("STORED", "name", "an item", "other")


def test_an_error_keeps_reason_line_and_kind_on_one_line_each() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x

    with pytest.raises(CaptureError) as caught:
        capture(forward)
    assert caught.value.line == "torch._dynamo.graph_break()"
    assert caught.value.location.rpartition(":")[0].endswith("test_capture.py")
    assert caught.value.kind
    assert "\n" not in caught.value.reason
    assert caught.value.reason


def test_the_traced_files_hold_the_model_s() -> None:
    assert any(f.endswith("test_capture.py") for f in capture(lambda self, x: self.linear(x)).traced_files)


def frame(path: str, line: int) -> traceback.FrameSummary:
    return traceback.FrameSummary(path, line, "forward", line="code")


MODEL, TORCH = __file__, torch.nn.__file__


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        ([frame(MODEL, 1), frame(MODEL, 2)], 2), ([frame(MODEL, 1), frame(TORCH, 2)], 1),
        ([frame(TORCH, 1), frame(MODEL, 2), frame(TORCH, 3), frame(TORCH, 4)], 2),
        ([frame(TORCH, 1), frame(TORCH, 2)], 2),
    ],
)  # fmt: skip
def test_the_line_told_is_the_model_s_innermost_else_the_last(frames: list[Any], line: int) -> None:
    error = RuntimeError("no")
    error.real_stack = frames  # type: ignore[attr-defined]
    text = "\n".join(f'  File "{f.filename}", line {f.lineno}, in forward\n    code' for f in frames)
    for found in (seam._user_frame(error), seam._user_frame(RuntimeError(f"from user code:\n{text}"))):
        assert found is not None
        assert found.lineno == line


def test_an_error_without_frames_has_no_line() -> None:
    assert seam._user_frame(RuntimeError("no frames")) is None


def test_what_other_traces_of_the_same_code_saw_makes_no_symbols() -> None:
    for width in (4, 6):
        module = nn.Module()
        vars(module)["forward"] = MethodType(lambda self, x: x + 1, module)  # nothing is reset for such a one
        x = torch.zeros(7, width)
        mark_dynamic_dim(x, 0, "tokens")
        graph = capture_graph(module, (x,)).graph_module.graph
        shapes = [n.meta["example_value"].shape for n in graph.nodes if n.name == "l_x_"]
        assert [repr(shape[1]) for shape in shapes] == [str(width)]  # a symbol would be equal to its hint


def test_every_seam_is_named() -> None:
    folder = Path(torch_seams.__file__).parent
    assert sorted(torch_seams.__all__) == sorted(p.stem for p in folder.glob("*.py") if p.stem != "__init__")
