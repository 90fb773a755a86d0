import json
from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.cache.canonical import Json, canonical_json, decode_json, digest, sha256

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
keys = st.text().filter(lambda key: key != "$float")
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=20)


class Color(IntEnum):
    RED = 1


class Word(StrEnum):
    RED = "red"


@given(values)
def test_decoding_undoes_encoding(value: Json) -> None:
    decoded = decode_json(canonical_json(value))
    assert canonical_json(decoded) == canonical_json(value)
    assert repr(_sorted(decoded)) == repr(_sorted(value))


@given(values)
def test_the_bytes_are_plain_json_without_a_float_in_it(value: Json) -> None:
    def refuse(text: str) -> None:
        pytest.fail(f"a float: {text}")

    json.loads(canonical_json(value).decode("utf-8"), parse_float=refuse, parse_constant=refuse)


@given(st.dictionaries(keys, scalars, max_size=6).flatmap(lambda value: st.permutations(list(value.items()))))
def test_the_order_of_keys_does_not_matter(items: list[tuple[str, Json]]) -> None:
    assert canonical_json(dict(items)) == canonical_json(dict(sorted(items)))


@given(values, values)
def test_equal_bytes_mean_equal_values(a: Json, b: Json) -> None:
    assert (canonical_json(a) == canonical_json(b)) == (repr(_sorted(a)) == repr(_sorted(b)))


def _sorted(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}'),
        (1.0, '{"$float":"1.0"}'),
        (-0.0, '{"$float":"-0.0"}'),
        (0.1, '{"$float":"0.1"}'),
        ("ä\n", '"ä\\n"'),
        ((1, (2,)), "[1,[2]]"),
    ],
)
def test_the_form_is_fixed(value: Any, text: str) -> None:
    assert canonical_json(value).decode() == text


def test_any_mapping_is_an_object() -> None:
    class Frozen(Mapping[str, int]):
        def __getitem__(self, key: str) -> int:
            return {"a": 1}[key]

        def __iter__(self) -> Any:
            return iter(("a",))

        def __len__(self) -> int:
            return 1

    assert canonical_json(Frozen()) == b'{"a":1}'


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        {1: 2},
        {None: 2},
        {1, 2},
        frozenset(),
        b"bytes",
        object(),
        Color.RED,
        Word.RED,
        {Word.RED: 1},
        {"$float": "1.0"},
        "\ud800",
        1j,
    ],
)
def test_a_value_without_a_canonical_form_is_refused_at_any_depth(value: Any) -> None:
    for nested in (value, [value], {"a": [value]}):
        with pytest.raises(ValueError):
            canonical_json(nested)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="contains itself"):
        canonical_json(loop)


@pytest.mark.parametrize(
    "data",
    [
        b"1.5",
        b"NaN",
        b"-Infinity",
        b'{"a":1,"a":2}',
        b'{"$float":1}',
        b'{"$float":"1.0","a":1}',
        b'{"$float":"1"}',
        b'{"$float":"nan"}',
        b'{"$float":"inf"}',
        b"\xff",
        b"{",
        b"",
        b"[" * 200_000,
    ],
)
def test_text_that_is_not_canonical_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_json(data)


def test_digests_are_full_sha256_in_hex() -> None:
    assert sha256(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert digest({"b": 1, "a": 2}) == sha256(b'{"a":2,"b":1}')
