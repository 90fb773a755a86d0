"""Bad input of the real library through the real command line: three lines, its own exit code, nothing half-written."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.conftest import REPOSITORY, TINY, TinyEntry

from precast.errors import ExitCode

BAD = Path(__file__).with_name("bad_models.py")
TINY_OPTIONS = ("--target", "cpu", "--max-num-batched-tokens", "512")


@pytest.fixture(autouse=True)
def own_path() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path


@pytest.mark.parametrize(
    ("model", "code", "exit_code", "words"),
    [
        ("nosuch.py:f", "model.unknown", ExitCode.USAGE, "nosuch.py"),
        ("nosuch:f", "model.unknown", ExitCode.USAGE, "nosuch"),
        ("nosuchfolder", "model.unknown", ExitCode.USAGE, "nosuchfolder"),
        (f"{BAD}", "model.unknown", ExitCode.USAGE, ":FACTORY"),
        (f"{BAD}:god", "model.unknown", ExitCode.USAGE, "did you mean `good`?"),
        (f"{BAD}:no_spec", "model.factory_raised", ExitCode.COMPILE_FAILED, "returned a int"),
        (f"{BAD}:factory_raises", "model.factory_raised", ExitCode.COMPILE_FAILED, "ValueError: boom"),
        (f"{BAD}:constructor_raises", "model.factory_raised", ExitCode.COMPILE_FAILED, "no such layer"),
        (f"{BAD}:prints", "trace.graph_break", ExitCode.COMPILE_FAILED, 'print("a graph break")'),
        (f"{BAD}:branches", "trace.graph_break", ExitCode.COMPILE_FAILED, "x.sum() > 0"),
        (f"{BAD}:no_fake", "trace.unsupported_op", ExitCode.COMPILE_FAILED, "precast_bad"),
        (f"{BAD}:fixed", "trace.graph_break", ExitCode.COMPILE_FAILED, "fixed dim 0 of `x` to 7"),
        (f"{BAD}:assigns", "trace.unsupported_op", ExitCode.COMPILE_FAILED, "`last`"),
        (f"{BAD}:absent_op", "split.op_absent", ExitCode.USAGE, "custom ops that occur: none"),
    ],
)
def test_a_model_that_cannot_be_compiled_is_refused_in_three_lines(
    run: Run, root: Path, model: str, code: str, exit_code: ExitCode, words: str
) -> None:
    told = run("precompile", model, "--target", "cpu")
    lines = told.err.strip().splitlines()
    assert told.code == exit_code
    assert len([x for x in lines if x.startswith(("error: ", "why: ", "next: "))]) == len(lines) <= 3
    assert words in told.err
    answer = run("precompile", model, "--target", "cpu", "--json").json()
    assert [e["code"] for e in answer["errors"]] == [code]
    assert not (root / "v1" / "entries").exists() or not list((root / "v1" / "entries").iterdir())


def test_a_graph_break_is_told_at_its_line(run: Run, root: Path) -> None:
    number = next(i for i, x in enumerate(BAD.read_text(encoding="utf-8").splitlines(), 1) if "a graph break" in x)
    assert f"bad_models.py:{number}" in run("precompile", f"{BAD}:prints", "--target", "cpu").err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--set", "widht=4"), "did you mean `width`?"),
        (("--splitting-op", "precast::pagd_attention"), "never occurs"),
    ],
)
def test_an_unknown_key_or_op_is_a_usage_error(run: Run, root: Path, options: tuple[str, ...], words: str) -> None:
    told = run("precompile", f"{BAD}:good", "--target", "cpu", *options)
    assert (told.code, words in told.err) == (ExitCode.USAGE, True)


def test_an_unknown_key_of_a_config_folder_names_the_near_one(run: Run, root: Path) -> None:
    told = run("precompile", str(TINY), "--target", "cpu", "--set", "hiden_size=3")
    assert (told.code, "did you mean `hidden_size`?" in told.err) == (ExitCode.USAGE, True)


def test_the_ops_that_occur_are_named(run: Run, root: Path) -> None:
    told = run("precompile", str(TINY), "--target", "cpu", "--splitting-op", "precast::pagd_attention")
    assert "custom ops that occur: precast::paged_attention" in told.err


@pytest.mark.parametrize("command", [["precompile", str(TINY)], ["verify", str(TINY)]])
def test_python_o_is_refused(command: list[str], tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "PRECAST_CACHE_DIR": str(tmp_path / "R")}
    done = subprocess.run(
        [sys.executable, "-O", "-m", "precast.cli", *command], env=environ, capture_output=True, text=True
    )
    assert done.returncode == ExitCode.INCOMPATIBLE
    assert "python -O" in done.stderr


def weights(folder: Path, change: str) -> Path:
    """Copy the tiny config with weights of which one is wrong."""
    import torch
    from safetensors.torch import save_file

    from precast.examples.decoder.spec import tiny
    from precast.examples.decoder.weights import named_weights

    shutil.copytree(TINY, folder)
    tensors = {name: torch.zeros(tuple(t.shape)) for name, t in named_weights(tiny().build()).items()}
    name = "model.layers.0.mlp.down_proj.weight"
    if change == "missing":
        del tensors[name]
    else:
        tensors[name] = torch.zeros(3, 3)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.compiles
@pytest.mark.parametrize("change", ["missing", "shape"])
def test_a_missing_or_misshapen_weight_is_named(run: Run, tiny_entry: TinyEntry, tmp_path: Path, change: str) -> None:
    folder = weights(tmp_path / "tiny-llama", change)
    told = run("verify", str(folder), *TINY_OPTIONS, "--cache-dir", str(tiny_entry.copy_to(tmp_path / "R").root))
    assert told.code == ExitCode.COMPILE_FAILED
    assert "model.layers.0.mlp.down_proj.weight" in told.err


@pytest.mark.compiles
@pytest.mark.parametrize("member", ["object", "mega", "manifest"])
def test_a_truncated_member_is_damage(run: Run, tiny_entry: TinyEntry, tmp_path: Path, member: str) -> None:
    entry = tiny_entry.copy_to(tmp_path / "R")
    place = entry.root / "v1" / "entries" / entry.key
    payload = json.loads((place / "manifest.json").read_bytes())["payloads"][0]["object"]
    paths = {
        "object": entry.root / "v1" / "objects" / payload[:2] / f"{payload}.zst",
        "mega": place / "model.mega",
        "manifest": place / "manifest.json",
    }
    damaged = paths[member]
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    told = run("verify", entry.key, "--cache-dir", str(entry.root), "--level", "files")
    assert told.code == ExitCode.CORRUPT
    assert len(told.err.strip().splitlines()) <= 3
