"""The greedy decode loop, on its own and behind the command."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precast
from precast.errors import UsageError
from precast.examples.decoder.generation import generate
from precast.examples.decoder.model import DecoderModel
from precast.examples.decoder.spec import tiny
from precast.examples.generate import main

TINY = str(Path(__file__).parents[2] / "examples" / "configs" / "tiny-llama")


@pytest.fixture(scope="module")
def module() -> DecoderModel:
    spec = tiny()
    module = spec.build()
    assert spec.load_weights is not None
    spec.load_weights(module)
    assert isinstance(module, DecoderModel)
    return module


def ticks() -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += 0.5


def test_each_token_is_the_likeliest_after_all_before_it(module: DecoderModel) -> None:
    prompt = list(range(40, 60))

    result = generate(module, [prompt], 6)

    ids = [*prompt, *result.tokens[0]]
    for end in range(len(prompt), len(ids)):
        whole = generate(module, [ids[:end]], 1)
        assert whole.tokens[0][0] == ids[end]


def test_requests_side_by_side_do_not_disturb_each_other(module: DecoderModel) -> None:
    prompts = [[1, 2, 3], list(range(100, 140)), [9]]

    together = generate(module, prompts, 20)

    assert together.tokens == tuple(generate(module, [prompt], 20).tokens[0] for prompt in prompts)
    assert len(set(together.tokens)) == 3


def test_speed_counts_the_tokens_after_the_first(module: DecoderModel) -> None:
    clock = ticks()

    result = generate(module, [[1], [2]], 5, clock=lambda: next(clock))

    assert (result.prefill_s, result.decode_s) == (0.5, 2.0)
    assert result.decode_tokens_per_s == 4.0


def test_one_token_needs_no_decode_step(module: DecoderModel) -> None:
    result = generate(module, [[1]], 1)

    assert len(result.tokens[0]) == 1
    assert result.decode_tokens_per_s == 0.0


def test_another_callable_computes_the_hidden_states(module: DecoderModel) -> None:
    counts: list[int] = []

    def run(input_ids: Tensor, positions: Tensor) -> Tensor:
        counts.append(len(input_ids))
        return -module(input_ids, positions)

    result = generate(module, [[1, 2, 3], [4]], 3, run=run)

    assert counts == [4, 2, 2]
    assert result.tokens != generate(module, [[1, 2, 3], [4]], 3).tokens


@pytest.mark.parametrize(
    ("prompts", "num_tokens", "reason"),
    [
        ([], 3, "Nothing"),
        ([[1], []], 3, "Nothing"),
        ([[1]], 0, "Nothing"),
        ([[512]], 1, "512"),
        ([[-1]], 1, "-1"),
        ([[1] * 2000], 49, "too long"),
    ],
)
def test_what_cannot_be_generated_is_refused(
    module: DecoderModel, prompts: list[list[int]], num_tokens: int, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        generate(module, prompts, num_tokens)


def test_a_module_of_another_family_is_refused() -> None:
    with pytest.raises(UsageError, match="Linear"):
        generate(nn.Linear(1, 1), [[1]], 1)


def test_the_command_prints_tokens_and_speed(module: DecoderModel, capsys: pytest.CaptureFixture[str]) -> None:
    status = main([TINY, "--tokens", "3", "--prompt-ids", "1", "2", "--prompt-ids", "7", "--device", "cpu"])

    first, second, speed = capsys.readouterr().out.splitlines()
    expected = generate(module, [[1, 2], [7]], 3)
    assert status == 0
    assert [first, second] == [f"eager: {' '.join(map(str, tokens))}" for tokens in expected.tokens]
    assert "tokens per second" in speed


def test_the_command_applies_settings(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "num_hidden_layers=1", "--set", "dtype=bfloat16", "--device", "cpu"]

    assert main([TINY, "--tokens", "2", *settings]) == 0
    assert capsys.readouterr().out.startswith("eager: ")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--compare"], "--artifact"),
        (["--set", "num_layers=1"], "num_hidden_layers"),
        (["--set", "num_hidden_layers"], "equals sign"),
        (["--prompt-ids", "600"], "600"),
    ],
)
def test_the_command_says_what_is_wrong_and_exits_with_2(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([TINY, "--device", "cpu", *arguments]) == 2

    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert reason in error


def test_the_command_refuses_a_folder_without_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err


@pytest.mark.parametrize(("sign", "status", "verdict"), [(1, 0, "equal"), (-1, 1, "different")])
def test_comparing_fails_unless_the_tokens_are_equal(
    sign: int, status: int, verdict: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(source: str, module: nn.Module, **options: Any) -> Any:
        assert (source, options) == ("abc123", {"cache_dir": Path("store")})
        return lambda *inputs: sign * module(*inputs)

    monkeypatch.setattr(precast, "load", load, raising=False)
    artifact = ["--artifact", "abc123", "--cache-dir", "store", "--compare", "--device", "cpu"]

    assert main([TINY, "--tokens", "4", *artifact]) == status

    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == verdict
    assert [line.split(":")[0] for line in lines[:-1]] == ["precompiled", "precompiled", "eager", "eager"]


def test_generation_keeps_no_gradients(module: DecoderModel) -> None:
    seen: list[bool] = []

    def run(*inputs: Tensor) -> Tensor:
        seen.append(torch.is_grad_enabled())
        hidden: Tensor = module(*inputs)
        return hidden

    generate(module, [[1]], 2, run=run)

    assert seen == [False, False]
