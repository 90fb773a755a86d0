from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.cache.support import FACTORS

from precast.cache.canonical import canonical_json, sha256
from precast.cache.diff import MAX_LINES, Change, Side, diff_sides
from precast.cache.environment import COUNTED, rule_for_variable
from precast.cache.factors import GROUPS, Factor, rule_for
from precast.cache.manifest import SettingRecord
from precast.cache.masking import seal

SOURCE = "def scale(x):\n    y = x * 2\n    return y\n"

simple = st.none() | st.booleans() | st.integers(-1, 1) | st.sampled_from(["", "x", "ab" * 32, "cd" * 32])
values: st.SearchStrategy[Any] = simple | st.dictionaries(st.sampled_from(["version", "digest", "isa"]), simple)
labels = st.sampled_from(
    [
        ("env", "CC"),
        ("env", "HF_TOKEN"),
        ("env", "RANK"),
        ("config", "model.layers"),
        ("config", "model.set.layers"),
        ("config", "model.spec.layers"),
        ("config", "settings.payload"),
        ("code", "module:shop.model"),
        ("code", "distribution:tools"),
        ("compiler", "torch"),
        ("graph", "graph"),
        ("later", "thing"),
    ]
)
settings = st.dictionaries(st.sampled_from(["jobs", "payload", "level"]), simple, max_size=3)
sides = st.builds(
    lambda label, factors, source, chosen, foreign: Side(
        label=label,
        key="",
        factors=tuple(Factor(group, name, value) for (group, name), value in factors.items()),
        sources={} if source is None else {"shop.model": source},
        settings=tuple(SettingRecord(name, value, "flag") for name, value in chosen.items()),
        foreign=foreign,
    ),
    st.sampled_from(["a", "b", "live"]),
    st.dictionaries(labels, values, max_size=6),
    st.none() | st.lists(st.sampled_from(["x", "y", "z"]), max_size=5).map("\n".join),
    settings,
    st.booleans(),
)


def side(*factors: Factor, **fields: Any) -> Side:
    return Side(**{"label": "a", "key": "ab" * 32, "factors": (*FACTORS, *factors), **fields})


def only(a: Side, b: Side) -> Change:
    (change,) = diff_sides(a, b).changes
    return change


@given(sides, sides)
def test_swapped_sides_give_the_mirrored_diff(a: Side, b: Side) -> None:
    assert diff_sides(b, a) == diff_sides(a, b).mirrored()


@given(sides)
def test_a_side_does_not_differ_from_itself(a: Side) -> None:
    found = diff_sides(a, a)
    assert found.changes == ()
    assert sum(found.unchanged.values()) == len(a.factors)


@given(sides, sides)
def test_between_traced_sides_there_are_breaking_changes_just_when_factors_differ(a: Side, b: Side) -> None:
    graph = Factor("graph", "constant:x", 1)
    a, b = (replace(item, factors=(*item.factors, graph), foreign=False) for item in (a, b))
    differ = {canonical_json(dict(_values(a)))} != {canonical_json(dict(_values(b)))}
    assert bool(diff_sides(a, b).breaking) is differ


def _values(given: Side) -> list[tuple[str, Any]]:
    return [(factor.label, factor.value) for factor in given.factors]


@given(sides, sides)
def test_changes_stand_in_the_order_of_the_groups(a: Side, b: Side) -> None:
    order = (*GROUPS, "later")
    places = [order.index(change.group) for change in diff_sides(a, b).changes]
    assert places == sorted(places)


@given(sides, sides)
def test_no_digest_is_shown_in_full(a: Side, b: Side) -> None:
    assert not any("ab" * 32 in str((change.a, change.b)) for change in diff_sides(a, b).changes)


def test_equal_groups_are_counted() -> None:
    found = diff_sides(side(), side(Factor("env", "CC", "gcc")))
    assert found.unchanged == {"env": 1, "config": 3, "code": 0, "compiler": 1, "graph": 1}


def test_a_version_is_named_without_the_digest_that_follows_from_it() -> None:
    a = side(Factor("compiler", "triton", {"version": "3.6.0", "digest": "ab" * 32}))
    b = side(Factor("compiler", "triton", {"version": "3.7.0", "digest": "cd" * 32}))
    change = only(a, b)
    assert (change.label, change.kind, change.a, change.b) == ("compiler/triton.version", "changed", "3.6.0", "3.7.0")
    assert change.reason == rule_for(Factor("compiler", "triton", None)).reason  # type: ignore[union-attr]


def test_a_digest_is_shown_by_its_first_digits() -> None:
    change = only(side(Factor("code", "data:x", "ab" * 32)), side(Factor("code", "data:x", "cd" * 32)))
    assert (change.a, change.b) == ("ab" * 6, "cd" * 6)


def test_a_variable_that_is_read_and_not_set_counts_as_absent() -> None:
    change = only(side(Factor("env", "SHOP_MODE", None)), side(Factor("env", "SHOP_MODE", "fast")))
    assert (change.kind, change.a, change.b) == ("added", None, "fast")
    assert "model's own code" in change.reason


def test_a_counted_variable_has_its_own_reason() -> None:
    change = only(side(), side(Factor("env", "CC", "gcc")))
    assert change.reason == next(rule.reason for rule in COUNTED if rule.pattern == "CC")


