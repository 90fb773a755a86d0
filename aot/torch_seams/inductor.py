"""Seams to Inductor's standalone artifacts: build one, and load one without compiling.

Tried on torch 2.11.0 and 2.13.0.
"""

import io
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from precast.aot.torch_seams.triton import no_compiler_started

__all__ = ["build_artifact", "load_artifact"]

_LOADING = threading.Lock()  # kernels with equal text share a process-wide table whose entries are taken out on use


def build_artifact(program: Any, options: Mapping[str, Any]) -> bytes:
    """Compile an exported program into a bundled artifact (`torch._inductor.standalone_compile(aot=True)`).

    Args:
        program: A `torch.export.ExportedProgram` with tensor inputs only.
        options: Inductor options by dotted name.
    """
    import torch._inductor

    module = program.graph_module
    for node in module.graph.nodes:
        if "val" in node.meta:
            node.meta["example_value"] = node.meta["val"]
    inputs = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
    with torch.no_grad():
        artifact = torch._inductor.standalone_compile(
            module, inputs, dynamic_shapes="from_graph", aot=True, options={"config_patches": dict(options)}
        )
    return _without_traces_of_the_build(bytes(artifact.serialize()))


def load_artifact(data: bytes) -> Callable[[list[Any]], Sequence[Any]]:
    """Load a bundled artifact; the callable takes a list of tensors and returns a sequence of tensors.

    Loading unpickles and executes the bytes: check digest, stamps and trust first. Loads run one at a time: in a
    thread pool pieces take each other's kernels and compile in silence (aoti-cuda.md).
    """
    import torch._functorch.config
    import torch._inductor.config
    from torch._inductor.standalone_compile import AOTCompiledArtifact

    quiet = no_compiler_started() if torch.cuda.is_available() else nullcontext()
    bundled = torch._functorch.config.patch(bundled_autograd_cache=True)
    alone = torch._inductor.config.patch(compile_threads=1)  # else a pool of compile workers is started
    with _LOADING, quiet, bundled, alone:
        artifact = AOTCompiledArtifact.deserialize(data)

    def run(inputs: list[Any]) -> Sequence[Any]:
        outputs: Sequence[Any] = artifact(*inputs)
        return outputs

    return run


def _without_traces_of_the_build(data: bytes) -> bytes:
    """Drop the compile time and the readable graph, which holds the build's cache folder and an address.

    The artifact was made a moment ago by this process, so unpickling it is safe.
    """
    bundle = pickle.loads(data)  # noqa: S301 - our own bytes, never stored ones
    for part in _parts(bundle):
        for name, empty in (("forward_time_taken_ns", 0), ("backward_time_taken_ns", 0), ("runnable_graph_str", "")):
            if hasattr(part, name):
                object.__setattr__(part, name, empty)
    buffer = io.BytesIO()
    pickle.dump(bundle, buffer)
    return buffer.getvalue()


def _parts(bundle: Any) -> list[Any]:
    inner = [getattr(bundle, name, None) for name in ("compiled_fw", "compiled_bw")]
    return [
        bundle,
        *[p for p in inner if p is not None],
        *[r for p in inner if (r := getattr(p, "result", None)) is not None],
    ]
