"""A library mapped from memory: the same numbers as from a folder, and never another library of the same name."""

import io
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import TinyEntry

from precast.aot.payloads.aoti import AotiPayload
from precast.aot.torch_seams import in_memory
from precast.aot.torch_seams.in_memory import is_about_folder, load_library
from precast.cache.manifest import Manifest
from precast.cache.store import Store
from precast.errors import StoreAccessError
from precast.splitter.plan import RunPiece, SplitPlan

Run = Callable[[list[Any]], Sequence[Any]]


def payloads(entry: TinyEntry) -> tuple[Manifest, dict[str, bytes]]:
    store = Store(entry.root, read_only=True)
    made = store.manifest(entry.key)
    return made, {r.name.partition(":")[0]: store.read_object(r.object, r.bytes) for r in made.payloads}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def inputs_of(made: Manifest, piece: str) -> list[torch.Tensor]:
    plan = SplitPlan.from_json(made.plan)
    given = {i.name: i for i in plan.inputs}
    step = next(s for s in plan.steps if isinstance(s, RunPiece) and s.key == piece and set(s.inputs) <= set(given))
    torch.manual_seed(0)
    made_up = []
    for name in step.inputs:
        shape = [5 if size is None else size for size in given[name].shape]
        dtype = getattr(torch, given[name].dtype)
        made_up.append(torch.rand(shape).to(dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype))
    return made_up


@pytest.mark.compiles
def test_it_computes_what_the_unpacked_package_computes(tiny_entry: TinyEntry, tmp_path: Path) -> None:
    made, packages = payloads(tiny_entry)
    step = next(s for s in SplitPlan.from_json(made.plan).steps if isinstance(s, RunPiece))
    piece, given = step.key, inputs_of(made, step.key)
    from_folder = AotiPayload().load(packages[piece], tmp_path, "piece")
    from_memory = AotiPayload().load(packages[piece], None, "piece")
    taken = [*given]
    unpacked, mapped = from_folder([*given]), from_memory(taken)
    assert taken == []
    for name, mine, theirs in zip(step.outputs, mapped, unpacked, strict=True):
        if not name.startswith("out_"):  # the memory that the attention op will fill
            assert torch.equal(mine, theirs), name


@pytest.mark.compiles
def test_libraries_are_told_apart_although_their_files_have_the_same_number(tiny_entry: TinyEntry) -> None:
    made, packages = payloads(tiny_entry)
    first = next(s.key for s in SplitPlan.from_json(made.plan).steps if isinstance(s, RunPiece))
    before = open_files()
    runs: dict[str, Run] = {key: AotiPayload().load(data, None, "piece") for key, data in packages.items()}
    assert open_files() == before
    given = inputs_of(made, first)
    assert len(runs) == 3
    assert [key for key, run in runs.items() if takes(run, given)] == [first]


def takes(run: Run, given: list[torch.Tensor]) -> bool:
    try:
        return bool(run([*given]))
    except RuntimeError:
        return False


@pytest.mark.compiles
@pytest.mark.parametrize("words", ["Failed to create temporary directory: Read-only", "x: failed to map segment from"])
def test_a_folder_that_will_not_do_is_done_without(
    tiny_entry: TinyEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def refuse(path: Path, *, scratch: Path | None) -> Run:
        raise RuntimeError(words)

    monkeypatch.setattr("precast.aot.torch_seams.aoti.load_package", refuse)
    made, packages = payloads(tiny_entry)
    piece = next(s.key for s in SplitPlan.from_json(made.plan).steps if isinstance(s, RunPiece))
    assert AotiPayload().load(packages[piece], tmp_path, "piece")(inputs_of(made, piece))
    assert list(tmp_path.iterdir()) == []


def package(*members: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        for name in members:
            made.writestr(name, b"no library")
    return file.getvalue()


@pytest.mark.parametrize("members", [("a.so", "k.cubin"), ("a.so", "b.so"), ("a.txt",)], ids=str)
def test_a_package_that_needs_more_than_one_file_must_be_unpacked(members: tuple[str, ...]) -> None:
    with pytest.raises(StoreAccessError) as caught:
        AotiPayload().load(package(*members), None, "piece")
    assert "TMPDIR" in caught.value.hint


def test_what_is_no_library_is_refused_and_no_file_stays_open() -> None:
    before = open_files()
    with pytest.raises(RuntimeError):
        load_library(b"no library")
    assert open_files() == before


def test_other_faults_of_a_package_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *, scratch: Path | None) -> Run:
        raise RuntimeError("undefined symbol")

    monkeypatch.setattr("precast.aot.torch_seams.aoti.load_package", refuse)
    monkeypatch.setattr(in_memory, "load_library", lambda data: pytest.fail("loaded another way"))
    with pytest.raises(RuntimeError, match="undefined symbol"):
        AotiPayload().load(package("a.so"), tmp_path, "piece")
    assert not is_about_folder(RuntimeError("undefined symbol"))


def test_names_are_never_used_twice() -> None:
    descriptor = os.open("/dev/null", os.O_RDONLY)
    try:
        names = {in_memory._unique_path(descriptor) for _ in range(1000)}
        assert len(names) == 1000
        assert {str(Path(name).readlink()) for name in names} == {"/dev/null"}
        assert max(map(len, names)) < 100
    finally:
        os.close(descriptor)


def test_an_old_kernel_s_files_in_memory_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = os.memfd_create, []

    def old(name: str, flags: int) -> int:
        asked.append(flags)
        if flags & in_memory._MFD_EXEC:
            raise OSError(22, "Invalid argument")
        return real(name, flags)

    monkeypatch.setattr(os, "memfd_create", old)
    os.close(in_memory._memory_file())
    assert len(asked) == 2
