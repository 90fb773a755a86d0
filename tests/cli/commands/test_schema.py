"""`precast schema` prints what programs can hold answers against."""

import json
from collections.abc import Callable

import pytest
from tests.cli.support import Ran

from precast.cli.documents import document, names

Run = Callable[..., Ran]


def test_the_commands_with_a_schema_are_listed(run: Run) -> None:
    assert run("schema", "-q").out.split() == list(names())
    assert run("schema", "--json").json()["data"]["names"] == list(names())


@pytest.mark.parametrize("words", [["inspect", "ls"], ["inspect.ls"]])
def test_a_schema_is_printed_as_it_is(run: Run, words: list[str]) -> None:
    assert json.loads(run("schema", *words).out) == document("inspect.ls")


def test_a_schema_can_come_in_the_envelope(run: Run) -> None:
    assert run("schema", "verify", "--json").json()["data"]["document"] == document("verify")


def test_an_unknown_command_is_refused(run: Run) -> None:
    ran = run("schema", "capture", "--json")
    assert (ran.code, ran.json()["errors"][0]["message"]) == (2, "No schema is called capture")
