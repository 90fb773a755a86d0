import json
from pathlib import Path
from typing import Any

import pytest
from tests.cache.support import request_factors

from precast.cache.canonical import Json
from precast.cache.diff import Change, Side, diff_sides
from precast.cache.factors import Factor
from precast.cache.told import comparable, is_traced, needs_trace

KNOWN = [
    ("env", "CC"),
    ("config", "settings.payload"),
    ("config", "model.layers"),
    ("config", "model.factory"),
    ("config", "model.set.layers"),
    ("compiler", "torch"),
    ("compiler", "precast.splitter.split"),
]
TRACED = [
    ("env", "SHOP_MODE"),
    ("env", "HOME"),
    ("config", "model.spec.layers"),
    ("config", "signature.x"),
    ("code", "module:shop"),
    ("compiler", "pass:fuse"),
    ("graph", "graph"),
]


@pytest.mark.parametrize("label", KNOWN)
def test_every_factor_of_a_request_is_known_before_tracing(label: tuple[str, str]) -> None:
    assert not needs_trace(label)
    assert comparable({label: "a"}, {}) == ({label: "a"}, {}, ())


@pytest.mark.parametrize("label", TRACED)
def test_what_a_trace_adds_may_be_unknown_before_it(label: tuple[str, str]) -> None:
    assert needs_trace(label)
    assert comparable({label: "a"}, {}) == ({}, {}, (label,))


def test_no_factor_of_a_real_request_needs_a_trace(tmp_path: Path) -> None:
    for factors in (request_factors("shop.model:tiny", {"layers": 4}), request_factors(folder(tmp_path, layers=4))):
        assert len(factors) > 10
        assert [factor.label for factor in factors if needs_trace((factor.group, factor.name))] == []


def test_code_that_an_entry_does_not_have_was_looked_up_for_another() -> None:
    assert comparable({}, {("code", "module:shop"): "a", ("env", "SHOP_MODE"): None}) == ({}, {}, ())
    assert comparable({}, {("env", "SHOP_MODE"): "x"}) == ({}, {("env", "SHOP_MODE"): "x"}, ())


def test_silence_says_of_a_registered_variable_only_that_it_is_not_set() -> None:
    registered, own = ("env", "CC"), ("env", "SHOP_MODE")
    assert comparable({registered: None, own: None}, {}) == ({registered: None}, {registered: None}, (own,))


def test_a_graph_factor_tells_a_traced_side() -> None:
    assert is_traced([Factor("graph", "graph", "a")])
    assert not is_traced([Factor("code", "module:graph", "a")])


def folder(place: Path, **config: Json) -> str:
    """Write a model folder and return MODEL."""
    place.mkdir(exist_ok=True)
    whole = {"architectures": ["LlamaForCausalLM"], "_name_or_path": str(place), **config}
    (place / "config.json").write_text(json.dumps(whole))
    return str(place)


TRACE = (Factor("config", "signature.x", ["int64", [None]]), Factor("graph", "graph", "ab" * 32))


def told(entry: tuple[Factor, ...], request: tuple[Factor, ...]) -> list[tuple[str, str, Json, Json]]:
    """What differs between the entry that a trace of some request factors made, and a request; both ways round."""
    a, b = Side("a", "ab" * 32, (*entry, *TRACE)), Side("live", "", request)
    found = diff_sides(a, b)
    assert diff_sides(b, a) == found.mirrored()
    assert found.untold == {"config": 1, "graph": 1}
    return [_row(change) for change in found.changes]


def _row(change: Change) -> tuple[str, str, Json, Json]:
    return change.label, change.kind, change.a, change.b


SETS: list[tuple[dict[str, Any], dict[str, Any], list[tuple[str, str, Json, Json]]]] = [
    ({}, {}, []),
    ({"layers": 4}, {"layers": 4}, []),
    ({"layers": 4}, {"layers": 5}, [("config/model.set.layers", "changed", 4, 5)]),
    ({"layers": 4}, {}, [("config/model.set.layers", "removed", 4, None)]),
    ({}, {"layers": 4}, [("config/model.set.layers", "added", None, 4)]),
    ({"layers": 4}, {"layers": 4, "heads": 2}, [("config/model.set.heads", "added", None, 2)]),
]


@pytest.mark.parametrize(("given", "asked", "expected"), SETS)
def test_of_a_factory_exactly_the_changed_set_values_are_told(
    given: dict[str, Any], asked: dict[str, Any], expected: list[tuple[str, str, Json, Json]]
) -> None:
    model = "shop.model:tiny"
    assert told(request_factors(model, given), request_factors(model, asked)) == expected


CONFIGS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[tuple[str, str, Json, Json]]]] = [
    ({"layers": 4}, {"layers": 4}, {}, []),
    ({"layers": 4}, {"layers": 5}, {}, [("config/model.layers", "changed", 4, 5)]),
    ({"layers": 4}, {"layers": 4}, {"layers": 5}, [("config/model.layers", "changed", 4, 5)]),
    ({"layers": 4}, {"layers": 5}, {"layers": 4}, []),
    ({"layers": 4, "window": 8}, {"layers": 4}, {}, [("config/model.window", "removed", 8, None)]),
    ({"layers": 4}, {"layers": 4, "window": None}, {}, [("config/model.window", "added", None, None)]),
    (
        {"rope": {"type": "yarn", "factor": 2}},
        {"rope": {"type": "yarn", "factor": 4}},
        {},
        [("config/model.rope.factor", "changed", 2, 4)],
    ),
]


@pytest.mark.parametrize(("stored", "now", "given", "expected"), CONFIGS)
def test_of_a_model_folder_exactly_the_changed_keys_are_told(
    tmp_path: Path,
    stored: dict[str, Any],
    now: dict[str, Any],
    given: dict[str, Any],
    expected: list[tuple[str, str, Json, Json]],
) -> None:
    old = request_factors(folder(tmp_path / "a", **stored))
    assert told(old, request_factors(folder(tmp_path / "b", **now), given)) == expected


def test_another_factory_is_told() -> None:
    assert told(request_factors("shop.model:tiny"), request_factors("shop.model:large")) == [
        ("config/model.factory", "changed", "shop.model:tiny", "shop.model:large")
    ]
