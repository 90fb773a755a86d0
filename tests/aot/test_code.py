"""Code factors: the model's own files, by module name and content, and never by place."""

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from precast.aot.code import model_code, own_sources
from precast.aot.reference import parse_reference
from precast.cache.factors import Factor, entry_key
from precast.cache.lookup import Request
from precast.errors import CompileError

MAIN = """
import contextlib
import hypothesis
import torch
import code_helper
from code_package.layers import width
def factory(): ...
"""
FILES = {
    "code_main.py": MAIN,
    "code_helper.py": "import code_deep\ndef helper(): return code_deep.VALUE\n",
    "code_deep.py": "VALUE = 3\n",
    "code_package/__init__.py": "",
    "code_package/layers.py": "width = 4\ndef layer(): return width\n",
    "code_unused.py": "never = 1\n",
}


def write_model(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    path = list(sys.path)
    yield write_model(tmp_path / "model")
    sys.path[:] = path
    forget()


def forget() -> None:
    for name in [n for n in sys.modules if n.startswith("code_")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def factors_of(model: Path) -> dict[str, Factor]:
    """Import the model afresh from this folder, and return its code factors by name."""
    forget()
    sys.path[:] = [p for p in sys.path if not Path(p, "code_main.py").exists()]
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        parse_reference(f"{model}/code_main.py:factory")._function()
    finally:
        sys.dont_write_bytecode = before
    return {f.name: f for f in model_code(["code_main"], [model / "code_package/layers.py"]).factors}


def test_the_closure_holds_what_the_factory_s_module_refers_to(model: Path) -> None:
    modules = {n for n in factors_of(model) if n.startswith("module:")}
    assert {"module:code_main", "module:code_helper", "module:code_deep", "module:code_package.layers"} <= modules
    assert "module:code_unused" not in modules


def test_torch_and_the_standard_library_are_counted_elsewhere(model: Path) -> None:
    names = set(factors_of(model))
    assert not {n for n in names if "torch" in n or "contextlib" in n}


def test_an_installed_package_counts_by_version_and_content(model: Path) -> None:
    value = factors_of(model)["distribution:hypothesis"].value
    assert isinstance(value, dict)
    assert set(value) == {"version", "digest"}


@pytest.mark.parametrize("file", ["code_main.py", "code_helper.py", "code_deep.py", "code_package/layers.py"])
def test_an_edit_of_a_file_changes_its_own_factor_only(model: Path, file: str) -> None:
    before = factors_of(model)
    with (model / file).open("a", encoding="utf-8") as text:
        text.write("# edited\n")
    after = factors_of(model)
    changed = {n for n in before if before[n] != after[n]}
    assert changed == {"module:" + file.removesuffix(".py").replace("/", ".")}


def test_an_edit_of_an_unused_file_changes_nothing(model: Path) -> None:
    before = factors_of(model)
    (model / "code_unused.py").write_text("never = 2\n", encoding="utf-8")
    assert factors_of(model) == before


def test_the_same_files_in_another_folder_are_the_same_factors(model: Path, tmp_path: Path) -> None:
    before = factors_of(model)
    after = factors_of(Path(shutil.copytree(model, tmp_path / "elsewhere")))
    assert entry_key(tuple(before.values())) == entry_key(tuple(after.values()))


def test_no_absolute_path_is_in_any_factor(model: Path) -> None:
    text = json.dumps([[f.name, f.value] for f in factors_of(model).values()])
    assert str(model) not in text
    assert '"/' not in text


def test_a_traced_file_counts_although_nothing_refers_to_it(model: Path) -> None:
    factors_of(model)
    importlib.import_module("code_unused")
    names = {f.name for f in model_code(["code_main"], [model / "code_unused.py"]).factors}
    assert "module:code_unused" in names


def test_a_traced_file_of_no_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=r"generated\.py"):
        model_code([], [tmp_path / "generated.py"])


def test_a_source_that_is_gone_is_refused(model: Path) -> None:
    factors_of(model)
    (model / "code_deep.py").unlink()
    with pytest.raises(CompileError, match="code_deep"):
        model_code(["code_main"], [])


def test_traced_files_of_torch_are_left_to_its_distribution() -> None:
    import torch.nn.modules.linear as linear

    assert model_code([], [Path(str(linear.__file__))]).factors == ()


def test_precast_s_own_codegen_is_a_compiler_factor() -> None:
    names = {f.name for f in own_sources()}
    assert {"precast.splitter.split", "precast.aot.trace", "precast.aot.payloads.aoti"} <= names
    assert {f.group for f in own_sources()} == {"compiler"}


def test_own_sources_go_into_a_request_without_torch() -> None:
    assert len(Request(own_sources()).digest) == 64


def test_a_module_of_which_only_a_constant_is_taken_counts(model: Path) -> None:
    (model / "code_constants.py").write_text("SCALE = 2.0\n", encoding="utf-8")
    (model / "code_lazy.py").write_text("DEPTH = 2\n", encoding="utf-8")
    (model / "code_main.py").write_text(
        MAIN + "from code_constants import SCALE\ndef later():\n    import code_lazy\n    return code_lazy.DEPTH\n",
        encoding="utf-8",
    )
    assert {"module:code_constants", "module:code_lazy"} <= set(factors_of(model))


def test_relative_imports_are_followed(model: Path) -> None:
    (model / "code_package" / "sizes.py").write_text("SIZE = 1\n", encoding="utf-8")
    layers = model / "code_package" / "layers.py"
    layers.write_text(layers.read_text(encoding="utf-8") + "from .sizes import SIZE\n", encoding="utf-8")
    assert "module:code_package.sizes" in factors_of(model)


def test_what_was_imported_while_the_model_was_built_counts_however_it_was(model: Path) -> None:
    factors_of(model)
    known = frozenset(sys.modules)
    importlib.import_module("code_unused")
    names = {f.name for f in model_code(["code_main"], [], known).factors}
    assert "module:code_unused" in names


def test_a_source_that_changed_after_its_import_is_refused(model: Path) -> None:
    factors_of(model)
    helper = model / "code_helper.py"
    helper.write_text(helper.read_text(encoding="utf-8") + "# edited\n", encoding="utf-8")
    with pytest.raises(CompileError, match="changed since this process imported it"):
        model_code(["code_main"], [])


def test_a_submodule_that_somebody_else_imported_counts_only_where_it_is_named(tmp_path: Path) -> None:
    """Import binds a submodule to its package for everybody; the key must not tell who has imported what."""
    package = tmp_path / "code_shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text("import code_shop\n\n\ndef make():\n    return code_shop.named.value\n")
    (package / "named.py").write_text("value = 1\n")
    (package / "stranger.py").write_text("value = 2\n")
    sys.path.insert(0, str(tmp_path))
    try:
        importlib.import_module("code_shop.model")
        importlib.import_module("code_shop.named")
        known = frozenset(sys.modules)
        before = model_code(["code_shop.model"], (), known)
        importlib.import_module("code_shop.stranger")
        after = model_code(["code_shop.model"], (), frozenset(sys.modules))
    finally:
        sys.path.remove(str(tmp_path))
    assert {f.name for f in before.factors} == {"module:code_shop", "module:code_shop.model", "module:code_shop.named"}
    assert after == before


def test_every_source_that_makes_code_for_a_described_gpu_counts() -> None:
    counted = {f.name for f in own_sources()}
    seams = ("described", "described_aoti", "described_facts", "kernels", "tuning")
    assert {f"precast.aot.torch_seams.{name}" for name in seams} <= counted
    assert {"precast.aot.described", "precast.aot.kernels", "precast.aot.elf"} <= counted
