"""What must hold before a precompile goes on."""

from pathlib import Path

import pytest

from precast.aot.preconditions import require_target, require_usable, require_work_possible
from precast.aot.progress import Silent
from precast.aot.target import Target
from precast.cache.options import StoreOptions
from precast.cache.store import Store
from precast.errors import IncompatibleError, StoreAccessError, UsageError


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def test_a_store_that_is_read_only_is_no_place_to_precompile(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="writes to the store") as caught:
        require_usable(Store(tmp_path, read_only=True), StoreOptions(), output=None, compiles=False)
    assert "--check" in caught.value.hint
    require_usable(Store(tmp_path), StoreOptions(), output=None, compiles=False)


def test_a_file_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreAccessError):
        require_work_possible(Store(tmp_path), tmp_path / "file" / "model.mega", Silent())
    require_work_possible(Store(tmp_path), tmp_path / "model.mega", Silent())


@pytest.mark.parametrize(("payload", "told"), [("inductor", 1), ("aoti", 0)])
def test_what_a_load_on_a_cpu_will_compile_is_said(payload: str, told: int) -> None:
    progress = Notes()
    require_target(Target("cpu", "x86-64-v3"), payload, progress)
    assert len(progress.notes) == told


def test_a_processor_without_vectors_is_refused() -> None:
    with pytest.raises(IncompatibleError, match="no AVX2"):
        require_target(Target("cpu", "x86-64-v2"), "aoti", Silent())
