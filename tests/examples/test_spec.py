"""Specs of the decoder family: published configurations, batches to try, and what importing them costs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from precast.aot.spec import Json
from precast.errors import ConfigKeyError, UsageError, WeightError
from precast.examples.decoder.model import DecoderModel
from precast.examples.decoder.spec import from_config, sample, tiny

CONFIGS = Path(__file__).parents[2] / "examples" / "configs"
# Parameters as their model cards count them, a tied head once.
PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b-v0.3": 7_248_023_552,
    "qwen3-0.6b": 596_049_920,
}


def read(name: str) -> dict[str, Json]:
    config: dict[str, Json] = json.loads((CONFIGS / name / "config.json").read_text())
    return config


@pytest.fixture
def module() -> nn.Module:
    spec = tiny(num_hidden_layers=2)
    module = spec.build()
    assert spec.load_weights is not None
    spec.load_weights(module)
    return module


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_have_the_published_number_of_parameters(name: str) -> None:
    spec = from_config(read(name), {}, CONFIGS / name)

    with torch.device("meta"):
        module = spec.build()

    assert spec.name == name
    assert sum(p.numel() for p in module.parameters()) == PUBLISHED[name]
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}


def test_the_tiny_spec_equals_its_configuration_file() -> None:
    assert {**tiny().config} == {**from_config(read("tiny-llama"), {}).config}


def test_a_spec_names_its_inputs_and_its_splitting_op() -> None:
    spec = tiny()

    assert [(i.name, i.shape, i.dtype) for i in spec.inputs] == [
        ("input_ids", ("tokens",), "int64"),
        ("positions", ("tokens",), "int64"),
    ]
    assert spec.splitting_ops == ("precast::paged_attention",)
    assert hasattr(torch.ops.precast, "paged_attention")


def test_overrides_reach_the_module_and_the_recorded_config() -> None:
    spec = tiny(num_hidden_layers=1, dtype="bfloat16")
    module = spec.build()

    assert spec.config["num_hidden_layers"] == 1
    assert spec.config["dtype"] == "bfloat16"
    assert isinstance(module, DecoderModel)
    assert len(module.model.layers) == 1
    with pytest.raises(ConfigKeyError):
        tiny(layers=1)


def test_the_recorded_config_holds_no_path(tmp_path: Path) -> None:
    spec = from_config(read("tiny-llama"), {}, tmp_path)

    assert str(tmp_path) not in json.dumps(spec.config)
    assert spec.name == tmp_path.name


def test_the_module_is_built_frozen_and_for_inference(module: nn.Module) -> None:
    assert not module.training
    assert not any(p.requires_grad for p in module.parameters())


def test_the_module_is_built_on_the_default_device_with_rotary_factors_from_the_cpu() -> None:
    with torch.device("meta"):
        module = tiny().build()

    assert {t.device.type for t in (*module.parameters(), *module.buffers())} == {"meta"}


def test_a_folder_with_weights_in_another_format_is_not_filled_with_random_ones(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    spec = from_config(read("tiny-llama"), {"num_hidden_layers": 1}, tmp_path)
    assert spec.load_weights is not None

    with pytest.raises(WeightError):
        spec.load_weights(spec.build())


@pytest.mark.parametrize("num_tokens", [1, 2, 128, 129, 700])
def test_a_sample_has_as_many_tokens_as_asked_for_in_prompts_of_at_most_128(module: nn.Module, num_tokens: int) -> None:
    with sample(module, num_tokens, 0) as (ids, positions):
        hidden = module(ids, positions)

    assert ids.shape == positions.shape == (num_tokens,)
    assert ids.dtype == positions.dtype == torch.int64
    assert 0 <= int(ids.min()) <= int(ids.max()) < 512
    assert int(positions.max()) < 128
    assert num_tokens <= 128 or int((positions == 0).sum()) > 1
    assert hidden.shape == (num_tokens, 64)
    assert hidden.isfinite().all()


def test_a_sample_leaves_room_for_padded_rows(module: nn.Module) -> None:
    with sample(module, 17, 0) as (ids, positions):
        hidden = module(ids, positions)
        padded = module(*(torch.cat((tensor, tensor.new_zeros(7))) for tensor in (ids, positions)))

    torch.testing.assert_close(padded[:17], hidden)
    assert padded.isfinite().all()


def test_a_sample_is_decided_by_its_seed(module: nn.Module) -> None:
    results = []
    for seed in (3, 3, 4):
        with sample(module, 200, seed) as inputs:
            results.append((*inputs, module(*inputs)))

    assert all(torch.equal(a, b) for a, b in zip(results[0], results[1], strict=True))
    assert not torch.equal(results[0][0], results[2][0])
    assert not torch.equal(results[0][1], results[2][1])


def test_a_sample_leaves_the_global_generator_alone(module: nn.Module) -> None:
    before = torch.random.get_rng_state()

    with sample(module, 50, 1) as inputs:
        module(*inputs)

    assert torch.equal(before, torch.random.get_rng_state())


def test_a_sample_keeps_within_the_longest_position() -> None:
    module = tiny(max_position_embeddings=8, num_hidden_layers=1).build()

    with sample(module, 60, 0) as (_, positions):
        assert int(positions.max()) < 8


def test_a_module_of_another_family_is_refused() -> None:
    with pytest.raises(UsageError, match="Linear"), sample(nn.Linear(1, 1), 4, 0):
        pass


def test_running_a_decoder_on_the_cpu_imports_no_compiler() -> None:
    program = """
import sys
import precast.examples.decoder.generation
from precast.examples.decoder import spec
tiny = spec.tiny(num_hidden_layers=1)
module = tiny.build()
tiny.load_weights(module)
with tiny.sample(module, 5, 0) as inputs:
    module.compute_logits(module(*inputs))
heavy = ("torch._dynamo", "torch._inductor", "sympy", "triton", "transformers")
sys.exit(" ".join(name for name in heavy if name in sys.modules) or None)
"""
    environment = {**os.environ, "PYTHONPATH": str(CONFIGS.parents[1] / "src")}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )

    assert (result.returncode, result.stderr) == (0, "")
