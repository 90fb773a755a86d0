"""The device index: a model runs on the GPU where it lies, whichever that is, or is refused with the reason."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.aot.support import PIECE, SPAN, manifest, plan, state
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from precast.aot.binding import LoadedPieces, bind_module
from precast.aot.device_index import loading_on, module_index
from precast.aot.target import named_target
from precast.cache.manifest import Manifest
from precast.errors import IncompatibleError, WeightError


def entry(kind: str) -> Manifest:
    made = manifest(target=named_target("h200", {}).to_json())
    return replace(made, payloads=tuple(replace(p, kind=kind) for p in made.payloads))


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Stands for CUDA's current device; GPU 1 is current at first."""
    devices = [1]

    @contextmanager
    def device(index: int) -> Iterator[None]:
        devices.append(index)
        yield
        devices.pop()

    monkeypatch.setattr(torch.cuda, "current_device", lambda: devices[-1])
    monkeypatch.setattr(torch.cuda, "device", device)
    return devices


@pytest.mark.parametrize(("index", "place"), [(None, 1), (0, 0), (3, 3)])
def test_an_aoti_package_is_loaded_on_the_device_of_the_module(
    current: list[int], index: int | None, place: int
) -> None:
    with loading_on(entry("aoti"), index) as found:
        assert (found, current[-1]) == (place, place)
    assert current == [1]


@pytest.mark.parametrize("index", [None, 1, 3])
def test_an_inductor_artifact_runs_on_the_first_device_alone(current: list[int], index: int | None) -> None:
    with pytest.raises(IncompatibleError, match="runs on cuda:0") as caught, loading_on(entry("inductor"), index):
        pytest.fail("loaded")
    assert f"CUDA_VISIBLE_DEVICES={1 if index is None else index}" in caught.value.hint
    with loading_on(entry("inductor"), 0) as found:
        assert found == 0


def test_on_a_cpu_there_is_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: pytest.fail("CUDA was asked"))
    with loading_on(manifest(), None) as found:
        assert found is None


def test_a_module_tells_where_it_lies() -> None:
    assert module_index(nn.Linear(2, 2)) is None
    assert module_index(nn.Module()) is None
    module = nn.Module()
    with FakeTensorMode():
        module.register_buffer("table", torch.empty(2, device="cuda:1"))
    assert module_index(module) == 1


def bound(module: nn.Module, index: int | None) -> Any:
    made = plan({"x": ("float32", (None, 4))}, (state("w", "weight", (4,), (1,)),))
    pieces = LoadedPieces(
        manifest(made, target={"device": "cuda"}), made, {(PIECE, SPAN): lambda inputs: inputs[:1]}, (), index
    )
    return bind_module(pieces, module)


class Weight(nn.Module):  # type: ignore[misc]
    def __init__(self, device: str) -> None:
        super().__init__()
        self.weight: Tensor = torch.empty(4, device=device)


def test_a_module_on_another_gpu_than_the_code_is_refused() -> None:
    with FakeTensorMode():
        bound(Weight("cuda:1"), 1)
        with pytest.raises(WeightError) as caught:
            bound(Weight("cuda:0"), 1)
    assert "weight is float32 [4] on cuda:0, not float32 [4] on cuda:1" in caught.value.why


def test_an_input_on_another_gpu_than_the_module_is_refused() -> None:
    with FakeTensorMode():
        run = bound(Weight("cuda:1"), 1)
        assert run(torch.empty(2, 4, device="cuda:1")).device.index == 1
        for device, told in (("cuda:0", "cuda:0"), ("cpu", "cpu")):
            with pytest.raises(TypeError, match=f"must be on cuda:1, not on {told}"):
                run(torch.empty(2, 4, device=device))


def test_pieces_that_nobody_loaded_for_an_index_run_on_any() -> None:
    with FakeTensorMode():
        run = bound(Weight("cuda:1"), None)
        assert run(torch.empty(2, 4, device="cuda:0")).device.type == "cuda"
        with pytest.raises(TypeError, match="must be on cuda, not on cpu"):
            run(torch.empty(2, 4))
