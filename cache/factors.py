"""Key factors: the named contributions whose digest is an entry's key.

Nothing enters a key but through the register below, and every row says why it belongs there. The order in which
factors are collected never matters. The key is the digest of the five group digests, so a changed key points to its
group.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from precast.cache.canonical import Json, digest

__all__ = ["GROUPS", "REGISTER", "Factor", "FactorRule", "entry_key", "group_digests", "rule_for"]

GROUPS = ("env", "config", "code", "compiler", "graph")

_KEY_SCHEMA = "precast.key/1"


@dataclass(frozen=True, slots=True)
class Factor:
    """One contribution to a key.

    Attributes:
        group: One of `GROUPS`.
        name: A name that the register knows within the group.
        value: Its canonical form: text, numbers and nested lists or mappings of them, without paths, hosts or times.
    """

    group: str
    name: str
    value: Json

    @property
    def label(self) -> str:
        """The factor's group and name in one word, such as `code/module:shop.model`."""
        return f"{self.group}/{self.name}"


@dataclass(frozen=True, slots=True)
class FactorRule:
    """One row of the register.

    Attributes:
        group: One of `GROUPS`.
        pattern: A name, or a prefix followed by a placeholder in angle brackets.
        reason: Why the factor can change what an entry holds.
    """

    group: str
    pattern: str
    reason: str

    def fits(self, factor: Factor) -> bool:
        """Tell whether this row registers the factor."""
        prefix, bracket, _ = self.pattern.partition("<")
        if factor.group != self.group:
            return False
        if not bracket:
            return factor.name == self.pattern
        return factor.name.startswith(prefix) and len(factor.name) > len(prefix)


REGISTER: tuple[FactorRule, ...] = (
    FactorRule("env", "<VARIABLE>", "A variable that torch, Triton or the model's own code reads while it builds"),
    FactorRule("config", "settings.<field>", "A setting that changes the generated code"),
    FactorRule("config", "model.factory", "Another factory makes another model"),
    FactorRule("config", "model.set.<key>", "A value that the model's factory was given decides what it makes"),
    FactorRule("config", "model.<dotted key>", "A value of the model's config decides what the model computes"),
    FactorRule("config", "signature.<input>", "Shape, dynamic dims and dtype of an input shape the generated code"),
    FactorRule("code", "module:<name>", "A source file that took part in building or tracing the model"),
    FactorRule("code", "distribution:<name>", "An installed package that took part in building or tracing the model"),
    FactorRule("code", "data:<name>", "A data file that was read while the model was built"),
    FactorRule("compiler", "torch", "Another torch traces, lowers and generates code in another way"),
    FactorRule("compiler", "triton", "Another Triton makes other kernels of the same source"),
    FactorRule("compiler", "python", "Payloads and stitched code belong to one minor version of Python"),
    FactorRule("compiler", "system", "The code around a GPU's kernels is for one operating system and machine"),
    FactorRule("compiler", "target", "Code is generated for one GPU architecture or CPU instruction set"),
    FactorRule("compiler", "payload", "Each kind of payload has its own format and its own stamps"),
    FactorRule("compiler", "inductor_config", "Inductor and functorch options that affect compilation"),
    FactorRule("compiler", "precast.<module>", "precast's own splitting, pass and codegen sources make the plan"),
    FactorRule("compiler", "pass:<name>", "A graph pass rewrites the graph, by its source and its config"),
    FactorRule("graph", "graph", "The traced graph itself: two instances of one class may differ in it"),
    FactorRule("graph", "constant:<name>", "A constant that tracing baked into the graph"),
)


def rule_for(factor: Factor) -> FactorRule | None:
    """Return the register's row for a factor, or None where no row fits."""
    return next((rule for rule in REGISTER if rule.fits(factor)), None)


def entry_key(factors: Iterable[Factor]) -> str:
    """Return the key of the entry that these factors describe: a full SHA-256 in hex.

    Args:
        factors: All factors, in any order.

    Raises:
        ValueError: A factor is not registered, is given twice, or has a value without a canonical form.
    """
    return digest({"schema": _KEY_SCHEMA, "groups": group_digests(factors)})


def group_digests(factors: Iterable[Factor]) -> dict[str, str]:
    """Return the digest of each group, the empty ones included, in the order of `GROUPS`.

    Args:
        factors: All factors, in any order.

    Raises:
        ValueError: As `entry_key`; every unregistered and every repeated factor is named at once.
    """
    values: dict[str, dict[str, Json]] = {group: {} for group in GROUPS}
    problems = []
    for factor in factors:
        if rule_for(factor) is None:
            problems.append(f"{factor.label} is not in the register of factors")
        elif factor.name in values[factor.group]:
            problems.append(f"{factor.label} is given twice")
        else:
            values[factor.group][factor.name] = factor.value
    if problems:
        raise ValueError("; ".join(sorted(problems)))
    return {group: digest(named) for group, named in values.items()}
