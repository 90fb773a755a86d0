"""Observe what a model's own code reads while it is imported and built: environment variables and data files.

Whatever it reads may decide what it computes, whether or not precast knows the variable or the file, so each becomes a
factor, with the value that was read first. What torch and the standard library read for themselves does not count; what
another installed package reads on the model's behalf does, unless the register says that the variable changes no code.
While a model is traced nothing is observed: Dynamo would trace the observer. Variables that traced functions name are
taken from their code instead, and so are those of modules that had been imported before.
"""

import ast
import hashlib
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

from precast.cache.environment import rule_for_variable

__all__ = ["Observation", "is_model_file", "observe", "variables_named_in"]

_STDLIB = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
_OWN = str(Path(__file__).parent.parent) + os.sep
_EXAMPLES = _OWN + "examples" + os.sep
_INSTALLED = ("site-packages", "dist-packages")
# These read for themselves, whoever calls them; they are factors of their own.
_APART = frozenset({"torch", "triton", "numpy", "_pytest", "pluggy"})
# Weights are bound at load and are no part of an artifact; sources count as code.
_NO_DATA = (
    ".bin", ".ckpt", ".gguf", ".pt", ".pth", ".py", ".pyc", ".safetensors", ".safetensors.index.json", ".so",
)  # fmt: skip
_SYSTEM = ("/proc/", "/sys/", "/dev/")


@dataclass(frozen=True, slots=True)
class Observation:
    """What was read.

    Attributes:
        variables: Value of each environment variable at its first read; None where it was not set.
        files: Digest of each data file when it was first opened; None where there was no such file.
        imported_before: Names of modules that were there before; nothing of their import was seen.
    """

    variables: dict[str, str | None] = field(default_factory=dict)
    files: dict[Path, str | None] = field(default_factory=dict)
    imported_before: frozenset[str] = frozenset()


@contextmanager
def observe(homes: Iterable[str] = ()) -> Iterator[Observation]:
    """Record reads by model code while the block runs.

    A copy of the whole environment names no variable and is not recorded.

    Args:
        homes: Top-level packages that are the model's own although they are installed.
    """
    seen = Observation(imported_before=frozenset(sys.modules))
    watcher = _Watcher(seen, frozenset(homes))
    sys.addaudithook(watcher.audit)  # cannot be removed; it does nothing once the block has ended
    try:
        with watcher.environment():
            yield seen
    finally:
        watcher.active = False


class _Watcher:
    def __init__(self, seen: Observation, homes: frozenset[str]) -> None:
        self.active = True
        self._seen = seen
        self._homes = homes
        self._copying: list[str] = []

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.active or event != "open" or not _is_data(args):
            return
        if _reader(sys._getframe(1), self._homes) is None:
            return
        path = Path(os.fsdecode(args[0])).absolute()
        self.active = False  # hashing opens the file
        try:
            if path not in self._seen.files:
                self._seen.files[path] = _digest(path)
        finally:
            self.active = True

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Wrap the environment's reads."""
        getitem, iterate = os._Environ.__getitem__, os._Environ.__iter__

        def read(environ: Any, key: Any) -> Any:
            try:
                value = getitem(environ, key)
            except KeyError:
                self._note(key, None)
                raise
            self._note(key, value)
            return value

        def names(environ: Any) -> Iterator[Any]:
            self._copying = [environ.decodekey(k) for k in environ._data]
            return iterate(environ)

        with (
            mock.patch.object(os._Environ, "__getitem__", read),
            mock.patch.object(os._Environ, "__iter__", names),
        ):
            yield

    def _note(self, key: Any, value: str | None) -> None:
        if self._copying and key == self._copying[0]:
            self._copying.pop(0)
            return
        reader = _reader(sys._getframe(2), self._homes) if isinstance(key, str) else None
        if reader is None or (reader == "installed" and _changes_nothing(key)):
            return
        self._seen.variables.setdefault(key, value)


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
    top = _installed_package(filename)
    if top is not None:
        return top in homes
    return not filename.startswith(_STDLIB)


def variables_named_in(sources: Mapping[str, str]) -> set[str]:
    """Return the variables that sources read by a literal name, such as `os.environ.get("X")` or `os.getenv("X")`.

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
    return not name.endswith(_NO_DATA) and not name.startswith(_SYSTEM) and not os.path.isdir(name)  # noqa: PTH112


def _digest(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        return None


def _changes_nothing(name: str) -> bool:
    rule = rule_for_variable(name)
    return rule is not None and not rule[1]


def _installed_package(filename: str) -> str | None:
    parts = Path(filename).parts
    folder = next((f for f in _INSTALLED if f in parts), None)
    return None if folder is None else parts[parts.index(folder) + 1].removesuffix(".py")


def _reader(frame: FrameType | None, homes: frozenset[str]) -> str | None:
    """Tell who reads: `model`, `installed` for a package that the model calls, or None for anybody else.

    An import that the model starts is another module's reading, so the search ends at the import system.
    """
    installed = False
    while frame is not None:
        filename = frame.f_code.co_filename
        if is_model_file(filename, homes):
            return "installed" if installed else "model"
        top = _installed_package(filename)
        if filename.startswith(("<frozen importlib", _OWN)) and filename != __file__:
            return None
        if top in _APART or (top is None and not filename.startswith(("<", *_STDLIB)) and filename != __file__):
            return None
        installed = installed or top is not None
        frame = frame.f_back
    return None
