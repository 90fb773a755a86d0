"""Every command has a schema, and every schema is sound."""

import jsonschema
import pytest

from precast.cli.documents import document, names
from precast.errors import ExitCode, UsageError


def test_every_command_has_a_schema() -> None:
    commands = {"precompile", "verify", "prune", "config", "schema", "inspect.ls", "inspect.show"}
    commands |= {"inspect.diff", "inspect.explain", "inspect.stats", "inspect.coverage"}
    assert set(names()) == commands | {"help", "precompile.target", "precompile.targets"}


@pytest.mark.parametrize("name", names())
def test_a_schema_is_valid_and_names_its_answer(name: str) -> None:
    found = document(name)
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["properties"]["schema"] == {"const": f"precast.{name}/1"}


def test_the_envelope_knows_every_exit_status() -> None:
    assert document("verify")["properties"]["exit_code"]["enum"] == [int(code) for code in ExitCode]


@pytest.mark.parametrize("name", ["bogus", "envelope", "../schemas/verify"])
def test_an_unknown_schema_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="No schema is called"):
        document(name)
