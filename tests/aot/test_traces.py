"""Traces of one model: each is made once, and again only for a GPU that the model asked about."""

from types import SimpleNamespace
from typing import Any

import pytest

from precast.aot.request import CompileInput
from precast.aot.settings import resolve_settings
from precast.aot.target import named_target
from precast.aot.traces import Traces
from precast.cache.lookup import Request
from precast.errors import GraphBreakError


def given(name: str) -> CompileInput:
    return CompileInput(Request(()), named_target(name, {}), resolve_settings({"target": name}))


def traced(*, asks: bool = False) -> Any:
    return SimpleNamespace(asks_device=asks)


def test_one_trace_serves_every_gpu_and_another_every_cpu() -> None:
    traces = Traces()
    gpu = traces.of(given("h200"), traced)
    assert traces.of(given("l40s"), lambda: pytest.fail("traced again")) is gpu
    cpu = traces.of(given("x86-64-v3"), traced)
    assert cpu is not gpu
    assert traces.of(given("x86-64-v4"), lambda: pytest.fail("traced again")) is cpu
    assert traces.count == 2


def test_a_model_that_asks_about_its_gpu_is_traced_for_each() -> None:
    traces = Traces()
    first = traces.of(given("h200"), lambda: traced(asks=True))
    second = traces.of(given("l40s"), lambda: traced(asks=True))
    assert second is not first
    assert traces.of(given("h100"), lambda: pytest.fail("the same facts")) is first
    assert traces.count == 2


def test_a_model_is_built_once() -> None:
    traces = Traces()
    built: Any = SimpleNamespace()
    assert traces.once(lambda: built) is traces.once(lambda: pytest.fail("built again")) is built


@pytest.mark.parametrize("at", ["build", "trace"])
def test_what_failed_once_fails_for_every_target(at: str) -> None:
    traces, error = Traces(), GraphBreakError("a graph break")

    def fail() -> Any:
        raise error

    for _ in range(2):
        with pytest.raises(GraphBreakError) as caught:
            traces.once(fail) if at == "build" else traces.of(given("h200"), fail)
        assert caught.value is error
        fail = lambda: pytest.fail("tried again")  # noqa: E731
    assert traces.failure is error
