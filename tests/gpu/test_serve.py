"""Continuous batching on real graphs: the tokens of each request are those that eager code gives it alone."""

import pytest
import torch
from tests.conftest import TINY
from tests.gpu.conftest import GpuEntry

from precast.examples.serve import main

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

# In float32: with random weights two tokens are often nearly equal, and bfloat16 rounds them either way.
EXACT = ["--set", "dtype=float32", "--set", "num_hidden_layers=2", "--device", "cuda", "--compare"]


@pytest.fixture
def artifact(gpu_entry: GpuEntry) -> list[str]:
    assert gpu_entry.overrides == {"num_hidden_layers": 2, "dtype": "float32"}
    return ["--artifact", gpu_entry.key, "--cache-dir", str(gpu_entry.root)]


def steps(out: str) -> dict[str, int]:
    """Read the steps of each mode from what the command printed."""
    lines = [line.split() for line in out.splitlines() if " steps, " in line and not line.startswith("without")]
    return {words[0].rstrip(":"): int(words[1]) for words in lines}


def test_eager_code_serves_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(TINY), *EXACT]) == 0, capsys.readouterr()
    assert "all 16 equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mode", "used"),
    [
        ("NONE", {"NONE"}),
        ("PIECEWISE", {"PIECEWISE"}),
        ("FULL", {"FULL"}),
        ("FULL_DECODE_ONLY", {"FULL", "NONE"}),
        ("FULL_AND_PIECEWISE", {"FULL", "PIECEWISE"}),
    ],
)
def test_an_artifact_serves_in_each_mode(
    artifact: list[str], mode: str, used: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    # Twice as many tokens as requests is the largest size by default: with 32 requests that is the whole budget of 64.
    assert main([str(TINY), *artifact, *EXACT, "--mode", mode, "--max-num-seqs", "32"]) == 0, capsys.readouterr()

    out = capsys.readouterr().out
    assert "all 16 equal" in out
    assert {name for name, count in steps(out).items() if count} == used


def test_few_blocks_make_requests_wait(artifact: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--kv-blocks", "9", "--join-every", "0", "--longest-prompt", "40", "--tokens", "60"]

    assert main([str(TINY), *artifact, *EXACT, *few]) == 0, capsys.readouterr()
    out = capsys.readouterr().out
    assert "all 16 equal" in out
    assert " 0 preemptions" not in out
