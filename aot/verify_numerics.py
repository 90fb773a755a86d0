"""Verify's level `numerics`: the loaded pieces compute what eager computes, and nothing is compiled meanwhile."""

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from precast.aot.loaded import LoadedEntry
from precast.aot.report import Finding, counted
from precast.aot.spec import Json
from precast.errors import UsageError, VerifyError

if TYPE_CHECKING:
    from precast.aot.numerics import Comparison

__all__ = ["check_numerics"]


def check_numerics(entry: LoadedEntry, token_counts: Sequence[int] | None) -> Finding:
    """Compare the compiled forward with eager.

    Args:
        entry: The loaded entry; its subject knows the model.
        token_counts: Token counts to compare at; by default 1, 2, a prime, a power of two and the ends of all ranges.

    Raises:
        UsageError: A token count is outside of the compile ranges.
        VerifyError: The numbers are wrong, or something was compiled.
    """
    with entry.clock.phase("import"):
        from precast.aot.numerics import choose_token_counts

    entry.model()
    ranges = entry.pieces.ranges
    counts = tuple(token_counts or choose_token_counts(ranges))
    outside = [n for n in counts if not any(low <= n <= high for low, high in ranges)]
    if outside:
        raise UsageError(
            f"{outside[0]} tokens are outside the entry's compile ranges",
            ", ".join(f"{low}-{high}" for low, high in ranges),
            "choose token counts inside them",
        )
    entry.progress.start("compare", len(counts))
    with entry.clock.phase("compare"):
        results = list(_compare_all(entry, counts))
    entry.progress.finish("compare")
    return _judge(entry, results)


def _compare_all(entry: LoadedEntry, counts: Sequence[int]) -> "Iterator[Comparison]":
    from precast.aot.numerics import compare

    model = entry.model()
    for tokens in counts:
        started = time.perf_counter()
        with entry.watch.section("run"):
            result = compare(model.spec, model.module, model.run, tokens, entry.eager)
        entry.progress.advance("compare", f"{tokens} tokens", time.perf_counter() - started, 0)
        yield result


def _judge(entry: LoadedEntry, results: "Sequence[Comparison]") -> Finding:
    counts = entry.require_zero("run", processes=True)
    own = entry.watch.counts("eager")
    worst = max(results, key=lambda r: r.ratio)
    bad = [r for r in results if not r.ok]
    if bad:
        raise VerifyError(
            f"the numbers are wrong at {', '.join(str(r.tokens) for r in bad)} tokens",
            bad[0].told(),
            "run `precast precompile --force`, and report the model if it stays wrong",
            entry=entry.subject.key,
        )
    tokens = ", ".join(str(r.tokens) for r in results)
    facts: dict[str, Json] = {
        "tokens": [r.tokens for r in results],
        "max_abs": max(r.max_abs for r in results),
        "max_relative_error": worst.error,
        "limit": worst.limit,
        "worst": worst.where,
        **counts,
        "eager_model": dict(own),
    }
    summary = (
        f"{tokens} tokens · largest relative error {worst.error:.1e} (limit {worst.limit:.0e}) · {counted(counts)}"
    )
    if any(own.values()):
        summary += f" · the model's own ops, apart: {counted(own)}"
    return summary, facts, "ok"
