"""Precompiling: what changes the key, what is found again, and how little that costs."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import MAX_TOKENS, REPOSITORY, TINY, TinyEntry
from tests.models import Layers, make_spec

from precast.aot import stamps
from precast.aot.compile import Compiled
from precast.aot.node import node_facts
from precast.aot.payloads.aoti import AotiPayload
from precast.aot.precompile import PrecompileResult, precompile
from precast.aot.settings import Settings, resolve_settings
from precast.cache.counters import lookup_stats
from precast.cache.locks import live_claims
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


def test_a_removed_object_comes_back_without_a_compile(tmp_path: Path, fake_compile: list[int]) -> None:
    made = precompile(str(TINY), settings(), cache_dir=tmp_path)
    next(Store(tmp_path).layout.objects.rglob("*.zst")).unlink()
    again = precompile(str(TINY), settings(), cache_dir=tmp_path)
    assert (again.status, again.key, len(fake_compile)) == ("repaired", made.key, 1)
    assert Store(tmp_path).check(made.key) == ()


def test_an_older_system_compiles_its_own_and_a_newer_one_takes_that_over(
    tmp_path: Path, fake_compile: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes whose C libraries differ share keys: what the oldest one made runs on all, and replaces the others'."""

    def system(glibc: str) -> None:
        monkeypatch.setattr(AotiPayload, "needs", lambda self, data: {"glibc": glibc})
        monkeypatch.setattr(stamps, "node_facts", lambda *given: {**node_facts(*given), "glibc": lambda: glibc})

    def run() -> tuple[str, str]:
        made = precompile(str(TINY), settings(), cache_dir=tmp_path)
        return made.status, Store(tmp_path).manifest(made.key).stamps["aoti"]["glibc"]

    for glibc, outcome in (
        ("2.36", ("compiled", "2.36")),
        ("2.39", ("up_to_date", "2.36")),
        ("2.31", ("compiled", "2.31")),
        ("2.31", ("up_to_date", "2.31")),
        ("2.36", ("up_to_date", "2.31")),
    ):
        system(glibc)
        dry = plan(tmp_path).status
        assert (dry == "up_to_date") == (outcome[0] == "up_to_date")
        assert run() == outcome
    assert lookup_stats(Store(tmp_path)).misses == {"no_entry_for_model": 1, "target_mismatch": 1}


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


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], object] | None]:
    """The work that was announced, by its name; a test may say what another process does before it is begun."""
    names: dict[str, Callable[[], object] | None] = {}

    @contextmanager
    def done_once(store: Store, work: str, progress: Any) -> Iterator[bool]:
        kind = work.partition("-")[0]
        other = names.pop(kind, None)
        names[work] = None
        if other is not None:
            other()
        yield False

    monkeypatch.setattr("precast.aot.precompile.done_once", done_once)
    return names


def test_what_another_process_finished_just_before_is_found_without_a_trace(
    tmp_path: Path, fake_compile: list[int], works: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: list[str] = []

    def other() -> None:
        assert precompile(str(TINY), settings(), cache_dir=tmp_path).status == "compiled"
        monkeypatch.setattr("precast.aot.planning.plan_compile", lambda *_: traced.append("again"))

    works["request"] = other
    assert precompile(str(TINY), settings(), cache_dir=tmp_path).status == "up_to_date"
    assert (len(fake_compile), traced) == (1, [])


def test_two_requests_with_one_key_compile_once(tmp_path: Path, fake_compile: list[int], works: dict[str, Any]) -> None:
    def make() -> PrecompileResult:
        return precompile(make_spec(lambda: Layers(1)), settings(), cache_dir=tmp_path)

    works["work"] = make
    assert (make().status, len(fake_compile)) == ("up_to_date", 1)
    assert all(name.startswith("work-") for name in works)  # two specs are told apart by their key alone


def test_models_of_one_name_do_not_wait_for_each_other(
    tmp_path: Path, fake_compile: list[int], works: dict[str, Any]
) -> None:
    for folder, extra in (("x", ""), ("y", ""), ("z", "# another model\n")):
        (tmp_path / folder).mkdir()
        text = "from tests.models import Layers, make_spec\ndef base():\n    return make_spec(lambda: Layers(1))\n"
        (tmp_path / folder / "awaited_model.py").write_text(text + extra, encoding="utf-8")
        precompile(f"{tmp_path / folder}/awaited_model.py:base", settings(), cache_dir=tmp_path / folder)
        del sys.modules["awaited_model"]
        sys.path[:] = [p for p in sys.path if p != str(tmp_path / folder)]
    assert len([name for name in works if name.startswith("request-")]) == 2


def test_an_entry_that_is_pruned_between_the_look_and_its_use_is_made_again(
    tmp_path: Path, fake_compile: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = precompile(str(TINY), settings(), cache_dir=tmp_path)
    hold = Store.hold
    times: list[str] = []

    def prune_then_hold(store: Store, key: str) -> Any:
        if not times:
            times.append(key)
            store.quarantine(key, "as `prune` would")
        return hold(store, key)

    monkeypatch.setattr(Store, "hold", prune_then_hold)
    again = precompile(str(TINY), settings(), cache_dir=tmp_path)
    assert (again.status, again.key, len(fake_compile)) == ("compiled", first.key, 2)
    assert Store(tmp_path).check(first.key) == ()


def test_a_new_entry_is_kept_from_prune_until_all_is_done(
    tmp_path: Path, fake_compile: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[set[str]] = []

    def set_tag(store: Store, tag: str, key: str) -> None:
        held.append({claim.subject for claim in live_claims(store.layout.locks)})

    monkeypatch.setattr("precast.aot.precompile.set_tag", set_tag)
    for _ in range(2):
        made = precompile(str(TINY), settings(), cache_dir=tmp_path, tags=["v1"])
    assert [made.key in subjects for subjects in held] == [True, True]
    assert live_claims(Store(tmp_path).layout.locks) == ()


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
