"""Seams to Dynamo: capture one graph, name the sources of its inputs, mark dynamic dims, read its errors.

Tried on torch 2.11.0 and 2.13.0.
"""

import dis
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch import Tensor, fx, nn

from precast.aot.observe import is_model_file

__all__ = ["Capture", "CaptureError", "capture_graph", "mark_dynamic_dim", "placeholder_source", "stores_outside"]

_STORES = frozenset({"STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "DELETE_ATTR", "DELETE_GLOBAL", "DELETE_SUBSCR"})
# Dynamo stores an attribute or buffer of a module by a call, and replays what forward did to a dict, list or set.
_STORING_CALLS = frozenset(
    {"object_setattr_ignore_descriptor", "update", "clear", "extend", "append", "add", "move_to_end", "__setattr__"}
)


@dataclass(frozen=True, slots=True)
class Capture:
    """What Dynamo captured.

    Attributes:
        graph_module: The graph, with parameters and buffers lifted to placeholders.
        traced_files: File of each code object that was inlined, torch's own included.
        environment_strings: String constants of the inlined functions that mention the environment.
        bytecode: The code that Dynamo made around the graph.
        rebuild: `rebuild(outputs, *args)` runs that code with the given graph outputs and returns forward's result.
    """

    graph_module: fx.GraphModule
    traced_files: frozenset[str]
    environment_strings: frozenset[str]
    bytecode: CodeType
    rebuild: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class CaptureError(Exception):
    """Dynamo could not make one graph.

    Attributes:
        title: First line of Dynamo's message: the kind of obstacle.
        reason: Dynamo's explanation of it.
        location: `file.py:12` of the model's line, or empty.
        line: Text of that line, or empty.
        kind: Name of Dynamo's exception type.
    """

    title: str
    reason: str
    location: str
    line: str
    kind: str


def mark_dynamic_dim(tensor: Tensor, dim: int, shape_id: str) -> None:
    """Mark a dim as unbacked; equal shape ids become one symbol (`torch._dynamo.decorators.mark_unbacked`)."""
    from torch._dynamo.decorators import mark_unbacked

    mark_unbacked(tensor, dim, shape_id=shape_id)


def capture_graph(module: nn.Module, args: tuple[Tensor, ...]) -> Capture:
    """Capture `module(*args)` as one graph (`torch._dynamo.convert_frame.fullgraph_capture`).

    Args:
        module: The module. One with a `forward` of its own is traced in the midst of a running process: that forward is
            captured alone, and what others have compiled with Dynamo stays as it is.
        args: Example inputs, their dynamic dims marked.

    Raises:
        CaptureError: The model graph-breaks, or uses something that Dynamo or a fake tensor does not support.
    """
    from torch._dynamo import convert_frame
    from torch._dynamo.exc import TorchDynamoException
    from torch._dynamo.utils import get_metrics_context

    own = vars(module).get("forward")  # of a twin of a live module; a class's forward is traced with its hooks
    if own is None:
        torch._dynamo.reset()
    try:
        with torch.no_grad(), get_metrics_context(), _without_history():
            captured = convert_frame.fullgraph_capture(own or module, args, {})
    except (TorchDynamoException, RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError) as error:
        raise _failure(error) from error
    if captured.backend_input is None:
        raise CaptureError("empty graph", "forward computes nothing with tensors", "", "", "EmptyGraph")
    output = captured.graph_capture_output

    def rebuild(outputs: Sequence[Any], *inputs: Any) -> Any:
        return captured.forward_callable(compiled_fn=lambda *_: tuple(outputs))(*inputs)

    files = frozenset(code.co_filename for code in output.traced_code)
    strings = frozenset(s for code in output.traced_code for s in _environment_strings(code))
    return Capture(captured.backend_input.graph_module, files, strings, output.bytecode, rebuild)


def _without_history() -> Any:
    """Keep sizes and numbers that Dynamo saw in other traces of the same code from becoming symbols in this one."""
    import torch._dynamo.config as dynamo_config

    return dynamo_config.patch(automatic_dynamic_shapes=False)


def _environment_strings(code: CodeType) -> Iterator[str]:
    if {"environ", "getenv"} & set(code.co_names):
        yield from (c for c in code.co_consts if isinstance(c, str))


def placeholder_source(node: fx.Node) -> str:
    """Return Dynamo's name of a placeholder's source, such as `L['self']._modules['norm']._parameters['weight']`."""
    source = getattr(node, "_dynamo_source", None)
    name = getattr(source, "name", None)
    return str(name() if callable(name) else name)  # a method up to 2.11, a property later


def stores_outside(code: CodeType) -> tuple[str, ...]:
    """Name the attributes and globals that forward itself assigns; the graph alone would lose them."""
    instructions = list(dis.get_instructions(code))
    found = []
    for at, i in enumerate(instructions):
        if i.opname in _STORES:
            found.append(str(i.argval) if i.argval is not None else "an item")
        elif i.opname in ("LOAD_ATTR", "LOAD_METHOD") and i.argval in _STORING_CALLS:
            names = (j.argval for j in instructions[at:] if j.opname == "LOAD_CONST" and isinstance(j.argval, str))
            found.append(next(names, "an item"))
    return tuple(dict.fromkeys(found))


def _failure(error: BaseException) -> CaptureError:
    frame = _user_frame(error)
    location = f"{frame.filename}:{frame.lineno}" if frame else ""
    line = (frame.line or "").strip() if frame else ""
    title, reason = _message(str(error))
    return CaptureError(title, reason, location, line, type(error).__name__)


def _user_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Return the innermost frame of the model's code, else the innermost of all.

    Dynamo keeps the frames as `real_stack`, or only in the message. The innermost is often torch's own, such as the
    `forward` of a layer that the model calls.
    """
    stack = getattr(error, "real_stack", None)
    frames: list[traceback.FrameSummary] = list(stack or ())
    if not frames:
        found = re.findall(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.+)', str(error))
        frames = [traceback.FrameSummary(path, int(number), name, line=text) for path, number, name, text in found]
    own = [frame for frame in frames if is_model_file(frame.filename)]
    return next(reversed(own or frames), None)


def _message(text: str) -> tuple[str, str]:
    """Return the first line of Dynamo's message, and its explanation; where that is empty, its debug context."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    title = lines[0] if lines else "no message"
    for label in ("Explanation:", "Developer debug context:"):
        found = next((line.removeprefix(label).strip() for line in lines if line.startswith(label)), "")
        if found:
            return title, found
    return title, title
