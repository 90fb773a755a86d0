"""Graph facts: what a spec and the split plan say about which CUDA graphs a model can have.

They are known only when the model is: settings are resolved without them, and settled when they are there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precast.capture.support import AttentionGraphSupport, weakest

if TYPE_CHECKING:
    from precast.aot.spec import ModelSpec
    from precast.splitter.plan import SplitPlan

__all__ = ["GraphFacts", "graph_facts"]


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """Facts about one model, cut in one way.

    Attributes:
        kind: Kind of model, as its spec says.
        support: What each attention op of its graph can be captured for. The attention ops are the spec's splitting
            ops, whatever ops the user cuts at.
        splitting_ops: Ops at which the graph was to be cut, whoever named them.
        pieces: Number of compiled pieces in the graph.
    """

    kind: str
    support: Mapping[str, AttentionGraphSupport]
    splitting_ops: tuple[str, ...]
    pieces: int

    @property
    def unsplit(self) -> tuple[str, ...]:
        """Attention ops at which the graph is not cut, so that they lie inside of compiled pieces."""
        return tuple(name for name in self.support if not _is_among(name, frozenset(self.splitting_ops)))

    @property
    def weakest(self) -> AttentionGraphSupport:
        """What all attention ops can be captured for."""
        return weakest(self.support.values())

    def attention_text(self) -> str:
        """Name the attention op that can be captured for least, and what that is."""
        named = [op for op, support in self.support.items() if support is self.weakest]
        return f"{', '.join(named) or 'attention'} can be captured for {self.weakest.told}"


def graph_facts(spec: "ModelSpec", plan: "SplitPlan | None", splitting_ops: Iterable[str] | None = None) -> GraphFacts:
    """Gather the facts about a model.

    A user's list counts as complete with the model's own attention ops in it. The newer system asks for all 17 that it
    knows, so that a list with the one op of a model counts as not split (vllm-behaviour.md 1.3).

    Args:
        spec: The model.
        plan: How its graph is cut; None where it was not traced, which counts as a graph with a compiled piece.
        splitting_ops: Ops at which it was to be cut; None for the spec's own.
    """
    asked = tuple(spec.splitting_ops if splitting_ops is None else splitting_ops)
    support = {name: spec.graph_support.get(name, AttentionGraphSupport.NEVER) for name in spec.splitting_ops}
    return GraphFacts(spec.kind, support, asked, 1 if plan is None else len(plan.pieces))


def _is_among(name: str, asked: frozenset[str]) -> bool:
    """Tell whether an op is one of those asked for, which may say `ns::op` for all overloads or name the default."""
    return bool(asked & {name, name.partition(".")[0], f"{name}.default"})
