"""A tiny decoder cut into pieces that run eagerly, for what happens around them when graphs are captured."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tests.aot.support import manifest
from tests.models import as_is, split_spec
from torch import nn

from precast.aot.binding import BoundState, LoadedPieces, bind_forward, bind_state
from precast.aot.loaded import Model
from precast.aot.numerics import build_real
from precast.aot.spec import ModelSpec
from precast.capture.limits import BatchLimits
from precast.capture.support import AttentionGraphSupport
from precast.examples.decoder.serving import DecoderState
from precast.examples.decoder.spec import tiny
from precast.splitter.split import Split

RANGES = ((1, 8), (9, 64))
LIMITS = BatchLimits(max_num_batched_tokens=64, max_num_seqs=8)
LAYERS = 2


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run tiny tensors on one thread: several only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def spec() -> ModelSpec:
    return tiny(num_hidden_layers=LAYERS)


def captured() -> ModelSpec:
    """Make a spec that says how to capture it: a MODEL for the command line."""
    support = {"precast::paged_attention": AttentionGraphSupport.ALWAYS}
    return replace(tiny(num_hidden_layers=LAYERS), graph_state=DecoderState, graph_support=support)


@cache
def traced() -> Split:
    """Trace and split, once a process; what is returned is not changed by running it."""
    return split_spec(spec())


def pieces(ranges: tuple[tuple[int, int], ...] = RANGES) -> LoadedPieces:
    """Return the pieces of the decoder as a load would, each of them run eagerly."""
    made = traced()
    callables = {(piece.key, span): as_is(piece) for piece in made.pieces for span in ranges}
    return LoadedPieces(manifest(made.plan), made.plan, callables)


def module() -> nn.Module:
    return build_real(spec(), "cpu")


def bound(loaded: LoadedPieces | None = None) -> BoundState:
    return bind_state(loaded or pieces(), module())


def model(given: ModelSpec | None = None, loaded: LoadedPieces | None = None) -> Model:
    """Return the decoder as a check would build it."""
    made = module()
    bound_here = bind_state(loaded or pieces(), made)
    return Model(given or spec(), made, bound_here, bind_forward(bound_here))


def state(module: Any, limits: BatchLimits = LIMITS) -> DecoderState:
    return DecoderState(module, limits)


def wrong_at(span: tuple[int, int], loaded: LoadedPieces, by: float = 0.5) -> LoadedPieces:
    """Return the pieces with the last one of a range computing something else."""
    key = (loaded.plan.pieces[-1].key, span)
    right = loaded.callables[key]

    def wrong(inputs: list[Any]) -> Any:
        return tuple(out + by if isinstance(out, torch.Tensor) else out for out in right(inputs))

    return replace(loaded, callables={**loaded.callables, key: wrong})
