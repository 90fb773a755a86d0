"""The Triton kernels, run without a GPU in Triton's interpreter."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("interpret_kernels.py")
SOURCES = Path(__file__).parents[2] / "src"

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or find_spec("numpy") is None,
    reason="needs triton and numpy for the interpreter",
)


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(SOURCES)}
    result = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, float] = json.loads(result.stdout)
    if "obstacle" in found:
        pytest.skip(f"Triton's interpreter cannot loop up to a loaded bound here: {found['obstacle']}")
    return found


def test_kernels_agree_with_the_cpu_in_float32(errors: dict[str, float]) -> None:
    assert {name: error for name, error in errors.items() if name != "float16" and not error < 1e-5} == {}
    assert len(errors) == 10


def test_kernels_agree_with_the_cpu_in_float16(errors: dict[str, float]) -> None:
    assert errors["float16"] < 2e-3
