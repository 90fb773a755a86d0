"""Seam to Inductor's hooks for passes over the graph of a piece. Tried on torch 2.11.0 and 2.13.0."""

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["pass_options"]

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
