"""W11 and W8: what differs only in a baked constant, and what an edit of precast itself changes."""

# mypy: allow-subclassing-any

import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import REPOSITORY
from tests.models import WIDTH, make_spec
from tests.scenarios.conftest import OPTIONS, copy_model
from torch import Tensor, nn

from precast.aot.precompile import precompile
from precast.aot.settings import resolve_settings


class Number(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * self.value + 1


class Closure(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.function: Callable[[Tensor], Tensor] = lambda x: torch.relu(x) * value + 1

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Buffer(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.register_buffer("value", torch.full((WIDTH,), value))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * self.value + 1


class Attribute(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.table = torch.full((WIDTH,), value)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * self.table + 1


def default_argument(value: float) -> nn.Module:
    class Default(nn.Module):
        def forward(self, x: Tensor, scale: float = value) -> Tensor:
            return torch.relu(x) * scale + 1

    return Default()


@pytest.mark.parametrize("make", [Number, Closure, Buffer, Attribute, default_argument])
def test_two_instances_that_differ_in_one_constant_never_share(
    make: Callable[[float], nn.Module], tmp_path: Path
) -> None:
    flags = resolve_settings({"target": "cpu"}, {})
    keys = [
        precompile(make_spec(partial(make, v), ops=()), flags, cache_dir=tmp_path, dry_run=True).key
        for v in (2.0, 5.0, 2.0)
    ]
    assert keys[0] == keys[2] != keys[1]


def key_with(source: Path, model: str, root: Path) -> str:
    command = [sys.executable, "-m", "precast.cli", "precompile", model, "--cache-dir", str(root), *OPTIONS]
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(source)}
    done = subprocess.run([*command, "--dry-run", "--format", "quiet"], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("edited", ["splitter/clean.py", "aot/payloads/aoti.py"])
def test_an_edit_of_precast_s_own_code_changes_the_key(edited: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(REPOSITORY / "src" / "precast", source / "precast", ignore=shutil.ignore_patterns("__pycache__"))
    model = f"{copy_model(tmp_path / 'x')}:base"
    before = key_with(source, model, tmp_path / "R")
    assert before == key_with(REPOSITORY / "src", model, tmp_path / "R")
    with (source / "precast" / edited).open("a", encoding="utf-8") as file:
        file.write("# edited\n")
    assert key_with(source, model, tmp_path / "R") != before


EDITS = (
    "variable",
    "forward variable",
    "other variable",
    "table",
    "source",
    "unrelated file",
    "token budget",
    "jobs",
    "override",
)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=st.sets(st.sampled_from(EDITS), max_size=3))
def test_the_quick_answer_and_a_full_trace_agree(
    chosen: set[str], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, fake_compile: list[str]
) -> None:
    place = tmp_path_factory.mktemp("agree")
    file = copy_model(place / "x")
    with monkeypatch.context() as patch:
        first = _key(place, file, {}, {}, place / "R", dry_run=False)
        flags, overrides = _edit(chosen, file, patch)
        quick = _key(place, file, flags, overrides, place / "R", dry_run=True)
        full = _key(place, file, flags, overrides, place / "empty", dry_run=True)
    assert quick[1] == full[1]
    assert (quick[0] == "up_to_date") == (full[1] == first[1])
    assert (full[1] == first[1]) == (not chosen - {"other variable", "unrelated file", "jobs"})


def _key(
    place: Path, file: Path, flags: dict[str, object], overrides: dict[str, object], root: Path, *, dry_run: bool
) -> tuple[str, str]:
    _forget()
    given = resolve_settings({"target": "cpu", "max_num_batched_tokens": 512, **flags}, {})
    made = precompile(f"{file}:base", given, overrides=overrides, cache_dir=root, dry_run=dry_run)  # type: ignore[arg-type]
    sys.path[:] = [p for p in sys.path if not p.startswith(str(place))]
    return made.status, made.key


def _edit(chosen: set[str], file: Path, patch: pytest.MonkeyPatch) -> tuple[dict[str, object], dict[str, object]]:
    flags: dict[str, object] = {}
    overrides: dict[str, object] = {}
    if "variable" in chosen:
        patch.setenv("SCENARIO_FACTOR", "3")
    if "forward variable" in chosen:
        patch.setenv("SCENARIO_SHIFT", "1")
    if "other variable" in chosen:
        patch.setenv("SCENARIO_NOBODY_READS", "3")
    if "table" in chosen:
        file.with_name("table.json").write_text('{"factor": 7}', encoding="utf-8")
    if "source" in chosen:
        file.write_text(file.read_text(encoding="utf-8") + "# edited\n", encoding="utf-8")
    if "unrelated file" in chosen:
        file.with_name("unrelated.py").write_text("", encoding="utf-8")
    if "token budget" in chosen:
        flags["max_num_batched_tokens"] = 300
    if "jobs" in chosen:
        flags["jobs"] = 3
    if "override" in chosen:
        overrides["draft_tokens"] = 2
    return flags, overrides


def _forget() -> None:
    for name in [n for n in sys.modules if n.startswith("scenario_")]:
        del sys.modules[name]
