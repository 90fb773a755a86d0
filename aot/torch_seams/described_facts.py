"""Answers about a described GPU that differ from GPU to GPU, and whether somebody asked for one.

They are in a file of their own, because Dynamo takes a model's question into the trace without running the answer: what
it tells afterwards is the files of the functions that it went through. Questions from outside a trace, such as that of
an op's fake implementation, run the answer and are noted there. Those of torch itself decide how code is made, not what
is traced, and do not count.

Tried on torch 2.11.0.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

__all__ = ["Questions", "fact", "were_traced"]

_FILE = Path(__file__)
_COMPILERS = ("torch.", "triton.")
_asked: list[list[str]] = []  # one list for each `Questions` that is entered


def fact(name: str, value: Any) -> Callable[..., Any]:
    """Return a function that answers with a fact of the described GPU.

    Args:
        name: What it answers for, such as `get_device_name`.
        value: The answer.
    """

    def answer(*_: Any, **__: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():  # true wherever Dynamo takes this into a trace
            _note(name)
        return value

    return answer


class Questions:
    """Notes what is asked while it is entered, outside of torch and of a trace.

    Attributes:
        names: What was asked, by name.
    """

    def __init__(self) -> None:
        self.names: list[str] = []

    def __enter__(self) -> "Questions":
        """Begin to note."""
        _asked.append(self.names)
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        _asked[:] = [names for names in _asked if names is not self.names]


def were_traced(files: Iterable[Path]) -> bool:
    """Tell whether a trace went through an answer.

    Args:
        files: Source file of each function that was traced.
    """
    return any(file.name == _FILE.name and file.resolve() == _FILE.resolve() for file in files)


def _note(name: str) -> None:
    caller = sys._getframe(2).f_globals.get("__name__", "")
    if not f"{caller}.".startswith(_COMPILERS):
        for found in _asked:
            found.append(name)
