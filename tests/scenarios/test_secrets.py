"""A secret among the config values moves the key, and is stored nowhere."""

from pathlib import Path

from tests.scenarios.conftest import copy_model

from precast.aot.precompile import precompile
from precast.aot.settings import resolve_settings
from precast.aot.subject import find_subject
from precast.cache.store import Store

SECRET = "hunter2-very-secret"


def test_a_secret_override_is_kept_by_its_digest_only(tmp_path: Path, fake_compile: list[str]) -> None:
    model, root = f"{copy_model(tmp_path / 'x')}:base", tmp_path / "R"
    settings = resolve_settings({"target": "cpu", "max_num_batched_tokens": 512}, {})
    keys = [precompile(model, settings, overrides={"api_secret": s}, cache_dir=root).key for s in (SECRET, "other")]
    assert keys[0] != keys[1]
    assert precompile(model, settings, overrides={"api_secret": SECRET}, cache_dir=root).status == "up_to_date"

    store = Store(root)
    stored = [p.read_bytes() for p in (root / "v1").rglob("*") if p.is_file()]
    stored += [store.read_object(name, size) for name, size in store.manifest(keys[0]).objects.items()]
    assert stored
    assert not any(SECRET.encode() in data for data in stored)
    assert find_subject(keys[0], {}, None, store).spec is None  # the model cannot be built again without it


def test_without_a_secret_the_model_is_found_again(tmp_path: Path, fake_compile: list[str]) -> None:
    model, root = f"{copy_model(tmp_path / 'x')}:base", tmp_path / "R"
    settings = resolve_settings({"target": "cpu", "max_num_batched_tokens": 512}, {})
    key = precompile(model, settings, overrides={"draft_tokens": 1}, cache_dir=root).key
    spec = find_subject(key, {}, None, Store(root)).spec
    assert spec is not None
    assert spec().name == "scenario"
