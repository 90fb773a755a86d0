"""The serve command, on eager code and on a real artifact."""

import re
from pathlib import Path

import pytest
from tests.conftest import TinyEntry

from precast.errors import ExitCode
from precast.examples import serve
from precast.examples.decoder.generation import Generation

TINY = str(Path(__file__).parents[2] / "examples" / "configs" / "tiny-llama")
FEW = ["--requests", "4", "--tokens", "5", "--longest-prompt", "20", "--max-num-batched-tokens", "16"]
ONE_LAYER = ["--set", "num_hidden_layers=1"]


def test_eager_code_is_served_and_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main([TINY, *ONE_LAYER, *FEW, "--device", "cpu", "--compare"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"4 requests, \d+ tokens in [\d.]+ s: [\d.]+ tokens per second, 0 preemptions", lines[0])
    assert re.fullmatch(r"NONE: \d+ steps, \d+ rows, 0 of them padded \(0.0%\)", lines[1])
    assert [line.split(":")[0] for line in lines[2:4]] == ["PIECEWISE", "FULL"]
    steps = lines[1].split()[1]
    assert lines[4:] == [f"without a graph: {steps} steps, no graphs are captured in this mode", "all 4 equal"]


def test_a_difference_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "generate", lambda *_: Generation(((-1,),), 0.0, 0.0))

    assert serve.main([TINY, *ONE_LAYER, *FEW, "--device", "cpu", "--compare"]) == 1

    assert capsys.readouterr().out.splitlines()[-1] == "4 of 4 different"


def test_few_blocks_make_requests_wait_and_change_no_token(capsys: pytest.CaptureFixture[str]) -> None:
    few = [*FEW, "--block-size", "4", "--kv-blocks", "7", "--join-every", "0"]

    assert serve.main([TINY, *ONE_LAYER, *few, "--device", "cpu", "--compare"]) == 0

    assert "all 4 equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--mode", "FULL"], "without graphs"),
        (["--requests", "0"], "--requests must be at least 1"),
        (["--longest-prompt", "0"], "--longest-prompt must be at least 1"),
        (["--kv-blocks", "1"], "does not fit"),
        (["--max-num-seqs", "0"], "max_num_seqs"),
    ],
)
def test_what_cannot_be_served_is_refused(options: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main([TINY, *ONE_LAYER, *options, "--device", "cpu"]) == ExitCode.USAGE

    assert reason in capsys.readouterr().err


@pytest.mark.compiles
def test_an_artifact_is_served_and_compared(tiny_entry: TinyEntry, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = ["--artifact", tiny_entry.key, "--cache-dir", str(tiny_entry.root), "--device", "cpu"]

    assert serve.main([str(tiny_entry.folder), *FEW, *artifact, "--compare"]) == 0
    out = capsys.readouterr().out
    assert "all 4 equal" in out
    assert "NONE: 0 steps" not in out

    assert serve.main([str(tiny_entry.folder), *FEW, *artifact, "--mode", "FULL_AND_PIECEWISE"]) == ExitCode.NO_GPU
    many = ["--max-num-batched-tokens", "1024"]
    assert serve.main([str(tiny_entry.folder), *FEW, *many, *artifact]) == ExitCode.USAGE
    assert "--max-num-batched-tokens 512" in capsys.readouterr().err
