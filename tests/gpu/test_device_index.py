"""A model on the second GPU: an `aoti` entry runs there, an `inductor` entry is refused with the reason."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import MAX_TOKENS, TINY

import precast
from precast.aot.precompile import precompile
from precast.aot.reference import parse_reference
from precast.aot.settings import resolve_settings
from precast.errors import IncompatibleError, WeightError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]

VALUES = {"dtype": "float32"}


def built(payload: str, root: Path) -> str:
    flags = {"target": "cuda", "payload": payload, "max_num_batched_tokens": MAX_TOKENS}
    return precompile(str(TINY), resolve_settings(flags, {}), overrides=VALUES, cache_dir=root).key


def module_on(device: str) -> tuple[Any, torch.nn.Module]:
    spec = parse_reference(str(TINY)).spec(VALUES)
    with torch.device(device):
        module = spec.build().eval().requires_grad_(False)
    if spec.load_weights is not None:
        spec.load_weights(module)
    return spec, module


def result(spec: Any, module: torch.nn.Module, run: Callable[..., Any]) -> Any:
    with torch.cuda.device(1), torch.no_grad(), spec.sample(module, 7, 0) as inputs:
        return run(*inputs)


def test_an_aoti_entry_runs_where_the_module_lies(tmp_path: Path) -> None:
    key = built("aoti", tmp_path)
    spec, module = module_on("cuda:1")
    with torch.cuda.device(0):  # whatever is current while it is loaded
        run = precast.load(key, module, cache_dir=tmp_path)
    found, expected = result(spec, module, run), result(spec, module, module)
    assert found.device == torch.device("cuda", 1)
    torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)
    assert torch.cuda.current_device() == 0


def test_an_inductor_entry_is_refused_anywhere_but_on_the_first(tmp_path: Path) -> None:
    key = built("inductor", tmp_path)
    _, module = module_on("cuda:1")
    with pytest.raises(IncompatibleError, match="runs on cuda:0, not on cuda:1"):
        precast.load(key, module, cache_dir=tmp_path)


def test_a_module_on_two_gpus_is_refused(tmp_path: Path) -> None:
    key = built("aoti", tmp_path)
    _, module = module_on("cuda:0")
    next(iter(module.parameters())).data = next(iter(module.parameters())).data.to("cuda:1")
    with pytest.raises(WeightError, match="does not fit"):
        precast.load(key, module, cache_dir=tmp_path)
