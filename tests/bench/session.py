"""What a measured process works with: the model with random weights, the buffers of a server, and batches in them.

This module imports torch; only child processes import it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.bench.workload import Workload
from torch import Tensor, nn

from precast.capture.limits import BatchLimits
from precast.capture.modes import CUDAGraphMode
from precast.capture.sizes import capture_sizes
from precast.capture.state import BatchShape
from precast.examples.decoder.serving import DecoderState
from precast.examples.decoder.spec import from_config

__all__ = ["Session", "checksum", "open_session"]

_PROMPT = 128


@dataclass(frozen=True, slots=True)
class Session:
    """One process's model and buffers.

    Attributes:
        work: What is measured.
        folder: The peer's own folder, for what it keeps between processes.
        module: The model.
        state: Inputs, KV cache and metadata, in which batches are put.
        limits: What a step may hold.
    """

    work: Workload
    folder: Path
    module: nn.Module
    state: DecoderState
    limits: BatchLimits

    @property
    def sizes(self) -> tuple[int, ...]:
        """The default capture sizes, the same for every peer."""
        return capture_sizes(self.limits, CUDAGraphMode.FULL).sizes

    def first_inputs(self) -> tuple[Tensor, ...]:
        """Put the batch of the first call in place: prompts."""
        full, rest = divmod(self.work.first_tokens, _PROMPT)
        lens = (_PROMPT,) * full + ((rest,) if rest else ())
        self.state.fill(BatchShape(lens, self.work.first_tokens), 0)
        return self.state.inputs(self.work.first_tokens)

    def decode_inputs(self, batch: int) -> tuple[Tensor, ...]:
        """Put a decode step in place, one token a request."""
        self.state.fill(BatchShape((1,) * batch, batch), 0)
        return self.state.inputs(batch)

    def stand_in_inputs(self, tokens: int) -> tuple[Tensor, ...]:
        """Put a batch in place that a graph of so many rows can be captured over."""
        self.state.describe(BatchShape.spread(tokens, min(tokens, self.work.max_reqs), tokens))
        return self.state.inputs(tokens)

    def wait(self) -> None:
        """Wait until the device has done all work."""
        if self.work.device == "cuda":
            torch.cuda.synchronize()


def open_session(work: Workload, folder: Path) -> Session:
    """Build the model on its device, and allocate the buffers."""
    spec = from_config(json.loads((work.folder / "config.json").read_bytes()), work.overrides)
    with torch.device(work.device):
        module = spec.build()
    module.requires_grad_(False).eval()
    assert spec.load_weights is not None
    with torch.no_grad():
        spec.load_weights(module)
    limits = BatchLimits(max_num_batched_tokens=work.max_tokens, max_num_seqs=work.max_reqs)
    session = Session(work, folder, module, DecoderState(module, limits), limits)
    session.wait()
    return session


def checksum(result: Any) -> float:
    """Return the mean size of the numbers that a forward returned, by which peers can be held against each other."""
    tensor = result[0] if isinstance(result, tuple | list) else result
    return float(tensor.float().abs().mean())
