"""Take additions of whole matrices out of matrix products again, so that they fuse with what comes after.

Inductor turns `x + a @ b` into `addmm(x, a, b)` unless all that follows is pointwise
(`torch._inductor.fx_passes.post_grad.addmm`). In a piece the sum is often an output too: the residual stream goes on to
the next piece. Then `addmm` copies `x` first, one more kernel per product, while the addition alone costs nothing: the
norm that follows reads the sum anyway. On an H200 the copies were 74 of 4,914 us of a decode step of an 8B model.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import fx

__all__ = ["mark_given", "separate_adds"]

_GIVEN = "precast_given"


def mark_given(graph: "fx.Graph") -> None:
    """Mark the `addmm` of the model's own code: its rounding is the author's choice."""
    for node in _products(graph):
        node.meta[_GIVEN] = True


def separate_adds(graph: "fx.Graph") -> None:
    """Turn every `addmm` that Inductor made of a whole matrix and a product back into both.

    Args:
        graph: A piece after Inductor's patterns; nodes carry `val`. A bias, of one dim, stays where it is.
    """
    import torch

    aten = torch.ops.aten
    for node in _products(graph):
        added, left, right = node.args
        if node.meta.get(_GIVEN) or node.kwargs or not _is_whole(added, node):
            continue
        with graph.inserting_before(node):
            product = graph.call_function(aten.mm.default, (left, right))
            total = graph.call_function(aten.add.Tensor, (added, product))
        for made in (product, total):
            made.meta.update(node.meta)
        node.replace_all_uses_with(total)
        graph.erase_node(node)


def _products(graph: "fx.Graph") -> "list[fx.Node]":
    import torch

    return list(graph.find_nodes(op="call_function", target=torch.ops.aten.addmm.default))


def _is_whole(added: object, node: "fx.Node") -> bool:
    """Tell whether what is added has the size of the sum; symbols are compared by name, without a guard."""
    from torch import fx

    if not isinstance(added, fx.Node):
        return False
    value, total = added.meta["val"], node.meta["val"]
    return value.dim() == total.dim() and list(map(str, value.shape)) == list(map(str, total.shape))
