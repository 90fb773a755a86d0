"""Facts of a described GPU: whether somebody asked for one, inside a trace and outside."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from precast.aot.spec import ModelSpec, TensorInput
from precast.aot.torch_seams import described_facts
from precast.aot.torch_seams.described_facts import Questions, fact, were_traced
from precast.aot.trace import build_for_tracing, trace


def test_a_question_from_outside_is_noted_while_somebody_listens() -> None:
    answer = fact("get_device_name", "NVIDIA H200")
    with Questions() as outer:
        with Questions() as inner:
            assert answer(0, device="cuda") == "NVIDIA H200"
        answer()
    answer()
    assert (inner.names, outer.names) == (["get_device_name"], ["get_device_name"] * 2)


def test_questions_of_torch_itself_do_not_count() -> None:
    scope: dict[str, Any] = {"__name__": "torch._dynamo.device_interface", "answer": fact("x", 7)}
    with Questions() as asked:
        assert eval("answer()", scope) == 7
        assert eval("answer()", {**scope, "__name__": "torchish.model"}) == 7
    assert asked.names == ["x"]


def test_an_error_inside_ends_the_questions() -> None:
    with pytest.raises(KeyError), Questions():
        raise KeyError("inside")
    assert described_facts._asked == []


class Asks(nn.Module):  # type: ignore[misc]
    """Multiplies by a number that a question about the GPU decides."""

    def __init__(self, question: Any) -> None:
        super().__init__()
        self.question = question

    def forward(self, x: Tensor) -> Tensor:
        return x * (2.0 if self.question() else 3.0)


def asks_device(question: Any) -> bool:
    inputs = (TensorInput("x", ("tokens", 8), "float32"),)
    spec = ModelSpec("asks", lambda: Asks(question), inputs, (), sample=lambda *_: pytest.fail("sampled"))
    return trace(spec, build_for_tracing(spec), "cpu").asks_device


def test_a_model_that_asks_while_it_is_traced_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", fact("get_device_capability", (9, 0)))
    assert asks_device(lambda: torch.cuda.get_device_capability()[0] >= 9)
    assert not asks_device(lambda: True)


def test_an_op_whose_fake_asks_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", fact("get_device_name", "NVIDIA H200"))

    @torch.library.custom_op("precast_test_facts::same", mutates_args=())  # type: ignore[untyped-decorator]
    def same(x: Tensor) -> Tensor:
        return x.clone()

    @same.register_fake  # type: ignore[untyped-decorator]
    def _(x: Tensor) -> Tensor:
        assert torch.cuda.get_device_name()
        return torch.empty_like(x)

    class Calls(nn.Module):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return same(x)

    inputs = (TensorInput("x", ("tokens", 8), "float32"),)
    spec = ModelSpec("calls", Calls, inputs, (), sample=lambda *_: pytest.fail("sampled"))
    assert trace(spec, build_for_tracing(spec), "cpu").asks_device


def test_only_the_file_of_the_answers_tells_of_a_trace(tmp_path: Path) -> None:
    assert were_traced([Path("model.py"), Path(described_facts.__file__)])
    assert not were_traced([Path("model.py"), tmp_path / "described_facts.py"])
