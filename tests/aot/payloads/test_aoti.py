"""The `aoti` payload: the same bytes from every folder, and nothing of the machine that built it."""

import importlib.util
import io
import json
import os
import shutil
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import REPOSITORY, TinyEntry

from precast.aot.elf import SharedObject
from precast.aot.libraries import highest, needed_versions
from precast.aot.payloads import aoti
from precast.aot.payloads.aoti import AotiPayload
from precast.aot.payloads.base import BuildJob
from precast.aot.payloads.generated import source_digests
from precast.aot.payloads.inductor import InductorPayload
from precast.aot.target import Target
from precast.aot.torch_seams.aoti import _unpacked_in_tmp, load_package
from precast.cache.canonical import sha256
from precast.cache.paths import absolute_paths
from precast.cache.store import Store
from precast.errors import CompileError
from precast.splitter.plan import RunPiece, SplitPlan

V3, V4 = Target("cpu", "x86-64-v3"), Target("cpu", "x86-64-v4")


def library() -> bytes:
    """A real shared library, to be stripped: one of Python's own."""
    spec = importlib.util.find_spec("_json")
    if spec is None or not str(spec.origin).endswith(".so"):
        pytest.skip("this Python has no extension module as a file")
    return Path(str(spec.origin)).read_bytes()


def raw_package(path: Path, root: str, order: int = 1) -> Path:
    """What AOTInductor writes: a library, sources with the build's paths, and version files."""
    members = {
        f"{root}/archive_format": b"pt2", f"{root}/byteorder": b"little", f"{root}/.data/version": b"3",
        f"{root}/data/aotinductor/model/abc.so": library(),
        f"{root}/data/aotinductor/model/abc.cpp": f"// {path}\nint piece;\n".encode(),
        f"{root}/data/aotinductor/model/abc_metadata.json": b"{}",
        f"{root}/.data/serialization_id": root.encode(),
    }  # fmt: skip
    with zipfile.ZipFile(path, "w") as package:
        for name in list(members)[::order]:
            package.writestr(zipfile.ZipInfo(name, (2026, 1, order % 12 + 1, 0, 0, 0)), members[name])
    return path


def repacked(folder: Path, root: str = "raw", order: int = 1) -> bytes:
    folder.mkdir()
    return aoti._repack(raw_package(folder / "raw.pt2", root, order), folder)


def test_a_repacked_package_holds_what_the_loader_needs_and_no_source_text(tmp_path: Path) -> None:
    package = zipfile.ZipFile(io.BytesIO(repacked(tmp_path / "a")))
    assert package.namelist() == [
        "piece/.data/version", "piece/archive_format", "piece/byteorder", "piece/data/aotinductor/model/abc.cpp",
        "piece/data/aotinductor/model/abc.so", "piece/data/aotinductor/model/abc_metadata.json",
    ]  # fmt: skip
    assert source_digests(repacked(tmp_path / "b")) == {"piece/data/aotinductor/model/abc.cpp": sha256(b"int piece;")}
    assert b"int piece" not in package.read("piece/data/aotinductor/model/abc.cpp")


def test_a_repacked_package_does_not_depend_on_name_order_time_or_folder(tmp_path: Path) -> None:
    assert repacked(tmp_path / "a") == repacked(tmp_path / "another", "other_root", -1)


def test_a_repacked_package_has_no_path_of_its_build(tmp_path: Path) -> None:
    assert str(tmp_path).encode() not in repacked(tmp_path / "a")


def test_without_strip_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(CompileError, match="strip") as caught:
        repacked(tmp_path / "a")
    assert "binutils" in caught.value.hint


def test_what_a_package_needs_of_the_system_is_read_off_its_libraries(tmp_path: Path) -> None:
    package = repacked(tmp_path / "a")
    assert AotiPayload().needs(package) == needed_versions([library()])
    assert AotiPayload().needs(b"no package") == {}


