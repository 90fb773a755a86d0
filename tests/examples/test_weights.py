"""Loading weights by their Hugging Face names, and every way in which they may not fit."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from precast.errors import WeightError
from precast.examples.decoder.model import DecoderModel
from precast.examples.decoder.spec import tiny
from precast.examples.decoder.weights import find_weights, load_weights, named_weights, randomize_weights


def make(**overrides: bool | int | str) -> DecoderModel:
    module = tiny(num_hidden_layers=2, **overrides).build()
    assert isinstance(module, DecoderModel)
    return module


def copies(module: DecoderModel) -> dict[str, Tensor]:
    return {name: tensor.clone().contiguous() for name, tensor in named_weights(module).items()}


def test_fused_weights_are_named_and_shaped_as_hugging_face_does() -> None:
    weights = named_weights(make(attention_bias=True))

    assert weights["model.embed_tokens.weight"].shape == (512, 64)
    assert weights["model.layers.1.self_attn.q_proj.weight"].shape == (64, 64)
    assert weights["model.layers.1.self_attn.k_proj.weight"].shape == (32, 64)
    assert weights["model.layers.1.self_attn.v_proj.bias"].shape == (32,)
    assert weights["model.layers.1.mlp.up_proj.weight"].shape == (128, 64)
    assert weights["lm_head.weight"].shape == (512, 64)
    assert not any("qkv" in name or "gate_up" in name for name in weights)


def test_named_weights_cover_every_parameter_once() -> None:
    module = make()

    for tensor in named_weights(module).values():
        tensor.fill_(7.0)

    assert all(bool((parameter == 7.0).all()) for parameter in module.parameters())
    assert sum(t.numel() for t in named_weights(module).values()) == sum(p.numel() for p in module.parameters())


def test_weights_are_converted_to_the_models_dtype(tmp_path: Path) -> None:
    source, target = make(), make(dtype="bfloat16")
    randomize_weights(source, 5)
    save_file(copies(source), tmp_path / "model.safetensors")

    load_weights(target, find_weights(tmp_path))

    assert torch.equal(target.model.norm.weight, source.model.norm.weight.bfloat16())


def test_weights_that_do_not_fit_are_all_named_and_none_is_written(tmp_path: Path) -> None:
    module = make()
    weights = copies(module)
    del weights["model.norm.weight"]
    weights["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(16, 64)
    weights["model.layers.0.mlp.experts.weight"] = torch.zeros(2)
    save_file(weights, tmp_path / "model.safetensors")
    before = copies(module)

    with pytest.raises(WeightError, match="3 weights do not fit") as caught:
        load_weights(module, find_weights(tmp_path))

    assert "missing model.norm.weight [64]" in caught.value.why
    assert "model.layers.0.self_attn.k_proj.weight is [16, 64], the model needs [32, 64]" in caught.value.why
    assert "unexpected model.layers.0.mlp.experts.weight [2]" in caught.value.why
    assert all(torch.equal(tensor, before[name]) for name, tensor in named_weights(module).items())


def test_a_long_list_of_faults_is_cut_with_a_count(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")

    with pytest.raises(WeightError) as caught:
        load_weights(make(), find_weights(tmp_path))

    assert caught.value.why.endswith("more")
    assert len(caught.value.why) < 600


def test_a_tied_checkpoint_may_hold_the_shared_matrix_twice_and_old_rotary_factors(tmp_path: Path) -> None:
    source = make(tie_word_embeddings=True)
    weights = copies(source)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(weights, tmp_path / "model.safetensors")
    target = make(tie_word_embeddings=True)

    load_weights(target, find_weights(tmp_path))

    assert torch.equal(target.model.embed_tokens.weight, source.model.embed_tokens.weight)


def test_an_untied_model_needs_a_head_of_its_own(tmp_path: Path) -> None:
    save_file(copies(make(tie_word_embeddings=True)), tmp_path / "model.safetensors")

    with pytest.raises(WeightError) as caught:
        load_weights(make(), find_weights(tmp_path))

    assert "missing lm_head.weight [512, 64]" in caught.value.why


def test_a_folder_without_weights_has_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    assert find_weights(tmp_path) == ()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model-00001-of-00002.safetensors"])
def test_weights_in_another_format_are_not_mistaken_for_none(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")

    with pytest.raises(WeightError) as caught:
        find_weights(tmp_path)

    assert name in caught.value.why


@pytest.mark.parametrize("index", ["", "[]", '{"weight_map": 3}', "{}"])
def test_a_damaged_index_is_refused(index: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)

    with pytest.raises(WeightError, match="Damaged index"):
        find_weights(tmp_path)


def test_an_index_with_an_absent_shard_is_refused(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "one.safetensors").write_bytes(b"")

    with pytest.raises(WeightError) as caught:
        find_weights(tmp_path)

    assert caught.value.why == "two.safetensors"


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x10\x00")

    with pytest.raises(WeightError, match="Unreadable"):
        load_weights(make(), find_weights(tmp_path))


def test_random_weights_depend_on_seed_and_name_and_not_on_depth() -> None:
    one, same, other, deeper = make(), make(), make(), tiny(num_hidden_layers=3).build()
    assert isinstance(deeper, DecoderModel)
    for module, seed in ((one, 0), (same, 0), (other, 1), (deeper, 0)):
        randomize_weights(module, seed)

    first, second = named_weights(one), named_weights(deeper)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not torch.equal(first["model.layers.0.mlp.up_proj.weight"], first["model.layers.1.mlp.up_proj.weight"])
