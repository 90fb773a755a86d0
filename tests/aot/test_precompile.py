"""Precompiling: what changes the key, what is found again, and how little that costs."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import MAX_TOKENS, REPOSITORY, TINY, TinyEntry
from tests.models import Layers, make_spec

from precast.aot.compile import Compiled
from precast.aot.precompile import PrecompileResult, precompile, search_path
from precast.aot.reference import parse_reference
from precast.aot.settings import Settings, resolve_settings
from precast.cache.store import Store
from precast.errors import CompileError, ConfigKeyError, UsageError


def settings(**flags: Any) -> Settings:
    return resolve_settings({"target": "cpu", "max_num_batched_tokens": MAX_TOKENS, **flags}, {})


def plan(root: Path, model: Any = str(TINY), overrides: Any = None, **flags: Any) -> PrecompileResult:
    return precompile(model, settings(**flags), overrides=overrides, cache_dir=root, dry_run=True)


@pytest.fixture
def fake_compile(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make payloads of words instead of code; returns how many pieces each compile was asked for."""
    asked: list[int] = []

    def compile_pieces(pieces: Any, ranges: Any, request: Any, progress: Any) -> tuple[Compiled, ...]:
        asked.append(len(pieces))
        return tuple(Compiled(p.key, r, f"{p.key}{r}".encode() * 9, 0.5) for p in pieces for r in ranges)

    monkeypatch.setattr("precast.aot.compile.compile_pieces", compile_pieces)
    return asked


def test_a_dry_run_plans_and_writes_nothing(tmp_path: Path) -> None:
    made = plan(tmp_path / "root")
    assert (made.status, made.pieces, made.unique, made.ranges) == ("planned", 5, 3, ((1, MAX_TOKENS),))
    assert list(made.splitting_ops.values()) == [4]
    assert not (tmp_path / "root").exists()


def test_a_dry_run_and_the_real_run_have_the_same_key(tmp_path: Path, fake_compile: list[int]) -> None:
    made = precompile(str(TINY), settings(), cache_dir=tmp_path)
    assert (made.status, made.key, fake_compile) == ("compiled", plan(tmp_path / "other").key, [3])


def test_the_second_run_is_up_to_date(tmp_path: Path, fake_compile: list[int]) -> None:
    first = precompile(str(TINY), settings(), cache_dir=tmp_path)
    second = precompile(str(TINY), settings(), cache_dir=tmp_path)
    assert (second.status, second.key, len(fake_compile)) == ("up_to_date", first.key, 1)
    assert second.payloads == first.payloads
    assert plan(tmp_path).status == "up_to_date"


def test_force_compiles_again(tmp_path: Path, fake_compile: list[int]) -> None:
    for _ in range(2):
        assert precompile(str(TINY), settings(), cache_dir=tmp_path, force=True).status == "compiled"
    assert len(fake_compile) == 2


def test_a_removed_object_is_compiled_again(tmp_path: Path, fake_compile: list[int]) -> None:
    made = precompile(str(TINY), settings(), cache_dir=tmp_path)
    next(Store(tmp_path).layout.objects.rglob("*.zst")).unlink()
    again = precompile(str(TINY), settings(), cache_dir=tmp_path)
    assert (again.status, again.key) == ("compiled", made.key)
    assert Store(tmp_path).check(made.key) == ()


def test_a_failed_compile_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise CompileError("piece 1 could not be compiled")

    monkeypatch.setattr("precast.aot.compile.compile_pieces", fail)
    with pytest.raises(CompileError):
        precompile(str(TINY), settings(), cache_dir=tmp_path)
    assert list(Store(tmp_path).entries()) == []


def test_settings_made_by_hand_are_enough(tmp_path: Path, fake_compile: list[int]) -> None:
    made = precompile(str(TINY), Settings(target="cpu", max_num_batched_tokens=MAX_TOKENS), cache_dir=tmp_path)
    assert made.key == plan(tmp_path).key


@pytest.mark.parametrize(
    "flags", [{"max_num_batched_tokens": 256}, {"compile_sizes": (1,)}, {"inductor_config": {"max_fusion_size": 8}}]
)
def test_a_setting_that_changes_code_changes_the_key(tmp_path: Path, flags: dict[str, Any]) -> None:
    assert plan(tmp_path, **flags).key != plan(tmp_path).key


def test_a_setting_that_does_not_changes_nothing(tmp_path: Path) -> None:
    assert plan(tmp_path, jobs=7, cudagraph_mode="FULL", optimization_level=3).key == plan(tmp_path).key


@pytest.mark.parametrize("overrides", [{"num_hidden_layers": 2}, {"rms_norm_eps": 1e-6}, {"rope_theta": 5e5}])
def test_an_override_changes_the_key(tmp_path: Path, overrides: dict[str, Any]) -> None:
    assert plan(tmp_path, overrides=overrides).key != plan(tmp_path).key


def test_an_unknown_override_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigKeyError):
        plan(tmp_path, overrides={"num_layers": 2})


def test_two_instances_that_differ_in_one_number_of_python_have_different_keys(tmp_path: Path) -> None:
    """Their config is the same, so that only the graph can tell them apart (W8, W11)."""
    keys = {plan(tmp_path, make_spec(partial(Layers, 2, scale))).key for scale in (0.5, 0.25, 0.5)}
    assert len(keys) == 2


def test_the_same_model_in_another_folder_has_the_same_key(tmp_path: Path) -> None:
    other = shutil.copytree(TINY, tmp_path / "tiny-llama")
    assert plan(tmp_path / "root", str(other)).key == plan(tmp_path / "root").key


def test_no_factor_holds_a_path(tmp_path: Path, fake_compile: list[int]) -> None:
    made = precompile(str(TINY), settings(), cache_dir=tmp_path / "root")
    text = Store(tmp_path / "root").manifest(made.key).to_json().decode()
    assert not [p for p in (str(REPOSITORY), str(Path.home()), str(tmp_path), sys.prefix) if p in text]


def test_level_0_has_nothing_to_compile(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="level 0"):
        plan(tmp_path, optimization_level=0)


def test_a_spec_s_config_inputs_and_their_order_are_factors(tmp_path: Path, fake_compile: list[int]) -> None:
    spec = make_spec(lambda: Layers(1), config={"layers": 1})
    made = precompile(spec, settings(), cache_dir=tmp_path / "root")
    names = {f.name for f in Store(tmp_path / "root").manifest(made.key).factors}
    assert {"model.spec.layers", "signature.x", "signature.order"} <= names


def test_sources_are_looked_for_in_the_model_s_folder_first(tmp_path: Path) -> None:
    (tmp_path / "m.py").touch()
    assert search_path(parse_reference(f"{tmp_path}/m.py:f"))[0] == str(tmp_path)


_UP_TO_DATE = """
import json, sys, time
import precast
from precast import Settings
made = precast.precompile(sys.argv[1], Settings(target="cpu", max_num_batched_tokens=512), cache_dir=sys.argv[2])
print(json.dumps([made.status, made.key, made.saved_seconds > 0, "torch" in sys.modules]))
"""


@pytest.mark.compiles
def test_an_entry_that_is_up_to_date_costs_no_torch(tiny_entry: TinyEntry, tmp_path: Path) -> None:
    entry = tiny_entry.copy_to(tmp_path / "root")
    command = [sys.executable, "-c", _UP_TO_DATE, str(TINY), str(entry.root)]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    out = subprocess.run(command, env=env, capture_output=True, check=True)
    assert json.loads(out.stdout) == ["up_to_date", entry.key, True, False]
