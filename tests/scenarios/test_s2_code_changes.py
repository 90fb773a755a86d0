"""S2: what changes the code changes the key, in any order; what does not adds none."""

from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.conftest import OPTIONS, Precast, copy_model

from precast.aot.precompile import precompile
from precast.aot.settings import resolve_settings

CHANGES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({}, {}),
    ({"draft_tokens": 1}, {}),
    ({"draft_tokens": 3}, {}),
    ({"pipeline": 2}, {}),
    ({"attention_scale": 0.5}, {}),
    ({"autocast": "bfloat16"}, {}),
    ({}, {"max_num_batched_tokens": 256}),
    ({"brand_new_field": True}, {}),
)


def compile_all(model: str, root: Path, changes: tuple[tuple[dict[str, Any], dict[str, Any]], ...]) -> list[str]:
    keys = []
    for overrides, flags in changes:
        settings = resolve_settings({"target": "cpu", "max_num_batched_tokens": 512, **flags}, {})
        keys.append(precompile(model, settings, overrides=overrides, cache_dir=root).key)
    return keys


def test_every_change_has_its_key_whatever_the_order(tmp_path: Path, fake_compile: list[str]) -> None:
    model = f"{copy_model(tmp_path / 'x')}:base"
    forwards = compile_all(model, tmp_path / "R1", CHANGES)
    backwards = compile_all(model, tmp_path / "R2", CHANGES[::-1])
    assert len(set(forwards)) == len(CHANGES)
    assert forwards == backwards[::-1]
    stored = [{p.name for p in (tmp_path / r / "v1" / "entries").iterdir()} for r in ("R1", "R2")]
    assert stored[0] == stored[1] == set(forwards)


@pytest.mark.parametrize("changed", [0, 1])
def test_verify_of_a_config_that_is_not_stored_names_the_changed_field(
    tmp_path: Path, precast: Precast, fake_compile: list[str], changed: int
) -> None:
    model = f"{copy_model(tmp_path / 'x')}:base"
    sides: tuple[dict[str, Any], dict[str, Any]] = ({}, {"draft_tokens": 1})
    compile_all(model, tmp_path / "R", ((sides[changed], {}),))
    options = [f"{k}={v}" for k, v in sides[1 - changed].items()]
    flags = [x for o in options for x in ("--set", o)]
    done = precast("verify", model, "--cache-dir", str(tmp_path / "R"), *OPTIONS, *flags, "--json")
    assert done.status == 10
    assert "draft_tokens" in done.json["errors"][0]["why"]
    assert done.json["data"].get("stages", []) == []


@pytest.mark.parametrize(
    ("flags", "env"),
    [
        (["-v"], {}),
        ([], {"PRECAST_LOG": "precast.log"}),
        ([], {"VLLM_LOGGING_LEVEL": "DEBUG", "TORCH_LOGS": "+dynamo"}),
        ([], {"SERVED_MODEL_NAME": "other", "VLLM_CPU_KVCACHE_SPACE": "8"}),
        (["--jobs", "1"], {}),
    ],
)
def test_what_does_not_change_the_code_adds_no_key(
    tmp_path: Path, precast: Precast, fake_compile: list[str], flags: list[str], env: dict[str, str]
) -> None:
    model = f"{copy_model(tmp_path / 'x')}:base"
    (key,) = compile_all(model, tmp_path / "R", (({}, {}),))
    done = precast(
        "precompile", model, "--cache-dir", str(tmp_path / "R"), *OPTIONS, "--json", *flags, env=env, cwd=tmp_path
    )
    assert (done.json["data"]["status"], done.json["data"]["key"]) == ("up_to_date", key)
    assert [p.name for p in (tmp_path / "R" / "v1" / "entries").iterdir()] == [key]
