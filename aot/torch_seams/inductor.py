"""Seams to Inductor's standalone artifacts: build one, and load one without compiling.

Tried on torch 2.11.0 and 2.13.0.
"""

import io
import json
import pickle
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from precast.aot.torch_seams.triton import no_compiler_started

__all__ = ["build_artifact", "load_artifact"]

_KERNEL_PATH = re.compile(r"^# kernel path: .*$", re.MULTILINE)

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
        node.meta.pop("stack_trace", None)  # else the generated text quotes the model's files
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
    """Drop compile times, and texts for people: they hold folders of the build and addresses, and no load reads them.

    The artifact was made a moment ago by this process, so unpickling it is safe.
    """
    bundle = pickle.loads(data)  # noqa: S301 - our own bytes, never stored ones
    for part in _parts(bundle):
        for name, value in list(vars(part).items()):
            if name.endswith("_time_taken_ns"):
                object.__setattr__(part, name, 0)
            elif name.endswith("_str") and isinstance(value, str):
                object.__setattr__(part, name, "")
            elif name == "cache_linemap":  # lines of the wrapper, each with the lines of the model behind it
                object.__setattr__(part, name, [(line, "") for line, _ in value or ()])
            elif name == "source_code" and isinstance(value, str):
                _set_source(part, _KERNEL_PATH.sub("# kernel path:", value))
            elif name == "_triton_bundle" and value is not None:
                _without_folders(value)
    buffer = io.BytesIO()
    pickle.dump(bundle, buffer)
    return buffer.getvalue()


def _set_source(part: Any, text: str) -> None:
    """Give a part another source text, and the name under which a load keeps that text, which is its digest."""
    from torch._inductor.codecache import code_hash

    if text != part.source_code:
        part.source_code, part.cache_key = text, code_hash(text)


def _without_folders(bundle: Any) -> None:
    """Leave of the files that a Triton bundle names their last names: a load makes kernels of what is in the bundle."""
    for tuner in bundle.static_autotuners:
        if tuner.kernel.filename is not None:
            tuner.kernel.filename = Path(tuner.kernel.filename).name
    for kernel in bundle.kernel_artifacts:
        for artifact in kernel.artifacts:
            if artifact.filename.endswith(".json"):
                told = json.loads(artifact.payload)
                told["extern_libs"] = [[name, Path(path).name] for name, path in told.get("extern_libs") or ()]
                object.__setattr__(artifact, "payload", json.dumps(told).encode())


def _parts(bundle: Any) -> list[Any]:
    """Return the objects of a bundle that describe the compile; the bundle is a tuple around the first of them."""
    outer = [part for part in (bundle if isinstance(bundle, tuple) else (bundle,)) if hasattr(part, "compiled_fw")]
    if not outer:
        raise NotImplementedError("this torch bundles a compiled artifact in another way")
    inner = [part for whole in outer for part in (whole.compiled_fw, whole.compiled_bw) if part is not None]
    return [*outer, *inner, *(part.result for part in inner if hasattr(part, "result"))]
