"""The `aoti` payload: an AOTInductor package, loaded in milliseconds without Dynamo, Inductor or a compiler."""

import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precast.aot.payloads.base import BuildJob, untimed_options
from precast.aot.target import ISA_LEVELS, Target
from precast.errors import CompileError
from precast.splitter.stitch import PieceCallable

__all__ = ["AotiPayload"]

_EPOCH = (1980, 1, 1, 0, 0, 0)
_KEPT = (".so", ".cubin", "_metadata.json")
_OPENED_AT_RUN = ".cubin"
_SOURCES = (".cpp",)  # hold the build's paths and are not read, but torch 2.11 finds the metadata by their names
_LEFT_OUT = b"// source left out\n"
_VERSION_FILES = ("archive_format", "archive_version", "byteorder", "/version")


class AotiPayload:
    """Builds and loads AOTInductor packages."""

    name = "aoti"

    def options(self, target: Target) -> Mapping[str, Any]:
        """Return options under which equal inputs make equal code on every machine of the target."""
        common: dict[str, Any] = {"aot_inductor.precompile_headers": False, **untimed_options()}
        if target.device == "cpu":
            common["cpp.dynamic_threads"] = True  # else the build machine's core count is baked in
            common["cpp.simdlen"] = 512 if target.arch == ISA_LEVELS[2] else 256
        return common

    def build(self, job: BuildJob) -> bytes:
        """Compile a piece into a package with nothing of the build machine in it."""
        from precast.aot.torch_seams.aoti import build_package

        raw = job.folder / "raw.pt2"
        march = job.target.arch if job.target.arch in ISA_LEVELS else None
        build_package(job.program, raw, {**self.options(job.target), **job.options}, march)
        return _repack(raw, job.folder)

    def load(self, data: bytes, folder: Path, name: str) -> PieceCallable:
        """Write the package into a private folder and load it with torch's C++ loader.

        Nothing stays on the disk once the library is mapped, even if the process is killed later. Only a package
        with cubins must keep torch's own temporary folder: its code opens them at the first call.
        """
        from precast.aot.torch_seams.aoti import load_package

        scratch = folder / name
        scratch.mkdir()
        try:
            path = scratch / "piece.pt2"
            path.write_bytes(data)
            return load_package(path, scratch=None if _reads_files_later(path) else scratch)
        finally:
            shutil.rmtree(scratch)


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
            if not name.endswith((*_KEPT, *_SOURCES, *_VERSION_FILES)):
                continue
            data = _LEFT_OUT if name.endswith(_SOURCES) else old.read(name)
            if name.endswith(".so"):
                data = _strip(data, folder)
            root, _, rest = name.partition("/")
            new.writestr(zipfile.ZipInfo(f"piece/{rest}" if root and rest else name, _EPOCH), data)
    return out.read_bytes()


def _strip(library: bytes, folder: Path) -> bytes:
    """Drop symbols and debug lines: two thirds of the bytes, and the build's paths."""
    path = folder / "library.so"
    path.write_bytes(library)
    strip = shutil.which("strip")
    if strip is None:
        raise CompileError("`strip` was not found", "it comes with the C++ compiler's binutils", "install binutils")
    subprocess.run([strip, "--strip-unneeded", str(path)], check=True)
    return path.read_bytes()
