"""Golden tables and random limits for the tests of sizes, candidates and dispatch."""

import json
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from precast.capture.descriptor import BatchDescriptor
from precast.capture.limits import BatchLimits, DraftTier, LoraLimits
from precast.capture.modes import CUDAGraphMode

GOLDEN = Path(__file__).parent / "golden"
MODES = st.sampled_from(CUDAGraphMode)
untimed = settings(deadline=None)  # how long an example takes says nothing on a busy machine


def golden(name: str) -> list[dict[str, Any]]:
    """Return the cases of one golden table."""
    cases = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    assert cases
    return list(cases)


def limits_of(given: dict[str, Any]) -> BatchLimits:
    """Read limits as the golden tables write them."""
    schedule = tuple(DraftTier(*tier) for tier in given.get("draft_schedule", ()))
    lora = LoraLimits(**given.get("lora", {}))
    return BatchLimits(**{**given, "draft_schedule": schedule, "lora": lora})


def descriptor_of(given: list[Any]) -> BatchDescriptor:
    """Read a descriptor as the golden tables write it: its fields in order."""
    return BatchDescriptor(CUDAGraphMode[given[0]], *given[1:])


@st.composite
def limits(draw: st.DrawFn, *, most_seqs: int = 40) -> BatchLimits:
    """Draw limits with drafts, schedules, adapters and microbatches."""
    drafts = draw(st.integers(0, 4))
    widths = draw(st.lists(st.integers(1, most_seqs + 5), max_size=3, unique=True)) if drafts else []
    return BatchLimits(
        max_num_batched_tokens=draw(st.integers(1, 300)),
        max_num_seqs=draw(st.integers(1, most_seqs)),
        drafts=drafts,
        draft_schedule=tuple(DraftTier(w, draw(st.integers(0, drafts))) for w in widths),
        adaptive_verification=draw(st.booleans()),
        lora=LoraLimits(draw(st.integers(0, 9)), draw(st.booleans()), draw(st.booleans())),
        num_ubatches=draw(st.integers(1, 3)),
        ubatch_decode_tokens=draw(st.integers(1, 20)),
    )
