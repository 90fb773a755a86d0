"""`one_row_products`: products of one row go to the kernel; all others stay."""

# mypy: allow-subclassing-any

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from precast.aot.passes import one_row_products

MM = torch.ops.aten.mm.default


class Product(nn.Module):
    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)


def graph_of(rows: int, dtype: torch.dtype = torch.bfloat16, columns: int = 512, outputs: int = 8) -> torch.fx.Graph:
    """A product after decomposition, as Inductor's last passes see it."""
    program = torch.export.export(
        Product(), (torch.zeros(rows, columns, dtype=dtype), torch.zeros(outputs, columns, dtype=dtype))
    )
    return program.run_decompositions().graph_module.graph


def targets(graph: torch.fx.Graph) -> list[Any]:
    return [n.target for n in graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize(
    "change",
    [{"rows": 2}, {"dtype": torch.float32}, {"columns": 500}, {"outputs": 6}],
    ids=["two rows", "float32", "an odd width", "an odd height"],
)
def test_a_product_that_the_kernel_does_not_fit_stays(change: dict[str, Any]) -> None:
    graph = graph_of(**{"rows": 1, **change})
    assert MM in targets(graph)
    before = targets(graph)
    one_row_products(graph)
    assert targets(graph) == before


@pytest.mark.skipif(find_spec("triton") is None, reason="the kernel is Triton's")
def test_a_product_of_one_row_becomes_a_launch() -> None:
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_functional

    graph = graph_of(rows=1, columns=4096, outputs=12)
    one_row_products(graph)
    graph.lint()
    assert MM not in targets(graph)
    (call,) = [n for n in graph.nodes if n.target is triton_kernel_wrapper_functional]
    assert call.kwargs["grid"] == [(3, 1, 1)]
    assert kernel_side_table.get_constant_args(call.kwargs["constant_args_idx"]) == {"K": 4096, "BN": 4, "BK": 2048}
    assert kernel_side_table.get_kernel(call.kwargs["kernel_idx"]).fn.__name__ == "one_row"
