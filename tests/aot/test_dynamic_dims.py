"""Dynamic dims: inferred from annotations of any form, or listed and checked."""

# mypy: allow-subclassing-any, allow-untyped-defs, allow-incomplete-defs

from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeAlias, Union

import pytest
import torch
from torch import Tensor, nn

from precast.aot import trace
from precast.aot.dynamic_dims import TOKENS, explicit_dims, inferred_dims, symbolic_shape
from precast.errors import ConfigValueError

if TYPE_CHECKING:
    from torch import Tensor as OnlyForCheckers

Alias: TypeAlias = Tensor


def forward(
    self: Any,
    plain: Tensor,
    optional: Tensor | None,
    old_optional: Optional[Tensor],  # noqa: UP045 - the form is what is tested
    union: Union[torch.Tensor, None],  # noqa: UP007
    typed: torch.FloatTensor,
    annotated: Annotated[Tensor, "T D"],
    parameter: nn.Parameter,
    text: "torch.Tensor",
    optional_text: "Tensor | None",
    alias: "Alias",
    nested: Optional["Tensor"],
    number: int = 0,
    many: list[Tensor] | None = None,
    either: Tensor | int = 0,
    unknown: "OnlyForCheckers | None" = None,
    bare=None,  # noqa: ANN001
) -> None: ...


TENSORS = ("plain", "optional", "old_optional", "union", "typed", "annotated", "parameter", "text", "optional_text",
           "alias", "nested")  # fmt: skip


def test_dim_zero_of_every_tensor_is_dynamic_whatever_form_its_annotation_has() -> None:
    assert inferred_dims(forward) == dict.fromkeys(TENSORS, (0,))


def test_all_annotations_may_be_text() -> None:
    texts = {"x": "Tensor", "y": "Optional[torch.Tensor]", "n": "int", "return": "Tensor"}
    scope: dict[str, Any] = {}
    exec("def forward(self, x, y, n): ...", scope)
    scope["forward"].__annotations__ = texts
    assert inferred_dims(scope["forward"]) == {"x": (0,), "y": (0,)}


def test_a_decorated_forward_is_resolved_where_it_was_written() -> None:
    assert inferred_dims(torch.no_grad()(forward)) == dict.fromkeys(TENSORS, (0,))


def test_the_first_parameter_is_the_module_whatever_it_is_called() -> None:
    def of_this(this: Tensor, self: Tensor) -> None: ...

    assert inferred_dims(of_this) == {"self": (0,)}


@pytest.mark.parametrize(
    ("given", "expected"), [(0, (0,)), ([0, 1], (0, 1)), (-1, (-1,)), ({0: "s"}, (0,)), ((0, -1), (0, -1))]
)
def test_listed_dims_have_every_form(given: Any, expected: tuple[int, ...]) -> None:
    assert explicit_dims({"plain": given}, forward) == {"plain": expected}


@pytest.mark.parametrize(
    "given",
    [
        {"missing": 0},
        {"self": 0},
        {"plain": "0"},
        {"plain": []},
        {"plain": [0, "1"]},
        {"plain": True},
        {"plain": None},
        {"plain": {0: "a"}, "text": {0: "b"}},
    ],
)
def test_wrong_lists_are_refused(given: Any) -> None:
    with pytest.raises(ConfigValueError):
        explicit_dims(given, forward)


def test_negative_dims_count_from_the_end() -> None:
    assert symbolic_shape("x", (3, 7, 4), (-2,)) == (3, TOKENS, 4)
    assert symbolic_shape("x", (3, 7), (0, -1)) == (TOKENS, TOKENS)
    with pytest.raises(ConfigValueError, match="dynamic_arg_dims"):
        symbolic_shape("x", (3,), (1,))
    with pytest.raises(ConfigValueError):
        symbolic_shape("x", (), (0,))


def test_the_name_of_the_token_dim_is_the_trace_s() -> None:
    assert TOKENS == trace.TOKENS
