"""The decode loop through a real artifact, in a fresh process: the same tokens as the eager model."""

import os
import subprocess
import sys

import pytest
from tests.conftest import REPOSITORY, TinyEntry


@pytest.mark.compiles
def test_a_loaded_artifact_decodes_the_eager_model_s_tokens(tiny_entry: TinyEntry) -> None:
    script = [sys.executable, str(REPOSITORY / "examples" / "generate.py"), str(tiny_entry.folder)]
    options = ["--artifact", tiny_entry.key, "--cache-dir", str(tiny_entry.root), "--tokens", "24", "--compare"]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "PATH": "/nonexistent"}
    done = subprocess.run([*script, *options], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    made = {
        line.split(":")[0]: line.split(":")[1].split()
        for line in lines
        if line.startswith(("precompiled: ", "eager: ")) and "tokens per second" not in line
    }
    assert len(made["eager"]) == 24
    assert made["precompiled"] == made["eager"]
    assert sum("tokens per second" in line for line in lines) == 2
