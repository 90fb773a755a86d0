"""The `aoti` payload: an AOTInductor package, loaded in milliseconds without Dynamo, Inductor or a compiler."""

import io
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from precast.aot.elf import without_search_path
from precast.aot.libraries import needed_versions
from precast.aot.payloads.base import BuildJob, pass_options, untimed_options, vector_options
from precast.aot.payloads.generated import SOURCES, in_place_of
from precast.aot.target import Target, host_isa
from precast.cache.scratch import require_scratch
from precast.errors import CompileError, StoreAccessError
from precast.splitter.stitch import PieceCallable

__all__ = ["AotiPayload"]

_EPOCH = (1980, 1, 1, 0, 0, 0)
_KEPT = (".so", ".cubin", "_metadata.json")
_OPENED_AT_RUN = ".cubin"
# Named in full, for some compilers link their static one: a process then has two C++ libraries with one set of symbols,
# and dies when it loads the package (seen as SIGSEGV on a GPU image, as std::bad_cast on a CPU).
_CXX_LIBRARY = ":libstdc++.so.6"
_VERSION_FILES = ("archive_format", "archive_version", "byteorder", "/version")


class AotiPayload:
    """Builds and loads AOTInductor packages."""

    name = "aoti"

    def options(self, target: Target) -> Mapping[str, Any]:
        """Return options under which equal inputs make equal code on every machine of the target."""
        common = {
            "aot_inductor.custom_op_libs": [_CXX_LIBRARY],
            "aot_inductor.precompile_headers": False,
            "aot_inductor.model_name_for_generated_files": "piece",  # else a digest of folders names them
            **untimed_options(),
            **vector_options(target),
        }
        if target.device == "cpu":
            common["cpp.dynamic_threads"] = True  # else the build machine's core count is baked in
        else:
            common["aot_inductor.embed_kernel_binary"] = True  # else the library names the build's folders
            common["triton.autotune_pointwise"] = False
            common["dynamic_scale_rblock"] = False
        return common

    def require_tools(self, target: Target) -> None:
        """Refuse a GPU where CUDA's headers are not here."""
        if target.device == "cpu":
            return
        from precast.aot.torch_seams.described_aoti import cuda_headers

        cuda_headers()

    def build(self, job: BuildJob) -> bytes:
        """Compile a piece into a package with nothing of the build machine in it."""
        from precast.aot.torch_seams.aoti import build_package

        raw = job.folder / "raw.pt2"
        with _described(job):
            options = {**self.options(job.target), **pass_options(job.target), **job.options}
            build_package(job.program, raw, options, host_isa(job.target))
        return _repack(raw, job.folder)

    def needs(self, data: bytes) -> dict[str, str]:
        """Return the versions of the system's libraries that the libraries in a package were linked against."""
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as members:
                return needed_versions(members.read(name) for name in members.namelist() if name.endswith(".so"))
        except zipfile.BadZipFile:
            return {}  # torch will say what is wrong with it
        except ValueError as error:
            raise CompileError(
                "a compiled piece cannot be moved", str(error), "build with GNU's compiler and linker"
            ) from error

    def load(self, data: bytes, folder: Path | None, name: str) -> PieceCallable:
        """Load the package from a private folder with torch's C++ loader; without a usable folder, from memory.

        Nothing stays on the disk once the library is mapped, even if the process is killed later. Only a package
        with cubins must keep torch's own temporary folder: its code opens them at the first call.
        """
        from precast.aot.torch_seams.in_memory import is_about_folder, load_library

        if folder is None:
            return load_library(_only_library(data))
        try:
            return _load_unpacked(data, folder / name)
        except RuntimeError as error:
            if not is_about_folder(error):
                raise
            try:
                library = _only_library(data)
            except StoreAccessError:
                raise error from None
            return load_library(library)


def _described(job: BuildJob) -> AbstractContextManager[None]:
    """On a GPU's description the build needs headers, a linker's stub and no device."""
    if job.target.device == "cpu":
        return nullcontext()
    from precast.aot.torch_seams.described_aoti import aoti_for_described_device

    return aoti_for_described_device(job.folder)


def _load_unpacked(data: bytes, scratch: Path) -> PieceCallable:
    from precast.aot.torch_seams.aoti import load_package

    scratch.mkdir()
    try:
        path = scratch / "piece.pt2"
        path.write_bytes(data)
        return load_package(path, scratch=None if _reads_files_later(path) else scratch)
    finally:
        shutil.rmtree(scratch)


def _only_library(data: bytes) -> bytes:
    """Return the library of a package that needs no other file.

    Raises:
        StoreAccessError: It needs others, so it must be unpacked.
    """
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as members:
            libraries = [name for name in members.namelist() if name.endswith((".so", _OPENED_AT_RUN))]
            if len(libraries) == 1 and libraries[0].endswith(".so"):
                return members.read(libraries[0])
    purpose = "unpack payloads into"
    require_scratch(purpose)
    raise StoreAccessError(f"There is no usable folder to {purpose}", "a file in it is opened later", "Set TMPDIR")


def _reads_files_later(package: Path) -> bool:
    """Tell whether the code of a package opens unpacked files when it is called."""
    if not zipfile.is_zipfile(package):
        return False  # torch will say what is wrong with it
    with zipfile.ZipFile(package) as members:
        return any(name.endswith(_OPENED_AT_RUN) for name in members.namelist())


def _repack(package: Path, folder: Path) -> bytes:
    """Keep what the loader needs, strip the library, and write members in order with no time in them."""
    out = folder / "stripped.pt2"
    with zipfile.ZipFile(package) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as new:
        for name in sorted(old.namelist()):
            if not name.endswith((*_KEPT, *SOURCES, *_VERSION_FILES)):
                continue
            data = old.read(name)
            if name.endswith(SOURCES):
                data = in_place_of(data)
            if name.endswith(".so"):
                data = _strip(data, folder)
            root, _, rest = name.partition("/")
            new.writestr(zipfile.ZipInfo(f"piece/{rest}" if root and rest else name, _EPOCH), data)
    return out.read_bytes()


def _strip(library: bytes, folder: Path) -> bytes:
    """Drop symbols, debug lines and search paths: two thirds of the bytes, and the build's folders."""
    path = folder / "library.so"
    path.write_bytes(library)
    strip = shutil.which("strip")
    if strip is None:
        raise CompileError("`strip` was not found", "it comes with the C++ compiler's binutils", "install binutils")
    subprocess.run([strip, "--strip-unneeded", str(path)], check=True)
    return without_search_path(path.read_bytes())
