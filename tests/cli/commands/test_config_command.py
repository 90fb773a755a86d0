"""`precast config` shows values, origins and variables."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.support import Ran

from precast.aot.settings import SETTING_NAMES

Run = Callable[..., Ran]


def test_people_read_every_value(run: Run, root: Path) -> None:
    lines = dict(line.split(maxsplit=1) for line in run("config").out.splitlines())
    assert lines["KEY"] == "VALUE"
    assert lines["cache_dir"] == str(root)
    assert {f"settings.{name}" for name in SETTING_NAMES} < set(lines)


def test_origins_name_flag_variable_and_file(
    run: Run, root: Path, own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = own_place / "precast.toml"
    file.write_text('progress = "none"\n[settings]\njobs = 3\n')
    monkeypatch.setenv("PRECAST_PAYLOAD", "aoti")
    rows = {row["key"]: row for row in run("config", "--origin", "--format", "tsv").tsv()}
    assert (rows["cache_dir"]["origin"], rows["cache_dir"]["source"]) == ("environment", "PRECAST_CACHE_DIR")
    assert (rows["format"]["origin"], rows["format"]["source"]) == ("flag", "--format")
    assert (rows["progress"]["origin"], rows["progress"]["source"]) == ("project", str(file))
    assert (rows["settings.jobs"]["value"], rows["settings.jobs"]["source"]) == ("3", str(file))
    assert rows["settings.payload"]["source"] == "PRECAST_PAYLOAD"


def test_json_has_values_variables_and_files(run: Run, root: Path, own_place: Path) -> None:
    (own_place / "precast.toml").write_text("")
    data = run("config", "--json").json()["data"]
    assert data["files"] == [str(own_place / "precast.toml")]
    found = {variable["name"]: variable["value"] for variable in data["variables"]}
    assert found["PRECAST_CACHE_DIR"] == str(root)
    assert found["PRECAST_CONFIG"] is None


def test_the_variables_are_listed(run: Run, root: Path) -> None:
    rows = run("config", "--env", "--format", "tsv").tsv()
    assert {"PRECAST_CACHE_DIR", "PRECAST_FORMAT", "PRECAST_LOG", "PRECAST_JOBS"} <= {row["name"] for row in rows}


def test_an_unknown_key_is_an_error_with_a_suggestion(run: Run, root: Path, own_place: Path) -> None:
    (own_place / "precast.toml").write_text('formt = "json"\n')
    ran = run("config", "--json")
    assert (ran.code, ran.json()["errors"][0]["code"]) == (2, "config.unknown_key")
    assert "formt, did you mean format?" in ran.json()["errors"][0]["why"]


def test_a_format_in_a_file_is_followed(run: Run, root: Path, own_place: Path) -> None:
    (own_place / "precast.toml").write_text('format = "tsv"\n')
    assert run("config").out.startswith("key\tvalue\n")
