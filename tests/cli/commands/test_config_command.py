"""`precast config` shows values, origins and variables."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.support import Ran

from precast.aot.settings import SETTING_NAMES
from precast.cache.options import StoreOptions

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


def test_every_variable_that_says_how_a_store_is_opened_is_listed(run: Run, root: Path) -> None:
    class Asked(dict[str, str]):
        def get(self, name: str, default: Any = None) -> Any:
            asked.add(name)
            return default if name != "PRECAST_REMOTE" else "file:///x"

    asked: set[str] = set()
    StoreOptions.from_environ(Asked())
    assert len(asked) > 5
    assert asked <= {row["name"] for row in run("config", "--env", "--format", "tsv").tsv()}


def test_a_passphrase_is_not_shown(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_SIGNING_PASSPHRASE", "correct horse")
    ran = run("config", "--env", "--json")
    assert "horse" not in ran.out + ran.err
    found = {variable["name"]: variable["value"] for variable in ran.json()["data"]["variables"]}
    assert found["PRECAST_SIGNING_PASSPHRASE"] == "set"


def test_an_unknown_key_is_an_error_with_a_suggestion(run: Run, root: Path, own_place: Path) -> None:
    (own_place / "precast.toml").write_text('formt = "json"\n')
    ran = run("config", "--json")
    assert (ran.code, ran.json()["errors"][0]["code"]) == (2, "config.unknown_key")
    assert "formt, did you mean format?" in ran.json()["errors"][0]["why"]


def test_a_format_in_a_file_is_followed(run: Run, root: Path, own_place: Path) -> None:
    (own_place / "precast.toml").write_text('format = "tsv"\n')
    assert run("config").out.startswith("key\tvalue\n")


def test_no_credential_is_shown(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_REMOTE", "s3://user:topsecret@bucket/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:topsecret@127.0.0.1:9000/")
    monkeypatch.setenv("HF_TOKEN", "topsecret")
    for words in (["config"], ["config", "--env"], ["config", "--json"], ["config", "--origin"]):
        ran = run(*words)
        assert "secret" not in ran.out + ran.err
    monkeypatch.setenv("PRECAST_REMOTE", "s3://bucket/x")
    values = {value["key"]: value["value"] for value in run("config", "--json").json()["data"]["values"]}
    assert values["remote"] == "s3://bucket/x"


def test_every_folder_is_listed_with_what_names_it_and_whether_it_can_be_written(
    run: Run, root: Path, own_place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounts").write_text(f"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / {tmp_path}/tmp rw - tmpfs b rw\n")
    monkeypatch.setattr("precast.cache.filesystem._MOUNTS", tmp_path / "mounts")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/nowhere/triton")
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HUGGINGFACE_HUB_CACHE", raising=False)
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "/")
    found = {place.pop("name"): place for place in run("config", "--json").json()["data"]["places"]}
    home = str(tmp_path / "home")
    assert found == {
        "store": {"path": str(root), "origin": "PRECAST_CACHE_DIR", "filesystem": "ext4", "writable": True},
        "temporary": {"path": str(tmp_path / "tmp"), "origin": "TMPDIR", "filesystem": "tmpfs", "writable": True},
        "huggingface": {
            "path": f"{home}/.cache/huggingface/hub", "origin": "HOME", "filesystem": "ext4", "writable": True,
        },
        "triton": {
            "path": "/nowhere/triton", "origin": "TRITON_CACHE_DIR", "filesystem": "ext4", "writable": False,
        },
    }  # fmt: skip
    lines = run("config", "--places").out.splitlines()
    assert [line.split()[0] for line in lines] == ["FOLDER", "store", "temporary", "huggingface", "triton"]
    assert lines[-1].endswith("no")
    assert not root.exists()
