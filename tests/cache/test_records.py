"""The record of a setting keeps each effect of each rule."""

from typing import Any

import pytest

from precast.cache.fields import Fields
from precast.cache.records import LoweringRecord, SettingRecord

PLAIN = SettingRecord("mode", "A", "flag")
ONCE = SettingRecord("mode", "B", "flag", "A", "one")
TWICE = SettingRecord(
    "mode", "C", "flag", "A", "two", (LoweringRecord("A", "B", "one"), LoweringRecord("B", "C", "two"))
)


def read(form: Any) -> tuple[SettingRecord, list[str]]:
    problems: list[str] = []
    return SettingRecord.read(Fields(form, "settings[0]", problems)), problems


def test_what_was_asked_for_stays_and_the_last_reason_counts() -> None:
    assert PLAIN.lowered("B", "one") == ONCE
    assert ONCE.lowered("C", "two") == TWICE


def test_each_effect_is_told_from_what_to_what_and_why() -> None:
    assert PLAIN.lowerings == ()
    assert ONCE.lowerings == (LoweringRecord("A", "B", "one"),)
    assert [(step.before, step.after, step.reason) for step in TWICE.lowerings] == [
        ("A", "B", "one"),
        ("B", "C", "two"),
    ]


@pytest.mark.parametrize("record", [PLAIN, ONCE, TWICE])
def test_a_record_comes_back_as_it_was(record: SettingRecord) -> None:
    assert read(record.json()) == (record, [])


def test_one_effect_is_written_as_it_always_was() -> None:
    assert set(ONCE.json()) == set(PLAIN.json()) == {"name", "value", "origin", "lowered_from", "reason"}
    assert TWICE.json()["steps"] == [
        {"from": "A", "to": "B", "reason": "one"},
        {"from": "B", "to": "C", "reason": "two"},
    ]


def test_malformed_steps_are_named() -> None:
    _, problems = read({**TWICE.json(), "steps": [{"from": "A", "reason": 3}]})
    assert problems == ["settings[0].steps[0].to is missing", "settings[0].steps[0].reason is not text"]
