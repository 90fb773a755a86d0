from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from precast.cache.canonical import Json, canonical_json
from precast.cache.leaves import ABSENT, leaf_changes

names = st.sampled_from(["a", "b", "digest", "version", "a.b", ""])
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 1) | st.sampled_from([0.0, 1.0]) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
sides = values | st.just(ABSENT)


def same(a: Any, b: Any) -> bool:
    if a is ABSENT or b is ABSENT:
        return a is b
    return canonical_json(a) == canonical_json(b)


def at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(value, dict):
            return ABSENT
        value = value.get(name, ABSENT)
    return value


@given(sides, sides)
def test_there_are_changes_just_when_the_values_differ(a: Any, b: Any) -> None:
    assert bool(list(leaf_changes(a, b))) is not same(a, b)


@given(sides, sides)
def test_each_change_holds_what_stands_at_its_path_on_both_sides(a: Any, b: Any) -> None:
    for path, old, new in leaf_changes(a, b):
        assert old is at(a, path)
        assert new is at(b, path)
        assert not same(old, new)
        assert not (isinstance(old, dict) and isinstance(new, dict))


@given(sides, sides)
def test_swapped_values_give_swapped_changes(a: Any, b: Any) -> None:
    assert [(path, new, old) for path, old, new in leaf_changes(a, b)] == list(leaf_changes(b, a))


def test_a_digest_is_named_only_where_the_version_beside_it_is_the_same() -> None:
    old: dict[str, Json] = {"version": "1", "digest": "a"}
    assert [path for path, _, _ in leaf_changes(old, {"version": "2", "digest": "b"})] == [("version",)]
    assert [path for path, _, _ in leaf_changes(old, {"version": "1", "digest": "b"})] == [("digest",)]
    assert list(leaf_changes(ABSENT, old)) == [(("version",), ABSENT, "1")]


def test_numbers_that_python_takes_for_equal_are_told_apart() -> None:
    assert [len(list(leaf_changes(a, b))) for a, b in ((1, True), (1, 1.0), (0, False))] == [1, 1, 1]
