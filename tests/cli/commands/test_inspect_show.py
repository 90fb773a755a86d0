"""`precast inspect show` shows one entry from the store or from a file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.support import Ran, manifest_of, outside_fences, publish, put_entry

from precast.cache.canonical import Json
from precast.cache.records import SettingRecord
from precast.cache.root import CacheRoot
from precast.cache.store import Store

Run = Callable[..., Ran]


@pytest.fixture
def key(root: Path) -> str:
    """The key of an entry with two payloads and a secret among its factors."""
    return publish(root, "tiny", (b"one", b"two"), secret="hunter2")


def test_people_read_a_summary(run: Run, key: str) -> None:
    lines = run("inspect", key[:8]).out.splitlines()
    labels = [line.split()[0] for line in lines if not line.startswith(" ")]
    wanted = ["entry", "content", "model", "target", "stamp", "factors", "lowered", "pieces", "mega", "paths", "built"]
    assert labels == wanted
    assert lines[0] == f"entry      {key}  state ok"
    assert lines[2] == "model      tiny  shop.tiny:build  weights not part of the key"
    assert "factors    env 1 · config 1 · code 1" in lines
    assert "lowered    cudagraph_mode  FULL_AND_PIECEWISE → NONE  a CPU has no CUDA graphs" in lines


def test_json_holds_everything_but_the_code(run: Run, key: str) -> None:
    data = run("inspect", "show", key, "--json").json()["data"]
    assert (data["key"], data["source"], data["state"], data["code"]) == (key, "store", "ok", None)
    assert len(data["payloads"]) == 2
    assert data["settings"][0]["lowered_from"] == "FULL_AND_PIECEWISE"
    assert run("inspect", "show", key, "--code", "--json").json()["data"]["code"].startswith("def forward")


def test_every_effect_on_a_setting_is_shown(run: Run, own_place: Path) -> None:
    asked = SettingRecord("cudagraph_mode", "FULL_AND_PIECEWISE", "flag")
    lowered = asked.lowered("FULL", "no splitting ops").lowered("FULL_DECODE_ONLY", "weak attention")
    file = own_place / "manifest.json"
    file.write_bytes(replace(manifest_of("tiny"), settings=(lowered,)).to_json())
    lines = [line for line in run("inspect", "show", str(file)).out.splitlines() if line.startswith("lowered")]
    assert lines == [
        "lowered    cudagraph_mode  FULL_AND_PIECEWISE → FULL  no splitting ops",
        "lowered    cudagraph_mode  FULL → FULL_DECODE_ONLY  weak attention",
    ]
    shown = run("inspect", "show", str(file), "--json").json()["data"]["settings"][0]
    assert shown["lowered_from"] == "FULL_AND_PIECEWISE"
    assert [(step["from"], step["to"]) for step in shown["steps"]] == [
        ("FULL_AND_PIECEWISE", "FULL"),
        ("FULL", "FULL_DECODE_ONLY"),
    ]


def test_a_secret_is_shown_as_a_short_hash(run: Run, key: str) -> None:
    for words in (["--json"], ["--factors"], ["--factors", "--format", "tsv"]):
        ran = run("inspect", "show", key, *words)
        assert "hunter2" not in ran.out
        assert "sha256:f52fbd32" in ran.out
        assert "sha256:f52fbd32b" not in ran.out


@pytest.mark.parametrize(
    ("section", "header"),
    [
        ("--factors", ["group", "name", "value"]),
        ("--pieces", ["name", "kind", "range", "used_by", "seconds", "bytes", "stored_bytes", "object"]),
        ("--settings", ["name", "value", "origin", "lowered_from", "reason"]),
    ],
)
def test_a_section_is_a_table(run: Run, key: str, section: str, header: list[str]) -> None:
    rows = run("inspect", "show", key, section, "--format", "tsv").tsv()
    assert list(rows[0]) == header
    assert run("inspect", "show", key, section).out.split()[: len(header)]


def test_two_sections_do_not_fit_one_tsv(run: Run, key: str) -> None:
    assert run("inspect", "show", key, "--factors", "--pieces", "--format", "tsv").code == 2
    assert run("inspect", "show", key, "--factors", "--pieces").code == 0


def test_the_code_is_shown_as_it_is(run: Run, key: str) -> None:
    assert run("inspect", "show", key, "--code").out == "def forward(x):\n    return x\n"


def test_a_mega_file_is_shown_without_a_store(run: Run, key: str, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.mega"
    file.write_bytes(CacheRoot(root).mega(key).read_bytes())
    data = run("inspect", str(file), "--json", "--cache-dir", str(tmp_path / "other")).json()["data"]
    assert (data["source"], data["key"], data["mega"]) == ("file", key, None)


def test_an_entry_that_lacks_a_file_says_so(run: Run, key: str, root: Path) -> None:
    CacheRoot(root).mega(key).unlink()
    ran = run("inspect", "show", key, "--json")
    assert (ran.json()["data"]["state"], ran.json()["data"]["missing"]) == ("damaged", ["model.mega is missing"])
    assert "state damaged" in run("inspect", "show", key).out


@pytest.mark.parametrize(("name", "status"), [("abcdef012345", 10), ("abc", 2), ("absent.mega", 10)])
def test_what_is_not_there_has_its_status(run: Run, root: Path, name: str, status: int) -> None:
    ran = run("inspect", name, "--json")
    assert ran.code == status
    assert ran.json()["schema"] == "precast.inspect.show/1"


def test_a_damaged_manifest_exits_4(run: Run, key: str, root: Path) -> None:
    CacheRoot(root).manifest(key).write_text("{}")
    assert run("inspect", "show", key, "--json").code == 4


def test_quiet_writes_the_full_key(run: Run, key: str) -> None:
    assert run("inspect", "show", key[:8], "-q").out == key + "\n"


@pytest.mark.parametrize("words", [["--factors", "env"], ["--factors=env"], ["--group", "env"]])
def test_factors_of_one_group_are_shown_alone(run: Run, key: str, words: list[str]) -> None:
    rows = run("inspect", "show", key, *words, "--format", "tsv").tsv()
    assert [row["name"] for row in rows] == ["MY_TOKEN"]
    assert len(run("inspect", key, *words, "--json").json()["data"]["factors"]) == 1


def test_a_group_of_factors_that_is_none_is_refused(run: Run, key: str) -> None:
    assert run("inspect", "show", key, "--factors=weather", "--json").code == 2


def test_ignored_variables_are_shown_with_the_reason(run: Run, root: Path) -> None:
    key = put_entry(root, ignored=("TRITON_CACHE_DIR", "TORCH_LOGS"))
    assert "ignored    2 variables: TRITON_CACHE_DIR, TORCH_LOGS" in run("inspect", "show", key).out
    rows = run("inspect", "show", key, "--ignored", "--format", "tsv").tsv()
    assert [row["name"] for row in rows] == ["TRITON_CACHE_DIR", "TORCH_LOGS"]
    assert rows[1]["reason"].startswith("Logging")
    assert run("inspect", "show", key, "--json").json()["data"]["ignored"] == rows


def test_the_plan_is_shown_on_request(run: Run, key: str) -> None:
    assert run("inspect", "show", key, "--plan").out == '{\n  "steps": []\n}\n'
    assert run("inspect", "show", key, "--plan", "--json").json()["data"]["plan"] == {"steps": []}
    assert run("inspect", "show", key, "--json").json()["data"]["plan"] is None


def test_an_entry_is_found_by_tag_folder_manifest_and_other_root(run: Run, root: Path, tmp_path: Path) -> None:
    key = put_entry(root, source="x = 1\n", tag="release-40")
    layout = CacheRoot(root)
    empty = str(tmp_path / "empty")
    assert run("inspect", "show", "release-40", "-q").out == key + "\n"
    for name in (str(layout.entry(key)), str(layout.manifest(key)), f"{root}@{key[:8]}"):
        assert run("inspect", "show", name, "-q", "--cache-dir", empty).out == key + "\n", name
    data = run("inspect", "show", key, "--json").json()["data"]
    assert data["tags"] == ["release-40"]
    assert data["sources"]["bytes"] == len(b'{"shop.model":"x = 1\\n"}')
    assert "tags       release-40" in run("inspect", "show", key).out


@pytest.mark.parametrize("name", ["no-such-tag", "absent/manifest.json"])
def test_an_entry_that_is_nowhere_exits_10(run: Run, root: Path, name: str) -> None:
    assert run("inspect", "show", name, "--json").code == 10


def test_a_manifest_that_cannot_be_read_is_told(run: Run, root: Path, tmp_path: Path) -> None:
    (tmp_path / "x.json").symlink_to("x.json")
    ran = run("inspect", "show", str(tmp_path / "x.json"), "--json")
    assert (ran.code, ran.json()["errors"][0]["code"]) == (2, "store.unwritable")


def test_no_secret_of_the_config_is_shown(run: Run, root: Path) -> None:
    overrides: dict[str, Json] = {"hub": {"api_key": "hunter2"}, "num_key_value_heads": 8}
    key = put_entry(root, {f"config/model.{name}": value for name, value in overrides.items()}, config=overrides)
    for words in ([], ["--json"], ["--factors"], ["--factors", "--format", "tsv"]):
        assert "hunter2" not in run("inspect", "show", key, *words).out
    config = run("inspect", "show", key, "--json").json()["data"]["model"]["config"]
    assert config["hub"]["api_key"].startswith("sha256:")
    assert config["num_key_value_heads"] == 8


def test_no_line_of_the_code_is_a_command_to_a_job(run: Run, root: Path) -> None:
    manifest = replace(
        manifest_of("tiny", ()), code='def forward(x):\n    """\n    ::error::broken\n    """\n    return x'
    )
    store = Store(root)
    store.layout.prepare()
    store.publish(manifest)
    assert outside_fences(run("inspect", "show", manifest.key, "--code", "--github", "on").out) == []
    assert run("inspect", "show", manifest.key, "--code").out == f"{manifest.code}\n"


def test_an_entry_without_absolute_paths_says_so(run: Run, key: str) -> None:
    assert run("inspect", "show", key, "--json").json()["data"]["absolute_paths"] == []
    assert "paths      absolute paths  none" in run("inspect", "show", key).out.splitlines()


def test_an_absolute_path_is_told_with_its_member(run: Run, root: Path) -> None:
    key = publish(root, "tiny", (b"one", b'"/opt/build/x.cpp"'))
    manifest = Store(root).manifest(key)
    (held,) = [payload.object for payload in manifest.payloads if Store(root).read_object(payload.object) != b"one"]
    data = run("inspect", "show", key, "--json").json()["data"]
    assert data["absolute_paths"] == [{"member": f"object {held}", "path": "/opt/build/x.cpp"}]
    told = f"paths      absolute paths  /opt/build/x.cpp in object {held[:12]}"
    assert told in run("inspect", "show", key).out.splitlines()


def test_what_cannot_be_searched_is_not_called_clean(run: Run, root: Path, key: str) -> None:
    Store(root).layout.object(Store(root).manifest(key).payloads[0].object).unlink()
    assert run("inspect", "show", key, "--json").json()["data"]["absolute_paths"] is None
    assert "absolute paths  not searched: " in run("inspect", "show", key).out
    manifest = str(CacheRoot(root).manifest(key))
    assert run("inspect", "show", manifest, "--json").json()["data"]["absolute_paths"] is None


def test_a_mega_file_is_searched_too(run: Run, root: Path) -> None:
    key = publish(root, "tiny", (b"/opt/build/x.cpp",))
    data = run("inspect", "show", str(CacheRoot(root).mega(key)), "--json").json()["data"]
    assert [held["path"] for held in data["absolute_paths"]] == ["/opt/build/x.cpp"]
