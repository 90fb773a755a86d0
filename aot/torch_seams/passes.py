"""Seam to Inductor's hooks for passes over the graph of a piece. Tried on torch 2.11.0 and 2.13.0."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["kernel_call", "pass_options"]

Pass = Callable[[Any], None]


def pass_options(before: Sequence[Pass], after: Sequence[Pass]) -> dict[str, Any]:
    """Return Inductor options that run passes before and after Inductor's own of the last phase.

    Args:
        before: Run first (`post_grad_custom_pre_pass`).
        after: Run last (`post_grad_custom_post_pass`).
    """
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class Passes(CustomGraphPass):  # type: ignore[misc]
        def __init__(self, passes: Sequence[Pass]) -> None:
            self.passes = tuple(passes)

        def __call__(self, graph: Any) -> None:
            for run in self.passes:
                run(graph)

        def uuid(self) -> Any:
            return get_hash_for_files(tuple(sorted({run.__code__.co_filename for run in self.passes})), "precast")

    return {"post_grad_custom_pre_pass": Passes(before), "post_grad_custom_post_pass": Passes(after)}


def kernel_call(
    kernel: Any,
    grid: tuple[int, int, int],
    tensors: Mapping[str, Any],
    numbers: Mapping[str, Any],
    written: Sequence[str],
) -> tuple[Any, dict[str, Any]]:
    """Return function and arguments of a graph node that launches a Triton kernel
    (`torch._higher_order_ops.triton_kernel_wrap.triton_kernel_wrapper_functional`).

    Args:
        kernel: A function under `triton.jit`.
        grid: Programs by dim.
        tensors: Nodes by parameter name.
        numbers: All other parameters.
        written: Names of the tensors that the kernel writes; they come back in the node's dict.
    """
    from torch._higher_order_ops import triton_kernel_wrap

    table = triton_kernel_wrap.kernel_side_table
    return triton_kernel_wrap.triton_kernel_wrapper_functional, {
        "kernel_idx": table.add_kernel(kernel),
        "constant_args_idx": table.add_constant_args(dict(numbers)),
        "grid": [grid],
        "tma_descriptor_metadata": {},
        "kwargs": dict(tensors),
        "tensors_to_clone": list(written),
    }
