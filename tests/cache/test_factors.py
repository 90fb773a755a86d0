from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.cache.factors import GROUPS, REGISTER, Factor, FactorRule, entry_key, group_digests, rule_for

names = {
    "<VARIABLE>": "TORCHINDUCTOR_FREEZING",
    "settings.<field>": "settings.payload",
    "model.set.<key>": "model.set.layers",
    "model.<dotted key>": "model.attention.scale",
    "signature.<input>": "signature.tokens",
    "module:<name>": "module:shop.model",
    "distribution:<name>": "distribution:torch",
    "data:<name>": "data:shop/table.json",
    "precast.<module>": "precast.splitter.split",
    "pass:<name>": "pass:fuse_norm",
    "constant:<name>": "constant:scale",
}
example = {rule: Factor(rule.group, names.get(rule.pattern, rule.pattern), "value") for rule in REGISTER}
every = tuple(example.values())

rows = pytest.mark.parametrize("rule", REGISTER, ids=lambda rule: f"{rule.group}/{rule.pattern}")


@rows
def test_a_changed_value_changes_the_key_and_its_own_group_only(rule: FactorRule) -> None:
    factor = example[rule]
    changed = tuple(Factor(f.group, f.name, "other") if f is factor else f for f in every)
    assert entry_key(changed) != entry_key(every)
    before, after = group_digests(every), group_digests(changed)
    assert {group for group in GROUPS if before[group] != after[group]} == {rule.group}


@rows
def test_a_left_out_factor_changes_the_key(rule: FactorRule) -> None:
    rest = tuple(factor for factor in every if factor is not example[rule])
    assert entry_key(rest) != entry_key(every)


@rows
def test_each_row_has_a_group_and_a_reason_and_registers_its_example(rule: FactorRule) -> None:
    assert rule.group in GROUPS
    assert len(rule.reason) > 20
    assert rule_for(example[rule]) == rule


@rows
def test_a_placeholder_stands_for_something(rule: FactorRule) -> None:
    prefix, bracket, _ = rule.pattern.partition("<")
    assert bracket == "" or not rule.fits(Factor(rule.group, prefix, "value"))


@given(st.permutations(every))
def test_the_order_of_factors_does_not_matter(factors: list[Factor]) -> None:
    assert entry_key(factors) == entry_key(every)
    assert group_digests(iter(factors)) == group_digests(every)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.none() | st.integers() | st.text(), max_size=3))
def test_keys_are_equal_just_when_all_factors_are(config: dict[str, Any]) -> None:
    base = {"a": 1, "b": None}
    mine = [Factor("config", f"model.{name}", value) for name, value in config.items()]
    theirs = [Factor("config", f"model.{name}", value) for name, value in base.items()]
    assert (entry_key(mine) == entry_key(theirs)) == (config == base)


def test_an_absent_value_is_another_than_an_absent_factor() -> None:
    assert entry_key([Factor("env", "A", None)]) != entry_key([])


def test_a_value_in_another_group_is_another_key() -> None:
    assert entry_key([Factor("compiler", "torch", 1)]) != entry_key([Factor("env", "torch", 1)])


def test_every_group_has_a_digest_in_a_fixed_order() -> None:
    assert tuple(group_digests([])) == GROUPS


def test_the_key_of_no_factors_never_changes() -> None:
    """Another key for the same factors would orphan every store in the world."""
    assert entry_key([]) == "44554762f098747ba4c70bfcf0552b9b41bd64fa0b7b47cbcc0f5eb0447476bf"
    # rows that the register got after the digest was written down
    later = ("model.factory", "model.set.layers", "system")
    assert (
        entry_key(factor for factor in every if factor.name not in later)
        == "871ebbaed2c9eeefaaa654cce7db1520a9a4bd269a99079681bdd57eed0e7b65"
    )


def test_all_wrong_factors_are_named_at_once() -> None:
    twice = Factor("compiler", "torch", "2.13.0")
    with pytest.raises(
        ValueError, match=r"compiler/gcc is not in .*compiler/torch is given twice.*weather/x is not in"
    ):
        entry_key([twice, Factor("weather", "x", 1), twice, Factor("compiler", "gcc", 1)])


def test_a_value_without_a_canonical_form_is_refused() -> None:
    with pytest.raises(ValueError, match="only finite floats"):
        entry_key([Factor("config", "model.eps", float("nan"))])
