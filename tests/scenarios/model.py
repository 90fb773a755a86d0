"""The scenarios' model: a four-layer decoder with knobs that change its code, and a line to edit."""

import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from precast import ModelSpec, TensorInput
from precast.examples.decoder.model import DecoderModel
from precast.examples.decoder.spec import tiny

FACTOR = 1.0


class Scaled(DecoderModel):
    """The decoder with a Python number that tracing bakes in."""

    factor = FACTOR

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        return super().forward(input_ids, positions) * self.factor + float(os.environ.get("SCENARIO_SHIFT", "0"))


def base(
    draft_tokens: int = 0, pipeline: int = 1, attention_scale: float = 1.0, autocast: str = "none", **unknown: Any
) -> ModelSpec:
    """Make the spec; every keyword is a config key, also one that nobody knows yet."""
    made = tiny(num_hidden_layers=4 // pipeline)
    table = json.loads(Path(__file__).with_name("table.json").read_text(encoding="utf-8"))
    factor = float(os.environ.get("SCENARIO_FACTOR", "1")) * float(table["factor"]) * attention_scale

    def build() -> DecoderModel:
        module = made.build()
        module.__class__ = type("Scaled", (Scaled,), {"factor": factor})
        return module  # type: ignore[no-any-return]

    inputs = tuple(TensorInput(i.name, i.shape, i.dtype) for i in made.inputs)
    return ModelSpec("scenario", build, inputs, made.splitting_ops, made.sample, load_weights=made.load_weights)
