"""One small artifact that the GPU tests share: compiling takes most of their time."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import TINY

from precast.aot.spec import Json


@dataclass(frozen=True)
class GpuEntry:
    """A tiny Llama in float32, compiled for the GPU here: the cache root, the key, and what its config replaces."""

    root: Path
    key: str
    overrides: dict[str, Json]


@pytest.fixture(scope="session")
def gpu_entry(tmp_path_factory: pytest.TempPathFactory) -> GpuEntry:
    """Compile examples/configs/tiny-llama for the GPU here, once a session, for up to 64 tokens."""
    from precast import Settings, precompile

    root = tmp_path_factory.mktemp("gpu-root")
    overrides: dict[str, Json] = {"num_hidden_layers": 2, "dtype": "float32"}
    settings = Settings(target="cuda", max_num_batched_tokens=64)
    made = precompile(str(TINY), settings, overrides=overrides, cache_dir=root)
    return GpuEntry(root, made.key, overrides)