def test_a_library_that_needs_what_no_stamp_can_say_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def needs(libraries: Any) -> dict[str, str]:
        raise ValueError("it needs GLIBC_PRIVATE")

    monkeypatch.setattr(aoti, "needed_versions", needs)
    with pytest.raises(CompileError, match="moved") as caught:
        AotiPayload().needs(repacked(tmp_path / "a"))
    assert "GLIBC_PRIVATE" in caught.value.why


def test_a_search_path_that_the_compiler_adds_is_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def clean(data: bytes) -> bytes:
        seen.append(data)
        return b"clean"

    monkeypatch.setattr(aoti, "without_search_path", clean)
    package = zipfile.ZipFile(io.BytesIO(repacked(tmp_path / "a")))
    assert [package.read(n) for n in package.namelist() if n.endswith(".so")] == [b"clean"]
    assert [data[:4] for data in seen] == [b"\x7fELF"]


def test_the_vector_width_is_the_target_s_and_not_the_machine_s() -> None:
    for kind in (AotiPayload(), InductorPayload()):
        assert [kind.options(t)["cpp.simdlen"] for t in (V3, V4, Target("cpu", "aarch64"))] == [256, 512, 128]
    assert AotiPayload().options(V3)["cpp.dynamic_threads"] is True


@pytest.mark.compiles
def test_a_compiler_that_links_its_library_statically_makes_packages_that_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a package has a C++ library of its own beside torch's, and its load fails or kills the process."""
    compiler = tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@" -static-libstdc++\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (str(compiler),))

    class Product(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (torch.relu(x @ x.T).sum(-1),)

    x = torch.randn(8, 16)
    program = torch.export.export(Product(), (x,))
    (tmp_path / "build").mkdir()
    built = AotiPayload().build(BuildJob(program, V3, {}, tmp_path / "build"))
    assert "glibcxx" in AotiPayload().needs(built)
    torch.testing.assert_close(list(AotiPayload().load(built, tmp_path, "piece")([x.clone()])), list(Product()(x)))


def test_generated_files_are_not_named_by_a_digest_of_folders() -> None:
    assert AotiPayload().options(V3)["aot_inductor.model_name_for_generated_files"] == "piece"


def test_nothing_is_timed_while_building() -> None:
    for target in (V3, Target("cuda", "sm_90")):
        options = AotiPayload().options(target)
        assert not options["max_autotune"]
        assert not options["coordinate_descent_tuning"]
    assert "cpp.simdlen" not in AotiPayload().options(Target("cuda", "sm_90"))


@pytest.mark.parametrize(("target", "isa"), [(V3, "x86-64-v3"), (Target("cpu", "aarch64"), "aarch64")])
def test_a_build_is_for_the_target_with_the_user_s_options_last(
    target: Target, isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def build(program: Any, path: Path, options: Any, built_for: str) -> None:
        seen.append((program, options["cpp.simdlen"], built_for))
        raw_package(path, "raw")

    monkeypatch.setattr("precast.aot.torch_seams.aoti.build_package", build)
    assert AotiPayload().build(BuildJob("program", target, {"cpp.simdlen": 1}, tmp_path))
    assert seen == [("program", 1, isa)]


def test_a_loaded_package_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = len

    def load(path: Path, *, scratch: Path | None) -> Any:
        assert path.read_bytes() == b"data"
        assert scratch is not None
        (scratch / "aotinductor_unpacked").mkdir()
        return run

    monkeypatch.setattr("precast.aot.torch_seams.aoti.load_package", load)
    assert AotiPayload().load(b"data", tmp_path, "piece") is run
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_torch_refuses_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        AotiPayload().load(b"not a zip", tmp_path, "piece")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("member", "unpacks_here"), [("a/k.cubin", False), ("a/k.so", True)])
def test_only_a_package_that_opens_files_when_called_keeps_torch_s_folder(
    member: str, unpacks_here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(
        "precast.aot.torch_seams.aoti.load_package", lambda path, *, scratch: seen.append(scratch is not None)
    )
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as package:
        package.writestr(member, b"")
    AotiPayload().load((tmp_path / "p.zip").read_bytes(), tmp_path, "piece")
    assert seen == [unpacks_here]


@pytest.mark.compiles
def test_real_payloads_leave_nothing_on_the_disk_and_still_run(tiny_entry: TinyEntry, tmp_path: Path) -> None:
    store = Store(tiny_entry.root, read_only=True)
    made = store.manifest(tiny_entry.key)
    before = set(_unpacked_in_tmp()), os.environ.get("TMPDIR")
    runs = {
        r.name.partition(":")[0]: AotiPayload().load(store.read_object(r.object, r.bytes), tmp_path, r.object[:16])
        for r in made.payloads
    }
    assert all(len(source_digests(store.read_object(r.object, r.bytes))) == 2 for r in made.payloads)
    assert list(tmp_path.iterdir()) == []
    assert (set(_unpacked_in_tmp()), os.environ.get("TMPDIR")) == before
    plan = SplitPlan.from_json(made.plan)
    given = {i.name: i for i in plan.inputs}
    first = next(s for s in plan.steps if isinstance(s, RunPiece))
    inputs = [
        torch.zeros([3 if s is None else s for s in given[n].shape], dtype=getattr(torch, given[n].dtype))
        for n in first.inputs
    ]
    assert [o.shape[0] for o in runs[first.key](inputs)] == [3] * len(first.outputs)


def test_torch_unpacks_into_the_scratch_folder_and_the_variable_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    class Loader:
        def __init__(self, *_: Any) -> None:
            seen.append(os.environ.get("TMPDIR"))
            self.boxed_run = len

    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", Loader)
    monkeypatch.setenv("TMPDIR", "/their/own")
    load_package(tmp_path / "p.pt2", scratch=tmp_path)
    load_package(tmp_path / "p.pt2")
    assert seen == [str(tmp_path), "/their/own"]
    assert os.environ["TMPDIR"] == "/their/own"


@pytest.mark.compiles
def test_no_real_payload_holds_a_path_of_this_machine(tiny_entry: TinyEntry) -> None:
    store = Store(tiny_entry.root, read_only=True)
    places = [str(Path.home()), str(REPOSITORY), "/tmp/", str(tiny_entry.root), sysconfig.get_paths()["purelib"]]
    for record in store.manifest(tiny_entry.key).payloads:
        data = store.read_object(record.object, record.bytes)
        assert absolute_paths(data) == ()
        with zipfile.ZipFile(io.BytesIO(data)) as package:
            for member in package.infolist():
                found = [p for p in places if p.encode() in package.read(member)]
                assert not found, f"{record.name} {member.filename}"
                assert member.date_time == (1980, 1, 1, 0, 0, 0)
                if member.filename.endswith(".so"):
                    assert SharedObject.parse(package.read(member)).search_path == ()


@pytest.mark.compiles
def test_a_real_entry_is_stamped_with_what_its_libraries_need(tiny_entry: TinyEntry) -> None:
    store = Store(tiny_entry.root, read_only=True)
    manifest = store.manifest(tiny_entry.key)
    needs = [AotiPayload().needs(store.read_object(r.object, r.bytes)) for r in manifest.payloads]
    stamps = manifest.stamps["aoti"]
    assert {"glibc", "glibcxx", "cxxabi"} <= set(stamps)
    for field in {field for found in needs for field in found}:
        assert stamps[field] == highest(*(found[field] for found in needs if field in found))
    assert "python" not in stamps


@pytest.mark.compiles
def test_a_real_entry_was_built_for_its_target_alone(tiny_entry: TinyEntry) -> None:
    store = Store(tiny_entry.root, read_only=True)
    manifest = store.manifest(tiny_entry.key)
    vectors = {"x86-64-v3": "AVX2", "x86-64-v4": "AVX512"}
    for record in manifest.payloads:
        with zipfile.ZipFile(io.BytesIO(store.read_object(record.object, record.bytes))) as package:
            told = [json.loads(package.read(n)) for n in package.namelist() if n.endswith("_metadata.json")]
        assert {meta["AOTI_CPU_ISA"] for meta in told} == {vectors[str(manifest.target["arch"])]}
