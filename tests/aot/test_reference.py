"""MODEL in its four forms."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import TINY

from precast.aot.reference import ModelReference, SpecReference, parse_reference, reference_of_hint
from precast.aot.spec import ModelSpec
from precast.errors import (
    ConfigKeyError,
    FactoryError,
    PrecastError,
    StoreAccessError,
    UnknownModelError,
    UsageError,
)

FACTORY = """
import precast
def build(): ...
def sample(module, n, seed): ...
def factory(layers=2, width=4):
    if layers == 0:
        raise ZeroDivisionError("no layers")
    if layers < 0:
        raise precast.errors.UsageError("layers must not be negative")
    return precast.ModelSpec("m", build, (), (), sample, {"layers": layers, "width": width})
def open_factory(**config):
    return precast.ModelSpec("m", build, (), (), sample, config)
def wrong():
    return 3
NUMBER = 3
import precast.errors
"""


@pytest.fixture(autouse=True)
def clean_imports() -> Iterator[None]:
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("ref_"):
            del sys.modules[name]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "ref_model.py"
    path.write_text(FACTORY, encoding="utf-8")
    return path


def spec(text: str, **overrides: Any) -> ModelSpec:
    return parse_reference(text).spec(overrides)


def test_a_file_names_a_factory(file: Path) -> None:
    reference = parse_reference(f"{file}:factory")
    assert (reference.kind, reference.text) == ("file", "ref_model.py:factory")
    assert reference.import_path == (str(file.parent),)
    assert dict(reference.spec({"layers": 3}).config) == {"layers": 3, "width": 4}


def test_a_file_imports_its_siblings(tmp_path: Path) -> None:
    (tmp_path / "ref_sibling.py").write_text(FACTORY, encoding="utf-8")
    (tmp_path / "ref_main.py").write_text("from ref_sibling import factory", encoding="utf-8")
    assert spec(f"{tmp_path}/ref_main.py:factory").name == "m"


def test_a_module_names_a_factory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(file.parent))
    reference = parse_reference("ref_model:factory")
    assert (reference.kind, reference.text, reference.import_path) == ("module", "ref_model:factory", ())
    assert reference.spec({}).name == "m"


def test_a_folder_names_its_family_by_architecture() -> None:
    reference = parse_reference(str(TINY))
    assert (reference.kind, reference.text, reference.module) == (
        "folder",
        "tiny-llama",
        "precast.examples.decoder.spec",
    )
    assert reference.spec({"num_hidden_layers": 2}).config["num_hidden_layers"] == 2


def test_the_hub_is_asked_for_the_config_at_a_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[Any] = []

    def download(name: str, file: str, revision: str | None) -> str:
        asked.append((name, file, revision))
        return str(TINY / "config.json")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    reference = parse_reference("hf:org/name@v1")
    assert parse_reference("hf:org/name").text == "hf:org/name"
    assert asked == [("org/name", "config.json", "v1"), ("org/name", "config.json", None)]
    assert (reference.kind, reference.text) == ("hub", "hf:org/name@v1")
    assert reference.factors({}) == parse_reference(str(TINY)).factors({})


def test_a_hub_that_cannot_be_reached_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def download(*_: Any, **__: Any) -> str:
        raise OSError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(UnknownModelError) as caught:
        parse_reference("hf:org/name")
    assert caught.value.why == "no route"


@pytest.mark.parametrize("form", ["file", "folder"])
def test_no_factor_of_a_reference_holds_a_path(form: str, file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "somewhere"
    folder.mkdir()
    (folder / "config.json").write_bytes((TINY / "config.json").read_bytes())
    reference = parse_reference({"file": f"{file}:factory", "folder": str(folder)}[form])
    text = json.dumps([[f.value for f in reference.factors({})], reference.text])
    assert str(tmp_path) not in text
    assert "somewhere" not in json.dumps([f.value for f in reference.factors({})])


def test_the_same_config_in_another_folder_has_the_same_factors(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((TINY / "config.json").read_bytes())
    assert parse_reference(str(tmp_path)).factors({}) == parse_reference(str(TINY)).factors({})


@pytest.mark.parametrize("key", ["_name_or_path", "transformers_version"])
def test_a_config_key_that_says_nothing_of_the_model_is_no_factor(tmp_path: Path, key: str) -> None:
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, key: "x"}), encoding="utf-8")
    assert parse_reference(str(tmp_path)).factors({}) == parse_reference(str(TINY)).factors({})


def test_an_unknown_config_key_is_a_factor(tmp_path: Path) -> None:
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "brand_new_field": 1}), encoding="utf-8")
    assert parse_reference(str(tmp_path)).factors({}) != parse_reference(str(TINY)).factors({})


def test_a_secret_among_the_config_is_a_factor_by_its_digest() -> None:
    found = {f.name: f.value for f in parse_reference(str(TINY)).factors({"hub_token": "hunter2", "n_token": 3})}
    assert str(found["model.hub_token"]).startswith("sha256:")
    assert found["model.n_token"] == 3


def test_an_override_replaces_the_config_key() -> None:
    factors = {f.name: f.value for f in parse_reference(str(TINY)).factors({"num_hidden_layers": 9})}
    assert factors["model.num_hidden_layers"] == 9


def test_a_spec_that_a_caller_made_is_never_looked_up_without_a_trace() -> None:
    spec = parse_reference(str(TINY)).spec({})
    reference = SpecReference(spec)
    assert not reference.quick
    assert reference.factors({}) == ()
    assert reference.spec({}) is spec
    with pytest.raises(ConfigKeyError):
        reference.spec({"num_hidden_layers": 2})


def test_another_config_has_other_factors(tmp_path: Path) -> None:
    config = json.loads((TINY / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-6}), encoding="utf-8")
    assert parse_reference(str(tmp_path)).factors({}) != parse_reference(str(TINY)).factors({})


@pytest.mark.parametrize(
    "text", ["", "nothing", "no/such/file.py:factory", "a b:c", "a.b:", ":f", "hf", "x-y.z:f", "/nonexistent"]
)
def test_a_name_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(UnknownModelError) as caught:
        parse_reference(text)
    assert caught.value.hint


def test_a_file_without_a_factory_says_how_to_name_it(file: Path) -> None:
    with pytest.raises(UnknownModelError) as caught:
        parse_reference(str(file))
    assert f"{file}:FACTORY" in caught.value.hint


def test_a_file_whose_name_is_no_identifier_is_refused(tmp_path: Path) -> None:
    (tmp_path / "my-model.py").touch()
    with pytest.raises(UnknownModelError, match="cannot be imported"):
        parse_reference(f"{tmp_path}/my-model.py:factory")


@pytest.mark.parametrize(
    "content", [None, "{", "[1]", '{"architectures": ["Unheard"]}', "{}", '{"architectures": null}']
)
def test_a_folder_without_a_usable_config_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(UnknownModelError):
        parse_reference(str(tmp_path))


def test_a_missing_function_is_refused_with_the_nearest(file: Path) -> None:
    with pytest.raises(UnknownModelError) as caught:
        spec(f"{file}:factori")
    assert caught.value.hint == "did you mean `factory`?"


@pytest.mark.parametrize("name", ["NUMBER", "absent_altogether"])
def test_what_is_no_function_is_refused_with_those_that_are(file: Path, name: str) -> None:
    with pytest.raises(UnknownModelError):
        spec(f"{file}:{name}")


@pytest.mark.parametrize("text", ["ref_absent:factory", "precast.absent:factory"])
def test_a_missing_module_is_refused(text: str) -> None:
    with pytest.raises(UnknownModelError, match="no module"):
        spec(text)


def test_a_module_that_lacks_a_dependency_blames_the_dependency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ref_broken.py").write_text("\n\nimport absent_dependency\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(FactoryError, match="absent_dependency") as caught:
        spec("ref_broken:factory")
    assert "ref_broken.py:3" in caught.value.what


def test_a_module_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text(FACTORY, encoding="utf-8")
    with pytest.raises(UnknownModelError, match="taken"):
        spec(f"{tmp_path}/json.py:factory")


def test_a_file_that_raises_leaves_no_module_behind(tmp_path: Path) -> None:
    (tmp_path / "ref_bad.py").write_text("x = 1\n1 / 0\n", encoding="utf-8")
    with pytest.raises(FactoryError, match="ZeroDivisionError") as caught:
        spec(f"{tmp_path}/ref_bad.py:factory")
    assert "ref_bad.py:2" in caught.value.what
    assert "ref_bad" not in sys.modules


def test_a_factory_that_raises_is_named_with_its_line(file: Path) -> None:
    with pytest.raises(FactoryError, match="no layers") as caught:
        spec(f"{file}:factory", layers=0)
    assert "ref_model.py:7" in caught.value.what


def test_an_error_on_purpose_passes_through(file: Path) -> None:
    with pytest.raises(UsageError, match="negative"):
        spec(f"{file}:factory", layers=-1)


def test_a_factory_that_returns_something_else_is_refused(file: Path) -> None:
    with pytest.raises(FactoryError, match="returned a int"):
        spec(f"{file}:wrong")


def test_an_unknown_override_is_refused_with_the_nearest(file: Path) -> None:
    with pytest.raises(ConfigKeyError) as caught:
        spec(f"{file}:factory", layer=1)
    assert caught.value.hint == "did you mean `layers`?"


def test_a_factory_with_open_keywords_takes_any_override(file: Path) -> None:
    assert dict(spec(f"{file}:open_factory", anything=1).config) == {"anything": 1}


def test_a_hint_leads_back_to_what_was_named(file: Path) -> None:
    for text in (f"{file}:factory", "ref_model:factory", str(TINY)):
        named = parse_reference(text)
        assert parse_reference(reference_of_hint(named.hint, "other:factory")) == named


def test_without_a_hint_the_fallback_is_named() -> None:
    assert reference_of_hint({}, "shop.model:tiny") == "shop.model:tiny"
    assert reference_of_hint({"reference": "", "folder": "/somewhere"}) == ""


def test_telling_what_a_name_means_imports_nothing(file: Path) -> None:
    parse_reference(f"{file}:factory")
    parse_reference("ref_model:factory")
    assert "ref_model" not in sys.modules


def test_a_reference_is_a_value() -> None:
    assert ModelReference("module", "a:b", "a", "b") == parse_reference("a:b")
    assert issubclass(UnknownModelError, PrecastError)


def test_without_a_home_the_hub_s_files_are_not_put_into_a_folder_that_is_called_tilde(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreAccessError) as caught:
        parse_reference("hf:org/name")
    assert "HF_HOME" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
