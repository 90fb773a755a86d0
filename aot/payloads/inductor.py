"""The `inductor` payload: Inductor's bundled artifact. It is quickest to build, and needs no C++ toolchain on CUDA.

On a CPU its load runs the C++ compiler, so it is meant for CUDA, where the Triton bundle travels inside.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

from precast.aot.payloads.base import BuildJob, pass_options, untimed_options, vector_options
from precast.aot.target import Target
from precast.splitter.stitch import PieceCallable

__all__ = ["KEEP", "InductorPayload", "keeps_configs"]

KEEP: Mapping[str, Any] = MappingProxyType({"triton.autotune_pointwise": True})
"""The Inductor options with which all configs of a kernel are stored, so that the node chooses (`--tune keep`)."""


def keeps_configs(options: Mapping[str, Any]) -> bool:
    """Tell whether all configs of a kernel are stored under some Inductor options, or the first alone."""
    return all(options.get(name) == value for name, value in KEEP.items())


def _stored_configs(target: Target, options: Mapping[str, Any]) -> AbstractContextManager[None]:
    if target.device == "cpu" or keeps_configs(options):
        return nullcontext()
    from precast.aot.torch_seams.tuning import first_configs

    return first_configs()


class InductorPayload:
    """Builds and loads Inductor's standalone artifacts."""

    name = "inductor"

    def options(self, target: Target) -> Mapping[str, Any]:
        """Return options under which the load compiles nothing and the build times nothing (cross-compile.md)."""
        options = {**untimed_options(), **vector_options(target)}
        if target.device == "cuda":
            options |= {
                "bundle_triton_into_fx_graph_cache": True,
                "use_static_triton_launcher": True,
                "strict_static_triton_launcher": True,
                "dynamic_scale_rblock": False,  # its extra config is made after the bundle is saved
                "triton.autotune_at_compile_time": False,
                "triton.autotune_pointwise": False,
                "autotune_local_cache": False,  # else a load looks beside the file that the build generated
            }
        return options

    def require_tools(self, target: Target) -> None:
        """Ask for nothing: Triton brings its own compiler."""

    def build(self, job: BuildJob) -> bytes:
        """Compile a piece into a bundled artifact."""
        from precast.aot.torch_seams.inductor import build_artifact

        options = {**self.options(job.target), **pass_options(job.target), **job.options}
        with _stored_configs(job.target, options):
            return build_artifact(job.program, options)

    def needs(self, data: bytes) -> dict[str, str]:  # noqa: ARG002 - the protocol's
        """Return nothing: the artifact holds text and GPU code, and what Python and Triton need of it is known."""
        return {}

    def load(self, data: bytes, folder: Path | None, name: str) -> PieceCallable:  # noqa: ARG002 - the protocol's
        """Deserialize the artifact; Inductor writes its source into its own cache folder."""
        from precast.aot.torch_seams.caches import user_has_name
        from precast.aot.torch_seams.inductor import load_artifact

        with user_has_name():
            return load_artifact(data)
