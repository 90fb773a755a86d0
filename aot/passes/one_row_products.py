"""Replace products of one row, which pieces for the compile size 1 have, by a kernel that reads the weight row by row.

cuBLAS splits such products over K and adds the parts in a kernel of its own. Measured on an H200 (2026-12-01, torch
2.11, weights cold as in a real step): the piece of one layer of an 8B Llama takes 128.2 us with cuBLAS and 115.1 us
with this kernel, where reading its weights takes 103.2. For 8 and 16 rows a kernel of this kind was no faster.
"""

import operator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import fx

__all__ = ["one_row_products"]

_ROWS = 4
_COLUMNS = (2048, 1024, 512)


def one_row_products(graph: "fx.Graph") -> None:
    """Replace every `mm` of one row with a transposed, contiguous weight of 16 bits.

    Args:
        graph: A piece after Inductor's patterns; nodes carry `val`. Only a piece for the token count 1 has such rows.
    """
    import torch

    for node in list(graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)):
        weight = _weight(node)
        blocks = None if weight is None else _blocks(node, weight)
        if weight is not None and blocks is not None:
            _replace(graph, node, weight, *blocks)


def _weight(node: "fx.Node") -> "fx.Node | None":
    """Return the weight, [N, K] and contiguous, of which a product takes the transpose."""
    import torch
    from torch import fx

    right = node.args[1]
    aten = torch.ops.aten
    if not isinstance(right, fx.Node) or right.target not in (aten.permute.default, aten.t.default):
        return None
    weight = right.args[0]
    if right.target is aten.permute.default and list(right.args[1]) != [1, 0]:
        return None
    value = weight.meta["val"] if isinstance(weight, fx.Node) else None
    plain = value is not None and value.dim() == 2 and value.is_contiguous() and value.element_size() == 2
    return weight if plain else None


def _blocks(node: "fx.Node", weight: "fx.Node") -> tuple[int, int] | None:
    """Return rows and columns of the weight that a program reads at a time; None where the kernel does not fit."""
    left = node.args[0].meta["val"]
    rows, inputs = left.shape
    outputs = weight.meta["val"].shape[0]
    if not isinstance(rows, int) or rows != 1 or not left.is_contiguous() or outputs % _ROWS:
        return None
    columns = next((size for size in _COLUMNS if inputs % size == 0), 0)
    return (_ROWS, columns) if columns else None


def _replace(graph: "fx.Graph", node: "fx.Node", weight: "fx.Node", rows: int, columns: int) -> None:
    import torch

    from precast.aot.passes.one_row_kernel import one_row
    from precast.aot.torch_seams.passes import kernel_call

    value = node.meta["val"]
    outputs, inputs = weight.meta["val"].shape
    with graph.inserting_before(node):
        empty = graph.call_function(
            torch.ops.aten.empty.memory_format,
            (list(value.shape),),
            {"dtype": value.dtype, "device": value.device, "pin_memory": False},
        )
        empty.meta["val"] = value
        tensors = {"x_ptr": node.args[0], "weight_ptr": weight, "out_ptr": empty}
        numbers = {"K": inputs, "BN": rows, "BK": columns}
        function, arguments = kernel_call(one_row, (outputs // rows, 1, 1), tensors, numbers, ["out_ptr"])
        call = graph.call_function(function, (), arguments)
        call.meta["val"] = {"out_ptr": value}
        result = graph.call_function(operator.getitem, (call, "out_ptr"))
        result.meta.update(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)
