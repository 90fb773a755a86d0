"""What a spec and a plan say about graphs."""

from dataclasses import replace
from typing import Any

import pytest

from precast.aot.graph_facts import GraphFacts, graph_facts
from precast.aot.spec import ModelSpec
from precast.capture.support import AttentionGraphSupport as Support
from precast.examples.decoder.attention import OP_NAME
from precast.examples.decoder.spec import tiny
from precast.splitter.plan import CallOp, RunPiece, SplitPlan

PLAN = SplitPlan(("x",), (), (), None, None)


def spec(**given: Any) -> ModelSpec:
    fields = {"name": "m", "build": list, "inputs": (), "splitting_ops": ("a::one", "a::two"), "sample": list}
    return ModelSpec(**{**fields, **given})


def test_an_op_that_nobody_vouched_for_can_be_captured_for_nothing() -> None:
    found = graph_facts(spec(graph_support={"a::one": Support.ALWAYS}), PLAN)
    assert found.support == {"a::one": Support.ALWAYS, "a::two": Support.NEVER}
    assert found.weakest is Support.NEVER
    assert found.attention_text() == "a::two can be captured for nothing"


def test_the_weakest_op_decides() -> None:
    found = graph_facts(
        spec(graph_support={"a::one": Support.UNIFORM_BATCH, "a::two": Support.SINGLE_TOKEN_DECODE}), PLAN
    )
    assert found.weakest is Support.SINGLE_TOKEN_DECODE


def test_a_model_without_attention_can_be_captured_for_everything() -> None:
    found = graph_facts(spec(splitting_ops=()), PLAN)
    assert (found.weakest, found.unsplit, found.splitting_ops) == (Support.ALWAYS, (), ())


@pytest.mark.parametrize(
    ("asked", "unsplit"),
    [
        (None, ()), (("a::one", "a::two"), ()), (("a::one",), ("a::two",)), ((), ("a::one", "a::two")),
        (("a::one.default", "a::two"), ()), (("a::one.other", "a::two"), ("a::one",)),
        (("b::x",), ("a::one", "a::two")),
    ],
)  # fmt: skip
def test_attention_is_inside_of_pieces_where_the_graph_is_not_cut_at_it(
    asked: tuple[str, ...] | None, unsplit: tuple[str, ...]
) -> None:
    assert graph_facts(spec(), PLAN, asked).unsplit == unsplit


def test_a_spec_may_name_an_overload_that_the_user_s_list_holds_whole() -> None:
    assert graph_facts(spec(splitting_ops=("a::one.out",)), PLAN, ("a::one",)).unsplit == ()


def test_pieces_are_counted_and_the_kind_is_the_spec_s() -> None:
    plan = replace(PLAN, steps=(RunPiece("k", (), ()), CallOp("a::one", "", (), (), None), RunPiece("k", (), ())))
    found = graph_facts(spec(kind="pooling"), plan)
    assert (found.pieces, found.kind) == (2, "pooling")


def test_the_decoder_s_own_attention_can_be_captured_for_any_batch() -> None:
    made = tiny()
    assert graph_facts(made, PLAN) == GraphFacts("decoder", {OP_NAME: Support.ALWAYS}, (OP_NAME,), 0)
