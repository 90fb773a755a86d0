"""Observe what a model's own code reads while it is built and traced: environment variables and data files.

Whatever it reads may decide what it computes, whether or not precast knows the variable or the file, so each becomes
a factor. Only reads by the model's code count: torch, the standard library and other installed packages read a great
deal that has nothing to do with the model. Modules that had been imported before cannot be observed; their sources
are searched for reads of the environment instead.
"""

import ast
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

__all__ = ["Observation", "is_model_file", "observe", "variables_named_in"]

_STDLIB = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_OWN = str(Path(__file__).parent.parent) + os.sep
_EXAMPLES = _OWN + "examples" + os.sep
# Weights are bound at load and are no part of an artifact; sources count as code.
_NO_DATA = (
    ".bin", ".ckpt", ".gguf", ".pt", ".pth", ".py", ".pyc", ".safetensors", ".safetensors.index.json", ".so",
)  # fmt: skip


@dataclass
class Observation:
    """What was read.

    Attributes:
        variables: Names of environment variables, set or not.
        files: Regular files that were opened for reading.
        imported_before: Names of modules that were there before; nothing of their import was seen.
    """

    variables: set[str] = field(default_factory=set)
    files: set[Path] = field(default_factory=set)
    imported_before: frozenset[str] = frozenset()


@contextmanager
def observe(homes: Iterable[str] = ()) -> Iterator[Observation]:
    """Record reads by model code while the block runs.

    Args:
        homes: Top-level packages that are the model's own although they are installed.
    """
    seen = Observation(imported_before=frozenset(sys.modules))
    own = frozenset(homes)
    active = True

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if active and event == "open" and _is_data(args) and _reader(sys._getframe(1), own, through_installed=True):
            seen.files.add(Path(os.fsdecode(args[0])).resolve())

    real = os._Environ.__getitem__

    def getitem(self: Any, key: Any) -> Any:
        if isinstance(key, str) and _reader(sys._getframe(1), own, through_installed=False):
            seen.variables.add(key)
        return real(self, key)

    sys.addaudithook(audit)  # cannot be removed; it does nothing once the block has ended
    try:
        with mock.patch.object(os._Environ, "__getitem__", getitem):
            yield seen
    finally:
        active = False


def is_model_file(filename: str, homes: frozenset[str] = frozenset()) -> bool:
    """Tell whether a source file is a model's own: neither installed, nor of the standard library, nor of precast.

    Args:
        filename: As a code object names it.
        homes: Installed top-level packages that count as the model's own.
    """
    if filename.startswith("<"):
        return False
    if filename.startswith(_OWN):
        return filename.startswith(_EXAMPLES)
    parts = Path(filename).parts
    for folder in ("site-packages", "dist-packages"):
        if folder in parts:
            top = parts[parts.index(folder) + 1].removesuffix(".py")
            return top in homes
    return not filename.startswith(_STDLIB)


def variables_named_in(sources: Mapping[str, str]) -> set[str]:
    """Return the variables that sources read by a literal name: `os.environ["X"]`, `os.environ.get("X")`,
    `os.getenv("X")`.

    Args:
        sources: Source text by module name; what does not parse is passed over, since it cannot have been imported.
    """
    names: set[str] = set()
    for text in sources.values():
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        names.update(name for node in ast.walk(tree) if (name := _variable_of(node)) is not None)
    return names


def _variable_of(node: ast.AST) -> str | None:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _ends_with(node.value, "environ"):
        return _literal(node.slice)
    if isinstance(node, ast.Compare) and any(_ends_with(c, "environ") for c in node.comparators):
        return _literal(node.left)
    if isinstance(node, ast.Call) and node.args:
        function = node.func
        getter = isinstance(function, ast.Attribute) and function.attr in ("get", "setdefault", "pop")
        if _ends_with(function, "getenv") or (getter and _ends_with(function.value, "environ")):  # type: ignore[attr-defined]
            return _literal(node.args[0])
    return None


def _ends_with(node: ast.AST, name: str) -> bool:
    return (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.Attribute) and node.attr == name)


def _literal(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _is_data(args: tuple[Any, ...]) -> bool:
    path, mode = args[0], args[1]
    if not isinstance(path, (str, bytes)) or (isinstance(mode, str) and not mode.startswith("r")):
        return False
    name = os.fsdecode(path)
    return not name.endswith(_NO_DATA) and not name.startswith(("/proc/", "/sys/", "/dev/")) and os.path.isfile(name)  # noqa: PTH113


def _reader(frame: FrameType | None, homes: frozenset[str], *, through_installed: bool) -> bool:
    """Tell whether the code that reads is the model's, looking through the standard library that it calls.

    An import that it starts is another module's reading, so the search ends at the import system.
    """
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename.startswith("<frozen importlib"):
            return False
        if is_model_file(filename, homes):
            return True
        library = filename.startswith(("<frozen", *_STDLIB)) and "site-packages" not in filename
        installed = "site-packages" in filename and not filename.startswith(_OWN)
        if filename != __file__ and not library and not (through_installed and installed):
            return False
        frame = frame.f_back
    return False
