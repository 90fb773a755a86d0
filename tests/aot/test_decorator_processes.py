"""Decorated classes in fresh processes that share a store: no later process traces, and every answer is its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import REPOSITORY


def run(root: Path, *args: str) -> dict[str, Any]:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": "/nonexistent",
        "PYTHONPATH": os.pathsep.join((str(REPOSITORY / "src"), str(REPOSITORY))),
        "PRECAST_CACHE_DIR": str(root),
    }
    command = [sys.executable, "-m", "tests.aot.decorated_child", *args]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def expected(*values: float) -> list[Any]:
    return [[[3 * value + 1]] * 2 for value in values]


def test_instances_share_a_store_across_processes_and_never_an_answer(tmp_path: Path) -> None:
    first = run(tmp_path, "--exported", "2")
    assert (first["results"], first["compiled"], first["counts"]["dynamo_frames"]) == (expected(2), 1, 1)
    second = run(tmp_path, "--exported", "5", "2")
    assert (second["results"], second["compiled"], second["counts"]["dynamo_frames"]) == (expected(5, 2), 1, 1)
    third = run(tmp_path, "--exported", "2", "5")
    assert (third["results"], third["compiled"], third["counts"]["dynamo_frames"]) == (expected(2, 5), 0, 0)


@pytest.mark.compiles
def test_a_second_process_loads_what_the_first_compiled_and_nothing_compiles(tmp_path: Path) -> None:
    first = run(tmp_path, "2")
    assert first["results"] == expected(2)
    assert first["counts"]["dynamo_frames"] == 1
    second = run(tmp_path, "2")
    assert second["results"] == expected(2)
    assert set(second["counts"].values()) == {0}
    assert not second["dynamo"]
