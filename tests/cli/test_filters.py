"""`inspect ls` understands conditions and orders."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.cache.canonical import Json
from precast.cli.filters import keep, parse_filter, sort_rows
from precast.errors import ConfigValueError, UsageError


def _row(key: str, **fields: Json) -> dict[str, Json]:
    usual: dict[str, Json] = {
        "key": key,
        "model": "tiny",
        "target": "cpu x86-64-v3",
        "torch": "2.13.0",
        "state": "ok",
        "pieces": 3,
        "bytes": 1_000_000,
        "age_seconds": 86400,
        "unused_seconds": None,
    }
    return {**usual, **fields}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("size>1MB", ["b"]),
        ("size >= 1MB", ["a", "b"]),
        ("size<=999kB", []),
        ("age<2d", ["a", "b"]),
        ("model=ti*", ["a"]),
        ("model!=tiny", ["b"]),
        ("torch=2.1[45]*", ["b"]),
        ("key=a", ["a"]),
        ("pieces!=3", []),
        ("state=damaged", ["b"]),
        ("used>1d", []),
        ("used!=1d", ["a", "b"]),
    ],
)
def test_conditions_choose_rows(text: str, wanted: list[str]) -> None:
    rows = [_row("a"), _row("b", bytes=2_000_000, model="large", torch="2.14.1", state="damaged")]
    assert [row["key"] for row in keep(rows, [parse_filter(text)])] == wanted


def test_all_conditions_must_hold() -> None:
    rows = [_row("a"), _row("b", bytes=5)]
    assert keep(rows, [parse_filter("size<1kB"), parse_filter("model=tiny")]) == [rows[1]]


@pytest.mark.parametrize("text", ["size", "size>", "=3", "model<tiny", "pieces=many", "sise>1GB"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_filter(text)


def test_an_operand_without_a_unit_of_age_is_refused() -> None:
    with pytest.raises(ConfigValueError, match="30"):
        parse_filter("age>30")


def test_a_misspelt_field_gets_a_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        parse_filter("sise>1GB")
    assert caught.value.hint == "Did you mean size?"


def test_rows_are_sorted_by_a_field_and_then_by_key() -> None:
    rows = [_row("c", bytes=1), _row("a", bytes=2), _row("b", bytes=1)]
    assert [row["key"] for row in sort_rows(rows, "size")] == ["b", "c", "a"]
    assert [row["key"] for row in sort_rows(rows, "size:desc")] == ["a", "b", "c"]


@pytest.mark.parametrize("direction", ["asc", "desc"])
def test_rows_with_an_unknown_value_come_last(direction: str) -> None:
    rows = [_row("a"), _row("b", unused_seconds=7)]
    assert [row["key"] for row in sort_rows(rows, f"used:{direction}")] == ["b", "a"]


@pytest.mark.parametrize("text", ["weight", "size:up"])
def test_an_unknown_order_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        sort_rows([], text)


@given(st.text(max_size=30))
def test_any_text_is_a_condition_or_a_clear_refusal(text: str) -> None:
    with suppress(UsageError, ConfigValueError):
        assert parse_filter(text).sign in text
