"""Fixtures that several rooms share.

Compiling takes up to a minute a piece, so one tiny entry is compiled a session. While you work on tests,
`PRECAST_TEST_ROOT=/some/folder` keeps it there from session to session; it is compiled again when a source changed.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.s3 import s3, s3_server  # noqa: F401 - fixtures

REPOSITORY = Path(__file__).resolve().parent.parent
TINY = REPOSITORY / "examples" / "configs" / "tiny-llama"
MAX_TOKENS = 512


@dataclass(frozen=True)
class TinyEntry:
    """A compiled tiny Llama: the cache root, the entry's key, and the model's folder."""

    root: Path
    key: str
    folder: Path

    def copy_to(self, place: Path) -> "TinyEntry":
        """Copy the root, for a test that damages it."""
        shutil.copytree(self.root, place)
        return TinyEntry(place, self.key, self.folder)


@pytest.fixture(scope="session")
def tiny_entry(tmp_path_factory: pytest.TempPathFactory) -> TinyEntry:
    """Compile examples/configs/tiny-llama for the CPU, once a session; do not change its root."""
    from precast import Settings, precompile

    kept = os.environ.get("PRECAST_TEST_ROOT")
    root = Path(kept) if kept else _shared_folder(tmp_path_factory) / "tiny-root"
    made = precompile(str(TINY), Settings(target="cpu", max_num_batched_tokens=MAX_TOKENS), cache_dir=root)
    return TinyEntry(root, made.key, TINY)


def _shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all of pytest-xdist's processes share: one of them compiles, the others wait for it."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
