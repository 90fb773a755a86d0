"""Traffic: the batches that a serving process is expected to run, and how often.

Where nobody has counted them, every decode step and every token count that the limits allow is expected once.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from precast.capture.dispatch import Batch, longest_query, uniform_tokens
from precast.capture.limits import BatchLimits
from precast.errors import ConfigValueError

__all__ = [
    "BatchKind",
    "ExpectedBatch",
    "decode_batches",
    "default_traffic",
    "kind_of",
    "mixed_batches",
    "read_traffic",
    "too_large",
]

_FORM = '{"query_lens": [1, 1, 30], "count": 5} or {"requests": 8, "tokens": 8, "count": 100}'
_FIELDS = ("query_lens", "requests", "tokens", "prefill", "loras", "ubatches", "count")
_SHOWN = 3


class BatchKind(StrEnum):
    """What a batch is for a mode that is a pair: the one kind or the other (seed step 7)."""

    DECODE = "decode"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class ExpectedBatch:
    """A batch and how often it runs.

    Attributes:
        batch: What dispatch is asked.
        count: How often, in any unit that is the same for all batches.
    """

    batch: Batch
    count: float = 1


def kind_of(batch: Batch, limits: BatchLimits) -> BatchKind:
    """Tell whether a batch is a decode step as graphs know it: requests of a decode length, all equally long.

    With adaptive verification they need not be equally long (vllm-behaviour.md step 8).
    """
    if limits.adaptive_verification:
        longest = batch.max_query_len
        return BatchKind.DECODE if longest is not None and longest <= limits.decode_query_len else BatchKind.MIXED
    lengths = {length for length, _ in limits.decode_tiers}
    return BatchKind.DECODE if batch.uniform_token_count in lengths else BatchKind.MIXED


def decode_batches(limits: BatchLimits, num_reqs: Iterable[int]) -> tuple[ExpectedBatch, ...]:
    """Return the decode steps of so many requests, each of them once.

    Adapters are left out: graphs for any number of them have the same sizes. With adaptive verification there is one
    batch for each token count, with the most requests that it may belong to, which no graph serves worse than fewer.

    Args:
        limits: Limits of a batch. A step that may be split into microbatches is there both ways.
        num_reqs: Numbers of requests; they may be more than the limits allow.
    """
    made = _adaptive(limits, num_reqs) if limits.adaptive_verification else [_decode(limits, n) for n in num_reqs]
    return tuple(ExpectedBatch(batch) for one in made for batch in (one, *_split(one, limits)))


def mixed_batches(limits: BatchLimits, num_tokens: Iterable[int]) -> tuple[ExpectedBatch, ...]:
    """Return batches with a prefill, one for each token count, of the most requests that it may belong to.

    Args:
        limits: Limits of a batch.
        num_tokens: Token counts; they may be more than the limits allow.
    """
    return tuple(ExpectedBatch(Batch(min(n, limits.max_num_seqs), n)) for n in num_tokens)


def default_traffic(limits: BatchLimits) -> tuple[ExpectedBatch, ...]:
    """Return every decode step and every token count that the limits allow, each once."""
    budget = limits.max_num_batched_tokens
    decode = [e for e in decode_batches(limits, range(1, limits.max_num_seqs + 1)) if e.batch.num_tokens <= budget]
    return (*decode, *mixed_batches(limits, range(1, budget + 1)))


def too_large(limits: BatchLimits) -> tuple[int, ...]:
    """Return the numbers of requests, up to the most, of which no decode step has as few tokens as a step may have."""
    fewest = 0 if limits.adaptive_verification else 1
    reqs = range(1, limits.max_num_seqs + 1)
    return tuple(n for n in reqs if n * (1 + fewest * limits.drafts_of(n)) > limits.max_num_batched_tokens)


def read_traffic(lines: Iterable[str], limits: BatchLimits, source: str = "the traffic") -> tuple[ExpectedBatch, ...]:
    """Read batches from lines of JSON; equal batches are added up, and empty lines count for nothing.

    A line has `query_lens` (new tokens of each request) or `requests` and `tokens`. It may have `count`, `loras`
    (active adapters), `ubatches` (microbatches) and `prefill` (a boolean, or with `query_lens` one for each request).
    Without `prefill` a request with more tokens than any decode step brings is one; of `requests` and `tokens`, all are
    unless they make a decode step.

    Args:
        lines: The lines.
        limits: Limits of a batch.
        source: Where they come from, for messages.

    Raises:
        ConfigValueError: Lines are wrong, the error names the first of them; or there are none.
    """
    found: Counter[Batch] = Counter()
    wrong = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            batch, count = _read(line, limits)
        except ValueError as error:
            wrong.append(f"line {number}: {error}")
        else:
            found[batch] += count  # type: ignore[assignment]  # a Counter adds up fractions too
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ConfigValueError(f"{source} cannot be read", "; ".join(wrong[:_SHOWN]) + more, f"a line is {_FORM}")
    if not found:
        raise ConfigValueError(f"{source} holds no batch", "every line is empty", f"a line is {_FORM}")
    return tuple(ExpectedBatch(batch, count) for batch, count in found.items())


def _decode(limits: BatchLimits, num_reqs: int) -> Batch:
    length = 1 + limits.drafts_of(num_reqs)
    return Batch(num_reqs, num_reqs * length, length, max_query_len=length)


def _adaptive(limits: BatchLimits, num_reqs: Iterable[int]) -> list[Batch]:
    widest: dict[int, int] = {}
    for reqs in sorted(num_reqs):
        widest.update(dict.fromkeys(range(reqs, reqs * (1 + limits.drafts_of(reqs)) + 1), reqs))
    made = []
    for tokens, reqs in sorted(widest.items()):
        longest = min(1 + limits.drafts_of(reqs), tokens - reqs + 1)
        made.append(Batch(reqs, tokens, max_query_len=longest))
    return made


def _split(batch: Batch, limits: BatchLimits) -> list[Batch]:
    """Return a decode step as microbatches, where it may be split."""
    if not _may_split(batch, limits):
        return []
    reqs, tokens, uniform, longest = batch.num_reqs, batch.num_tokens, batch.uniform_token_count, batch.max_query_len
    return [Batch(reqs, tokens, uniform, max_query_len=longest, num_ubatches=limits.num_ubatches)]


def _may_split(batch: Batch, limits: BatchLimits) -> bool:
    least = max(limits.num_ubatches, limits.ubatch_decode_tokens)
    return limits.num_ubatches > 1 and batch.num_tokens >= least


def _read(line: str, limits: BatchLimits) -> tuple[Batch, float]:
    """Read one line.

    Raises:
        ValueError: It is wrong.
    """
    fields = json.loads(line)
    _require(isinstance(fields, dict), "is no JSON object")
    unknown = sorted(set(fields) - set(_FIELDS))
    _require(not unknown, f"`{', '.join(unknown)}` is unknown; known: {', '.join(_FIELDS)}")
    count = fields.get("count", 1)
    is_number = isinstance(count, (int, float)) and not isinstance(count, bool)
    _require(is_number and math.isfinite(count) and count > 0, "`count` is no number above 0")
    lens = fields.get("query_lens")
    shape = _of_lens(lens, fields, limits) if lens is not None else _of_sums(fields, limits)
    loras, ubatches = _whole(fields, "loras", 0, 0), _whole(fields, "ubatches", 1, 1)
    batch = Batch(*shape[:3], num_active_loras=loras, max_query_len=shape[3], num_ubatches=ubatches)
    splits = ubatches == limits.num_ubatches and _may_split(batch, limits)
    why = f"at most {limits.num_ubatches}, from {limits.ubatch_decode_tokens} tokens"
    _require(ubatches == 1 or splits, f"such a step is not split into {ubatches} microbatches ({why})")
    return batch, count


_Shape = tuple[int, int, int | None, int | None]


def _of_lens(lens: Any, fields: Mapping[str, Any], limits: BatchLimits) -> _Shape:
    _require("requests" not in fields and "tokens" not in fields, "`query_lens` says requests and tokens already")
    whole = isinstance(lens, list) and all(type(n) is int and n > 0 for n in lens)
    _require(whole and bool(lens), "`query_lens` is no list of whole numbers above 0")
    prefill = fields.get("prefill", [n > limits.decode_query_len for n in lens])
    prefilling: Sequence[bool] = [prefill] * len(lens) if isinstance(prefill, bool) else prefill
    fits = isinstance(prefilling, list) and len(prefilling) == len(lens) and all(type(p) is bool for p in prefilling)
    _require(fits, "`prefill` is neither a boolean nor one for each of `query_lens`")
    return len(lens), sum(lens), uniform_tokens(lens, prefilling), longest_query(lens, prefilling)


def _of_sums(fields: Mapping[str, Any], limits: BatchLimits) -> _Shape:
    _require("requests" in fields and "tokens" in fields, "there is neither `query_lens` nor `requests` and `tokens`")
    reqs, tokens = _whole(fields, "requests", 1), _whole(fields, "tokens", 1)
    _require(reqs <= tokens, "there are more `requests` than `tokens`")
    prefill = fields.get("prefill", not _is_decode(reqs, tokens, limits))
    _require(isinstance(prefill, bool), "`prefill` is no boolean")
    if prefill:
        return reqs, tokens, None, None
    longest = -(-tokens // reqs)  # as equal as they can be
    return reqs, tokens, longest if longest * reqs == tokens else None, longest


def _is_decode(reqs: int, tokens: int, limits: BatchLimits) -> bool:
    most = reqs * (1 + limits.drafts_of(reqs))
    return tokens <= most if limits.adaptive_verification else tokens == most


def _whole(fields: Mapping[str, Any], name: str, least: int, default: int | None = None) -> int:
    value = fields.get(name, default)
    _require(type(value) is int and value >= least, f"`{name}` is no whole number from {least}")
    return int(value)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)
