"""What a payload kind is: how a piece becomes bytes, and how checked bytes become a callable."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from precast.aot.passes import mark_given, one_row_products, pass_names, separate_adds
from precast.aot.target import Target
from precast.splitter.stitch import PieceCallable

__all__ = ["TIMED", "BuildJob", "PayloadKind", "pass_options", "untimed_options", "vector_options"]

TIMED = (
    "max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "coordinate_descent_tuning", "shape_padding",
)  # fmt: skip
"""Inductor options that choose code by timing it on the device."""

_VECTOR_BITS = {"x86-64-v3": 256, "x86-64-v4": 512, "aarch64": 128}


@dataclass(frozen=True, slots=True)
class BuildJob:
    """One unique piece for one compile range.

    Attributes:
        program: The piece as a `torch.export.ExportedProgram`.
        target: What the code must run on.
        options: Inductor options that the user gave, by dotted name.
        folder: A private folder for the build.
    """

    program: Any
    target: Target
    options: Mapping[str, Any]
    folder: Path


class PayloadKind(Protocol):
    """One way to store a compiled piece."""

    name: str

    def options(self, target: Target) -> Mapping[str, Any]:
        """Return the Inductor options that this kind sets; they are part of the key."""

    def require_tools(self, target: Target) -> None:
        """Refuse a target for which `build` lacks something on this machine, before any piece is compiled.

        Raises:
            IncompatibleError: It is not here; the error says what to install.
        """

    def build(self, job: BuildJob) -> bytes:
        """Compile a piece. Imports the compiler."""

    def needs(self, data: bytes) -> dict[str, str]:
        """Return the stamps that only the bytes of a payload tell, such as the C library that they need.

        Raises:
            CompileError: They need something that no stamp can say.
        """

    def load(self, data: bytes, folder: Path | None, name: str) -> PieceCallable:
        """Make a callable of bytes whose digest, stamps and trust have been checked.

        Args:
            data: What `build` returned.
            folder: A private folder that lives as long as the load; None where there can be none.
            name: A file name for the payload, unique in the folder.
        """


def pass_options(target: Target) -> dict[str, Any]:
    """Return the Inductor options that run precast's own passes over a piece. Imports the compiler."""
    if not pass_names(target):
        return {}
    from precast.aot.torch_seams import passes

    return passes.pass_options([mark_given], [separate_adds, one_row_products])


def untimed_options() -> dict[str, Any]:
    """Return Inductor options that keep timing on a device out of the code, so that two builds agree."""
    return dict.fromkeys(TIMED, False)


def vector_options(target: Target) -> dict[str, Any]:
    """Return the Inductor option for the width of a CPU target's vectors; else it is that of the build machine."""
    bits = _VECTOR_BITS.get(target.arch) if target.device == "cpu" else None
    return {} if bits is None else {"cpp.simdlen": bits}
