"""Passes of precast's own over a piece's graph, run by Inductor after its own."""

from pathlib import Path

from precast.aot.passes.one_row_products import one_row_products
from precast.aot.passes.separate_adds import mark_given, separate_adds
from precast.aot.target import Target
from precast.cache.sources import hash_source

__all__ = ["mark_given", "one_row_products", "pass_names", "pass_source", "separate_adds"]


def pass_names(target: Target) -> tuple[str, ...]:
    """Return the names of the passes that pieces for a target go through; they are part of the key."""
    return (separate_adds.__name__, one_row_products.__name__) if target.device == "cuda" else ()


def pass_source(name: str) -> str:
    """Return the digest of a pass's source, which has no settings."""
    return hash_source(Path(__file__).with_name(f"{name}.py"))
