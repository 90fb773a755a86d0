"""Fingerprints of factors: what hundreds of entries are made of, small enough to compare at once.

A factor becomes its label and 16 hex digits of its value's digest. They rank entries; they never decide about a hit.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from precast.cache.canonical import canonical_json, sha256
from precast.cache.factors import Factor
from precast.cache.fields import HEX64
from precast.cache.told import Label, is_traced, needs_trace

__all__ = ["Fact", "FactTable", "Question", "decoded_facts"]

Fact = tuple[str, str]

_DIGITS = 16


def decoded_facts(document: Mapping[str, Any]) -> list[Fact]:
    """Return the facts of a manifest that `glance` decoded.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: It is no manifest after all.
    """
    return [(f"{item['group']}/{item['name']}", _raw_fingerprint(item["value"])) for item in document["factors"]]


class FactTable:
    """Facts by number, so that entries that share most of their factors can be kept and compared as numbers.

    Args:
        facts: The facts of an earlier table, each with its place as its number.
    """

    def __init__(self, facts: Iterable[Iterable[str]] = ()) -> None:
        self.facts: list[Fact] = [(label, mark) for label, mark in facts]
        self._numbers = {fact: number for number, fact in enumerate(self.facts)}

    def known(self, fact: Fact) -> int | None:
        """Return a fact's number, or None where no entry has it."""
        return self._numbers.get(fact)

    def number(self, fact: Fact) -> int:
        """Return a fact's number; a new fact gets the next one."""
        if fact not in self._numbers:
            self._numbers[fact] = len(self.facts)
            self.facts.append(fact)
        return self._numbers[fact]


@dataclass(frozen=True, slots=True)
class Question:
    """The factors of a request or of an entry, ready to be compared with many entries.

    Attributes:
        facts: Fingerprint of each factor by its label.
        traced: Whether a trace found the factors.
    """

    facts: Mapping[str, str]
    traced: bool

    @classmethod
    def of(cls, factors: Iterable[Factor]) -> "Question":
        """Prepare some factors."""
        given = tuple(factors)
        return cls({factor.label: _fingerprint(factor.value) for factor in given}, is_traced(given))

    def differing(self, others: Mapping[str, str], unmet: Iterable[str]) -> list[str]:
        """Compare with an entry by the rules of `told.comparable`.

        Args:
            others: The entry's facts that are none of these, by label.
            unmet: Labels of the facts here that the entry does not share.

        Returns:
            The groups of the factors that differ, one item a factor.
        """
        changed = [label for label, mark in others.items() if label in self.facts or self._counts_absent(label, mark)]
        added = [label for label in unmet if label not in others and self._counts_added(label)]
        return [label.partition("/")[0] for label in (*changed, *added)]

    def _counts_absent(self, label: str, mark: str) -> bool:
        """Tell whether it is a difference that this side lacks a factor."""
        return self.traced or not (needs_trace(_split(label)) or _is_unset(label, mark))

    def _counts_added(self, label: str) -> bool:
        """Tell whether it is a difference that the entry lacks a factor."""
        return self.traced or not (label.startswith("code/") or _is_unset(label, self.facts[label]))


def _is_unset(label: str, mark: str) -> bool:
    return label.startswith("env/") and mark == _NULL


def _split(label: str) -> Label:
    group, _, name = label.partition("/")
    return group, name


def _fingerprint(value: Any) -> str:
    return _short(value) or sha256(canonical_json(value))[:_DIGITS]


def _raw_fingerprint(value: Any) -> str:
    """Return the fingerprint of a value whose floats are still in canonical form."""
    if short := _short(value):
        return short
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode("utf-8"))[:_DIGITS]


def _short(value: Any) -> str:
    """Return the first digits of a value that is a digest itself, else an empty text."""
    return value[:_DIGITS] if isinstance(value, str) and HEX64.fullmatch(value) else ""


_NULL = _fingerprint(None)
