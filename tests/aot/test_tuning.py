"""Entries that ship several configs: an entry remembers what a node chose, and one without a choice asks nothing."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.aot.support import RAW, manifest, publish

from precast.aot.payloads.base import BuildJob
from precast.aot.payloads.inductor import KEEP, InductorPayload
from precast.aot.request import compiler_factors
from precast.aot.settings import resolve_settings
from precast.aot.sources import EntrySource, MegaSource, StoreSource
from precast.aot.target import named_target
from precast.aot.tuning import earlier_choices, ships_configs
from precast.cache.factors import Factor
from precast.cache.manifest import Manifest
from precast.cache.tuned import read_tuned
from precast.errors import ConfigValueError


def entry(tune: str, kind: str = "inductor") -> Manifest:
    settings = resolve_settings({"target": "h200", "payload": kind, "tune": tune})
    target = named_target("h200", {})
    options = {**InductorPayload().options(target), **settings.inductor_options()}
    made = manifest(factors=(Factor("compiler", "inductor_config", dict(sorted(options.items()))),))
    return replace(made, payloads=tuple(replace(p, kind=kind) for p in made.payloads))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, str], Any]]:
    """The choices that each load was given, and what it tells a new one to."""
    given: list[tuple[dict[str, str], Any]] = []

    @contextmanager
    def configs_chosen(chosen: Mapping[str, str], on_chosen: Any) -> Iterator[None]:
        given.append((dict(chosen), on_chosen))
        yield

    monkeypatch.setattr("precast.aot.torch_seams.tuning.configs_chosen", configs_chosen)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    return given


def open_entry(root: Path) -> StoreSource:
    store = publish(root, entry("keep"), RAW)
    return StoreSource(store, store.manifest(entry("keep").key), strict=True)


def test_a_choice_made_after_one_load_is_given_to_the_next(tmp_path: Path, loads: list[Any]) -> None:
    source: EntrySource = open_entry(tmp_path)
    with earlier_choices(source):
        pass
    before, tell = loads[0]
    assert before == {}
    tell("kernel", "config")
    with earlier_choices(source):
        pass
    assert loads[1][0] == {"kernel": "config"}


def test_another_kind_of_gpu_chooses_for_itself(
    tmp_path: Path, loads: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_entry(tmp_path)
    with earlier_choices(source):
        pass
    loads[0][1]("kernel", "config")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    with earlier_choices(source):
        pass
    assert loads[1][0] == {}


def test_a_mega_file_is_not_written(tmp_path: Path, loads: list[Any]) -> None:
    stored = open_entry(tmp_path)
    file = MegaSource.open(stored.store.layout.entry(stored.manifest.key) / "model.mega")
    before = file.path.read_bytes()
    with earlier_choices(file):
        pass
    loads[0][1]("kernel", "config")
    assert file.path.read_bytes() == before
    assert read_tuned(stored.store, stored.manifest, "NVIDIA H200") == {}


@pytest.mark.parametrize("made", [entry("static"), entry("static", "aoti"), manifest()])
def test_where_there_is_no_choice_nothing_is_asked(
    tmp_path: Path, loads: list[Any], made: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: pytest.fail("the GPU was asked"))
    store = publish(tmp_path, made, RAW)
    assert not ships_configs(made)
    with earlier_choices(StoreSource(store, made, strict=True)):
        pass
    assert loads == []


def test_what_tune_says_is_in_the_key_by_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.aot.request._distribution", lambda name: name)
    target = named_target("h200", {})
    keep, static = (resolve_settings({"target": "h200", "payload": "inductor", "tune": t}) for t in ("keep", "static"))
    of_static = compiler_factors(static, target)
    assert [f.label for f in compiler_factors(keep, target) if f not in of_static] == ["compiler/inductor_config"]
    assert keep.key_values() == static.key_values()
    assert ships_configs(entry("keep"))
    assert set(KEEP.items()) <= set(keep.inductor_options().items())


def test_one_config_is_shipped_unless_somebody_asks_for_all() -> None:
    assert (resolve_settings({"target": "h200"}).tune, resolve_settings({"target": "h200"}).payload) == (
        "static",
        "aoti",
    )
    kept = resolve_settings({"target": "h200"}, {"PRECAST_TUNE": "keep"})
    assert (kept.tune, kept.payload) == ("keep", "inductor")
    record = next(r for r in kept.record if r.name == "payload")
    assert (record.lowered_from, record.reason) == ("auto", "an aoti payload holds one config of a kernel")


def test_an_aoti_payload_cannot_keep_configs() -> None:
    with pytest.raises(ConfigValueError, match="cannot be 'keep' in an aoti payload") as caught:
        resolve_settings({"target": "h200", "tune": "keep", "payload": "aoti"})
    assert "--payload inductor" in caught.value.hint
    with pytest.raises(ConfigValueError):
        resolve_settings({"target": "h200", "tune": "all"})


@pytest.mark.parametrize("payload", ["auto", "aoti", "inductor"])
def test_on_a_cpu_there_is_nothing_to_tune(payload: str) -> None:
    settings = resolve_settings({"target": "x86-64-v3", "tune": "keep", "payload": payload})
    record = next(r for r in settings.record if r.name == "tune")
    assert (settings.tune, record.lowered_from) == ("static", "keep")
    assert settings.payload == ("inductor" if payload == "inductor" else "aoti")
    assert settings.inductor_options() == {}


def test_the_user_s_own_inductor_option_has_the_last_word() -> None:
    given = {"target": "h200", "tune": "keep", "inductor_config": {"triton.autotune_pointwise": False}}
    assert resolve_settings(given).inductor_options() == {"triton.autotune_pointwise": False}


@pytest.mark.parametrize(("tune", "stored"), [("static", "first"), ("keep", "all")])
def test_a_build_stores_the_first_config_or_all(
    tune: str, stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside: list[str] = []

    @contextmanager
    def first_configs() -> Iterator[None]:
        inside.append("first")
        yield
        inside.append("left")

    def build_artifact(program: Any, options: Any) -> bytes:
        inside.append("built")
        return b"artifact"

    monkeypatch.setattr("precast.aot.torch_seams.tuning.first_configs", first_configs)
    monkeypatch.setattr("precast.aot.torch_seams.inductor.build_artifact", build_artifact)
    monkeypatch.setattr("precast.aot.payloads.inductor.pass_options", lambda target: {})
    options = resolve_settings({"target": "h200", "payload": "inductor", "tune": tune}).inductor_options()
    InductorPayload().build(BuildJob(None, named_target("h200", {}), options, tmp_path))
    assert inside == (["first", "built", "left"] if stored == "first" else ["built"])
