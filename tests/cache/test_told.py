import pytest

from precast.cache.factors import Factor
from precast.cache.told import comparable, is_traced, needs_trace

KNOWN = [("env", "CC"), ("config", "settings.payload"), ("compiler", "torch"), ("compiler", "precast.splitter.split")]
TRACED = [
    ("env", "SHOP_MODE"),
    ("env", "HOME"),
    ("config", "model.layers"),
    ("config", "signature.x"),
    ("code", "module:shop"),
    ("compiler", "pass:fuse"),
    ("graph", "graph"),
]


@pytest.mark.parametrize("label", KNOWN)
def test_what_the_machine_and_the_settings_decide_is_known_before_tracing(label: tuple[str, str]) -> None:
    assert not needs_trace(label)
    found, asked, untold = comparable({label: "a"}, {}, {})
    assert (found, asked, untold) == ({label: "a"}, {}, ())


@pytest.mark.parametrize("label", TRACED)
def test_what_the_model_decides_may_be_unknown_before_tracing(label: tuple[str, str]) -> None:
    assert needs_trace(label)
    assert comparable({label: "a"}, {}, {}) == ({}, {}, (label,))


def test_code_that_an_entry_does_not_have_was_looked_up_for_another() -> None:
    assert comparable({}, {("code", "module:shop"): "a", ("env", "SHOP_MODE"): None}, {}) == ({}, {}, ())
    assert comparable({}, {("env", "SHOP_MODE"): "x"}, {}) == ({}, {("env", "SHOP_MODE"): "x"}, ())


def test_a_graph_factor_tells_a_traced_side() -> None:
    assert is_traced([Factor("graph", "graph", "a")])
    assert not is_traced([Factor("code", "module:graph", "a")])
