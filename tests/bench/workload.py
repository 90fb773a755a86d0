"""What is measured: one model of the example family, its first batch, and the decode batches."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

__all__ = ["CONFIGS", "Workload", "cpu_model", "cpu_small", "gpu_model"]

CONFIGS = Path(__file__).resolve().parents[2] / "examples" / "configs"


@dataclass(frozen=True, slots=True)
class Workload:
    """One model and its batches.

    Attributes:
        config: Name of a folder below examples/configs.
        device: `cpu` or `cuda`.
        overrides: What replaces keys of its config.json.
        max_tokens: Most tokens of a step; what peers compile for.
        first_tokens: Tokens of the first call, prompts of at most 128 tokens.
        max_reqs: Most requests of a step; decides the capture sizes.
        batches: Requests of the decode steps that are timed; empty to time none.
        piecewise: Whether to capture piece by piece too, where a peer can.
    """

    config: str
    device: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int = 512
    first_tokens: int = 64
    max_reqs: int = 256
    batches: tuple[int, ...] = (1, 8, 64, 256)
    piecewise: bool = True

    @property
    def folder(self) -> Path:
        """Where its config.json lies."""
        return CONFIGS / self.config

    def with_layers(self, layers: int) -> "Workload":
        """Return it with another depth."""
        return replace(self, overrides={**self.overrides, "num_hidden_layers": layers})

    def to_json(self) -> dict[str, Any]:
        """Give it for a child process, and for the results."""
        return {**asdict(self), "overrides": dict(self.overrides), "batches": list(self.batches)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "Workload":
        """Read what `to_json` gave."""
        return cls(**{**raw, "batches": tuple(raw["batches"])})

    def assignments(self) -> list[str]:
        """Give the overrides as words of precast's command line."""
        return [word for key, value in self.overrides.items() for word in ("--set", f"{key}={json.dumps(value)}")]


def gpu_model(*, quick: bool) -> Workload:
    """Return the shape of an 8B Llama in bfloat16; with 4 layers for a quick run."""
    model = Workload("llama-3.1-8b", "cuda", max_tokens=8192, first_tokens=2048)
    return model.with_layers(4 if quick else 32)


def cpu_model(*, quick: bool) -> Workload:
    """Return 16 layers of the width of a 135M Llama in float32; two narrow layers for a quick run."""
    if quick:
        return replace(cpu_small(), batches=(1, 8)).with_layers(2)
    return Workload("smollm2-135m", "cpu", {"dtype": "float32"}).with_layers(16)


def cpu_small() -> Workload:
    """Return the narrow model with which compile seconds are held against depth."""
    return Workload("tiny-llama", "cpu", {})
