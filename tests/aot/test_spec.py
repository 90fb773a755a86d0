"""The spec imports nothing heavy, and is a value."""

import subprocess
import sys

import pytest

from precast.aot.spec import TensorInput


def test_an_input_is_a_value_with_int64_by_default() -> None:
    assert TensorInput("ids", ("tokens",)) == TensorInput("ids", ("tokens",), "int64")
    with pytest.raises(AttributeError):
        TensorInput("ids", ()).name = "x"  # type: ignore[misc]


@pytest.mark.parametrize(
    "module",
    [
        "precast", "precast.aot.spec", "precast.aot.settings", "precast.aot.reference", "precast.aot.request",
        "precast.aot.precompile", "precast.aot.verify", "precast.aot.load", "precast.aot.sources",
        "precast.splitter", "precast.aot.stamps",
    ],
)  # fmt: skip
def test_importing_costs_no_torch(module: str) -> None:
    program = f"import sys; sys.path.insert(0, 'src'); import {module}; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert out.stdout == b"False\n"
