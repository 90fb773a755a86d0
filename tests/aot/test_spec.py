"""The spec imports nothing heavy, and is a value."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from precast.aot.spec import _DTYPES, ModelSpec, TensorInput
from precast.capture.support import AttentionGraphSupport
from precast.errors import ConfigValueError


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


@pytest.mark.parametrize("name", _DTYPES)
def test_every_known_dtype_is_one_of_torch(name: str) -> None:
    assert isinstance(getattr(torch, name), torch.dtype)
    assert TensorInput("x", ("tokens",), name).dtype == name


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"dtype": "flot32"}, "dtype"), ({"dtype": torch.float32}, "dtype"), ({"dtype": None}, "dtype"),
        ({"shape": ("tokens", -1)}, "shape"), ({"shape": (1.5,)}, "shape"), ({"shape": (True,)}, "shape"),
        ({"shape": ("",)}, "shape"), ({"shape": "tokens"}, "shape"), ({"shape": 3}, "shape"),
        ({"name": ""}, "name"), ({"name": "a b"}, "name"), ({"name": 3}, "name"),
    ],
)  # fmt: skip
def test_a_wrong_input_is_refused_by_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigValueError, match=rf"\.{field}`"):
        TensorInput(**{"name": "x", "shape": ("tokens", 4), "dtype": "float32", **given})


def a_spec(**given: Any) -> ModelSpec:
    inputs = (TensorInput("x", ("tokens",)),)
    fields = {"name": "m", "build": list, "inputs": inputs, "splitting_ops": ("a::b",), "sample": list}
    return ModelSpec(**{**fields, **given})


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"config": {"scale": float("nan")}}, r"config\['scale'\]"),
        ({"config": {"dtype": torch.float16}}, r"config\['dtype'\]"),
        ({"config": {"rope": {"factors": [1.0, float("inf")]}}}, r"config\['rope'\]\['factors'\]\[1\]"),
        ({"config": {"ids": {1, 2}}}, r"config\['ids'\]"), ({"config": {3: 1}}, "config"), ({"config": [1]}, "config"),
        ({"splitting_ops": "a::b"}, "splitting_ops"), ({"splitting_ops": (1,)}, "splitting_ops"),
        ({"inputs": TensorInput("x", ())}, "inputs"), ({"inputs": ("x",)}, "inputs"),
        ({"build": None}, "build"), ({"sample": 3}, "sample"), ({"name": ""}, "name"),
        ({"state": 3}, "state"), ({"graph_state": "x"}, "graph_state"), ({"load_weights": ()}, "load_weights"),
        ({"kind": "encoder"}, "kind"), ({"graph_support": AttentionGraphSupport.ALWAYS}, "graph_support"),
        ({"graph_support": {"a::c": AttentionGraphSupport.ALWAYS}}, "graph_support"),
        ({"graph_support": {"a::b": 3}}, r"graph_support\['a::b'\]"),
        ({"graph_support": {"a::b": "ALWAYS"}}, r"graph_support\['a::b'\]"),
    ],
)  # fmt: skip
def test_a_wrong_spec_is_refused_by_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigValueError, match=rf"ModelSpec\.{field}`"):
        a_spec(**given)


def test_a_config_of_plain_values_is_taken() -> None:
    config = {"a": 1, "b": [1.5, None, "x"], "c": {"d": (True,)}}
    assert a_spec(config=config).config == config


def test_what_graphs_need_to_know_is_taken() -> None:
    support = {"a::b": AttentionGraphSupport.UNIFORM_BATCH}
    made = a_spec(graph_support=support, graph_state=lambda module, limits: None, kind="pooling")
    assert (made.graph_support, made.kind) == (support, "pooling")
    assert (a_spec().graph_support, a_spec().kind, a_spec().graph_state) == ({}, "decoder", None)
