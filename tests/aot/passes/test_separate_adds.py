"""`separate_adds`: sums that Inductor put into a product come out again; the author's own stay."""

# mypy: allow-subclassing-any

from collections import Counter

import torch
from torch import Tensor, nn

from precast.aot.passes import mark_given, pass_names, separate_adds
from precast.aot.target import Target, named_target


class Layer(nn.Module):
    """One product of each kind: with a whole matrix, with a bias, and one with a factor."""

    def forward(self, x: Tensor, stream: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        aten = torch.ops.aten
        whole = aten.addmm.default(stream, x, weight)
        with_bias = aten.addmm.default(bias, x, weight)
        scaled = aten.addmm.default(stream, x, weight, beta=0.5)
        return whole, with_bias, scaled


def exported() -> tuple[torch.fx.GraphModule, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    inputs = (torch.randn(6, 4), torch.randn(6, 8), torch.randn(4, 8), torch.randn(8))
    tokens = torch.export.Dim("tokens", min=2, max=64)
    program = torch.export.export(Layer(), inputs, dynamic_shapes=({0: tokens}, {0: tokens}, None, None))
    return program.graph_module, inputs


def products(module: torch.fx.GraphModule) -> Counter[str]:
    return Counter(str(n.target) for n in module.graph.nodes if n.op == "call_function")


def test_a_sum_with_a_whole_matrix_comes_out_and_the_numbers_stay() -> None:
    module, inputs = exported()
    before = module(*inputs)
    separate_adds(module.graph)
    module.graph.lint()
    module.recompile()
    assert products(module) == {"aten.mm.default": 1, "aten.add.Tensor": 1, "aten.addmm.default": 2}
    for one, other in zip(before, module(*inputs), strict=True):
        torch.testing.assert_close(one, other)
    assert all("val" in n.meta for n in module.graph.nodes if n.op == "call_function")


def test_what_the_model_itself_says_stays() -> None:
    module, _ = exported()
    mark_given(module.graph)
    separate_adds(module.graph)
    assert products(module) == {"aten.addmm.default": 3}


def test_pieces_for_a_gpu_go_through_it_and_those_for_a_cpu_do_not() -> None:
    assert pass_names(named_target("h200", {})) == ("separate_adds", "one_row_products")
    assert pass_names(Target("cpu", "x86-64-v3")) == ()
