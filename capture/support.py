"""Graph support: the kinds of batches that an attention op may run with inside of a FULL graph (seed step 7).

Outside of a graph an op sees each batch as it is. Inside it keeps the launches of its capture, so that which other
batches it still computes rightly is the op's own to declare.
"""

from collections.abc import Iterable
from enum import IntEnum

__all__ = ["AttentionGraphSupport", "weakest"]


class AttentionGraphSupport(IntEnum):
    """What an attention op can be captured for; each value includes those before it (vllm-behaviour.md 1.3)."""

    NEVER = 0
    SINGLE_TOKEN_DECODE = 1  # decode steps with one new token a request
    UNIFORM_BATCH = 2  # every request brings the same number of new tokens: decode steps with drafts too
    ALWAYS = 3  # any batch, prompts beside decode steps

    @property
    def told(self) -> str:
        """What it can be captured for, in words."""
        return _TOLD[self]


_TOLD = {
    AttentionGraphSupport.NEVER: "nothing",
    AttentionGraphSupport.SINGLE_TOKEN_DECODE: "decode steps of one token a request",
    AttentionGraphSupport.UNIFORM_BATCH: "batches of equally long requests",
    AttentionGraphSupport.ALWAYS: "any batch",
}


def weakest(supports: Iterable[AttentionGraphSupport]) -> AttentionGraphSupport:
    """Return what all ops of a model can be captured for; ALWAYS for a model without any."""
    return min(supports, default=AttentionGraphSupport.ALWAYS)
