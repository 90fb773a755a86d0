"""What precast relies on: one graph, in which layers differ in nothing but an integer of the attention op."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.convert_frame import fullgraph_capture
from torch._dynamo.decorators import mark_unbacked
from torch._dynamo.utils import get_metrics_context
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, Node

from precast.examples.decoder.spec import tiny

LAYERS = 4
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "mistral with a window": {"architectures": ["MistralForCausalLM"], "sliding_window": 32},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"]},
    "bfloat16": {"dtype": "bfloat16", "tie_word_embeddings": True},
}


def trace(**overrides: Any) -> Graph:
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
        module = tiny(num_hidden_layers=LAYERS, **overrides).build()
    inputs = tuple(torch.zeros(7, dtype=torch.int64) for _ in range(2))
    for tensor in inputs:
        mark_unbacked(tensor, 0, shape_id="tokens")
    with torch.no_grad(), get_metrics_context():
        output = fullgraph_capture(module, inputs, {})
    assert output.backend_input is not None
    graph: Graph = output.backend_input.graph_module.graph
    return graph


def is_attention(node: Node) -> bool:
    return node.op == "call_function" and "paged_attention" in str(node.target)


def is_bookkeeping(node: Node) -> bool:
    """Tell whether a node only checks sizes; the tracer drops those."""
    return not isinstance(node.meta.get("example_value"), torch.Tensor | tuple)


def pieces(graph: Graph) -> list[list[Node]]:
    result: list[list[Node]] = [[]]
    for node in graph.nodes:
        if is_attention(node):
            result.append([])
        elif node.op not in ("placeholder", "output") and not is_bookkeeping(node):
            result[-1].append(node)
    return result


def lines(piece: list[Node]) -> Iterator[str]:
    """Write a piece down with names by order of appearance, so that equal pieces read the same."""
    names: dict[Node, str] = {}

    def name(node: Node) -> str:
        value = node.meta["example_value"]
        kind = f"{value.dtype}{list(value.shape)}" if isinstance(value, torch.Tensor) else "tuple"
        return names.setdefault(node, f"v{len(names)}:{kind}")

    for node in piece:
        arguments = torch.fx.map_arg((node.args, node.kwargs), lambda n: name(n))  # type: ignore[attr-defined, unused-ignore]
        target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.target)
        yield f"{name(node)} = {target}{arguments}"


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_differ_only_in_the_integer_of_the_attention_op(family: str) -> None:
    graph = trace(**FAMILIES[family])
    calls = [node for node in graph.nodes if is_attention(node)]

    assert [node.args[4] for node in calls] == list(range(LAYERS))
    assert len({(node.args[5:], tuple(node.kwargs)) for node in calls}) == 1
    assert len({"\n".join(lines(piece)) for piece in pieces(graph)}) == 3
    assert len(pieces(graph)) == LAYERS + 1


def test_the_check_sees_a_layer_that_differs() -> None:
    graph = trace()
    middle = pieces(graph)[2]
    scale = next(node for node in middle if node.args[1:] == (1e-05,))
    scale.args = (scale.args[0], 1e-06)

    assert len({"\n".join(lines(piece)) for piece in pieces(graph)}) == 4


def test_no_size_travels_from_piece_to_piece() -> None:
    graph = trace()
    owner = {node: index for index, piece in enumerate(pieces(graph)) for node in piece}

    for node, index in owner.items():
        crossing = [n for n in node.all_input_nodes if owner.get(n, index) != index]
        assert all(isinstance(n.meta["example_value"], torch.Tensor) for n in crossing)


def test_rotary_factors_are_computed_once() -> None:
    names = [str(node.target) for node in trace().nodes if node.op == "call_method"]

    assert (names.count("cos"), names.count("sin")) == (1, 1)
