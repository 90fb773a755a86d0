"""The decoder family as breakable graphs, on the CPU: no compiler, and results of padded batches as without graphs."""

import pytest
import torch
from tests.capture.dispatch_backend import DispatchGraphs
from tests.capture.support import ReplayingBackend
from tests.examples.padding import CASES, LIMITS, SIZES, check, nan_module

from precast.aot.torch_seams.ops import watched
from precast.capture.breakable import eager_break_during_capture
from precast.capture.candidates import candidates
from precast.capture.manager import GraphManager
from precast.capture.modes import CUDAGraphMode
from precast.capture.segmented import BreakableModel
from precast.errors import CaptureError
from precast.examples.decoder import model as decoder
from precast.examples.decoder.attention import OP_NAME, paged_attention
from precast.examples.decoder.serving import DecoderState
from precast.examples.decoder.spec import tiny

LAYERS = 2


def built(
    mode: CUDAGraphMode, backend: ReplayingBackend
) -> tuple[decoder.DecoderModel, DecoderState, BreakableModel, GraphManager]:
    module = nan_module(tiny(num_hidden_layers=LAYERS, dtype="float32"), "cpu")
    state = DecoderState(module, LIMITS)
    model = BreakableModel(module, must_break=[OP_NAME], watch=watched)
    return module, state, model, GraphManager(model, state, candidates(mode, SIZES, LIMITS), backend)


def test_padded_batches_on_segments_equal_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "paged_attention", eager_break_during_capture(paged_attention))
    with torch.no_grad():
        module, state, model, manager = built(CUDAGraphMode.FULL_AND_PIECEWISE, DispatchGraphs())
        report = manager.capture()
        assert model.breaks == ("paged_attention",) * LAYERS
        assert report.graphs(CUDAGraphMode.PIECEWISE) == len(SIZES) * (LAYERS + 1)
        for case in CASES.values():
            check(module, state, manager, case)
        assert manager.counts().piecewise == 2


def test_attention_that_nobody_marked_is_named() -> None:
    with torch.no_grad():
        *_, manager = built(CUDAGraphMode.PIECEWISE, ReplayingBackend())
        with pytest.raises(CaptureError, match=f"`{OP_NAME}` was called inside a recorded segment"):
            manager.capture()