def test_an_excluded_variable_that_the_model_reads_moves_the_key_all_the_same() -> None:
    change = only(side(Factor("env", "RANK", "0")), side(Factor("env", "RANK", "1")))
    assert change.severity == "breaking"
    assert "model's own code" in change.reason


def test_secrets_are_told_apart_without_being_told() -> None:
    a, b = (side(Factor("env", "SHOP_TOKEN", seal(value))) for value in ("hunter2", "hunter3"))
    change = only(a, b)
    assert change.a == f"sha256:{sha256(b'hunter2')[:8]}"
    assert change.b == f"sha256:{sha256(b'hunter3')[:8]}"


def module(text: str, *, stored: bool = True, label: str = "a") -> Side:
    factor = Factor("code", "module:shop.model", sha256(text.encode()))
    return side(factor, sources={"shop.model": text} if stored else {}, label=label)


def test_a_changed_module_is_told_down_to_the_line() -> None:
    change = only(module(SOURCE), module(SOURCE.replace("* 2", "* 3")))
    assert change.factor == "module:shop.model"
    assert [(line.line_a, line.line_b, line.a, line.b) for line in change.lines] == [
        (2, 2, "    y = x * 2", "    y = x * 3")
    ]
    assert change.rest == 0


def test_many_changed_lines_are_cut_and_counted() -> None:
    change = only(module("a\n" * 50), module("b\n" * 50))
    assert len(change.lines) == MAX_LINES
    assert change.rest == 50 - MAX_LINES


def test_a_module_whose_text_one_side_lacks_says_which() -> None:
    change = only(module(SOURCE), module(f"{SOURCE}#\n", stored=False, label="live"))
    assert change.lines == ()
    assert "live stored no text" in change.reason


def test_a_module_that_differs_in_line_ends_only_says_so() -> None:
    assert "line ends" in only(module("a\nb\n"), module("a\r\nb\r\n")).reason


def test_a_patch_is_made_where_both_sides_have_the_text() -> None:
    found = diff_sides(module(SOURCE, label="one"), module(SOURCE.replace("* 2", "* 3"), label="two"))
    assert [line for line in found.patch("shop.model") if line[:2] in ("- ", "+ ")] == [
        "-    y = x * 2",
        "+    y = x * 3",
    ]
    assert found.patch("shop.model")[0] == "--- one/shop.model"
    assert found.patch("shop.other") == ()


def test_a_setting_that_is_no_factor_is_noise_with_the_reason_that_is_given() -> None:
    a, b = (side(settings=(SettingRecord("jobs", jobs, "flag"), SettingRecord("payload", "x", ""))) for jobs in (1, 2))
    (change,) = diff_sides(a, b, {"jobs": "how many"}).changes
    assert (change.label, change.severity, change.a, change.b) == ("config/settings.jobs", "noise", 1, 2)
    assert change.reason == "how many"
    assert diff_sides(a, b).breaking == ()


def test_a_setting_that_is_a_factor_is_listed_once() -> None:
    a = side(settings=(SettingRecord("payload", "aoti", ""),))
    b = replace(
        a,
        factors=(*(f for f in FACTORS if f.name != "settings.payload"), Factor("config", "settings.payload", "x")),
        settings=(SettingRecord("payload", "x", ""),),
    )
    assert only(a, b).severity == "breaking"


def request(*factors: Factor, **fields: Any) -> Side:
    known = (item for item in FACTORS if item.group not in ("graph", "code"))
    return Side("live", "", (*known, *factors), **fields)


def test_what_only_a_trace_can_tell_of_a_request_is_no_difference() -> None:
    entry = side(
        Factor("env", "SHOP_MODE", "fast"),
        Factor("env", "CC", None),
        Factor("config", "signature.x", ["int64", [None]]),
        Factor("config", "model.spec.layers", 4),
        Factor("code", "module:shop.model", "ab" * 32),
    )
    found = diff_sides(entry, request())
    assert found.changes == ()
    assert found.untold == {"env": 1, "config": 2, "code": 1, "graph": 1}


def test_what_a_request_does_say_is_compared() -> None:
    entry = side(Factor("code", "module:shop.model", "ab" * 32), Factor("env", "TRITON_DEBUG", "1"))
    found = diff_sides(entry, request(Factor("code", "module:shop.model", None), Factor("env", "CC", "gcc")))
    assert [(change.label, change.kind) for change in found.changes] == [
        ("env/CC", "added"),
        ("env/TRITON_DEBUG", "removed"),
        ("code/module:shop.model", "removed"),
    ]


def test_variables_of_vllm_that_the_register_leaves_out_are_noise() -> None:
    names = {"VLLM_HOST_IP": "noise", "VLLM_USE_V1": "breaking", "CUDA_HOME": "noise"}
    a, b = (Side("vllm", "", tuple(Factor("env", name, value) for name in names), foreign=True) for value in ("1", "2"))
    assert {change.factor: change.severity for change in diff_sides(a, b).changes} == names
    row = rule_for_variable("CUDA_HOME")
    assert row is not None
    assert diff_sides(a, b).changes[0].reason == row[0].reason
