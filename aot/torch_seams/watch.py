"""Count what a loaded artifact must not do: Dynamo frames, Inductor lowerings, Triton compiles, compiler processes.

The functions that do the work are wrapped, and processes are seen by the interpreter's audit events. torch's own
counters are not used: a pure load replays some of them, and none of them shows the C++ compiler (torch-aot.md section
6).

Tried on torch 2.11.0 and 2.13.0, Triton 3.6 and later.
"""

import importlib.abc
import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any

__all__ = ["KINDS", "CompileWatch"]

KINDS = ("dynamo_frames", "inductor_compiles", "triton_compiles", "cpp_builds", "compiler_processes")

# Module -> (attribute path, what a call of it counts as). A name that is not there any more is told, never passed over.
_POINTS: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "torch._dynamo.convert_frame": (("_compile", "dynamo_frames"), ("fullgraph_capture", "dynamo_frames")),
        "torch._inductor.graph": (("GraphLowering.run", "inductor_compiles"),),
        "triton.compiler.compiler": (("compile", "triton_compiles"),),
        "torch._inductor.cpp_builder": (("CppBuilder.build", "cpp_builds"),),
    }
)
_COMPILERS = frozenset({
    "as", "c++", "cc", "cc1", "cc1plus", "cicc", "clang", "clang++", "collect2", "g++", "gcc", "ld", "nvcc", "ptxas",
})  # fmt: skip
_EVENTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.exec", "os.system"})


class CompileWatch:
    """Counts compile work while it is entered.

    Attributes:
        missing: Names that this torch does not have any more; what they counted is not proved.
        details: What was seen, one line each, for people.
    """

    def __init__(self) -> None:
        self.missing: list[str] = []
        self.details: list[str] = []
        self._counts: dict[str, Counter[str]] = {}
        self._section = "main"
        self._active = False
        self._undo: list[Callable[[], None]] = []

    def counts(self, section: str = "main") -> dict[str, int]:
        """Return the counts of a section, every kind included."""
        seen = self._counts.get(section, Counter())
        return {kind: seen[kind] for kind in KINDS}

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Count under another name for a while."""
        before, self._section = self._section, name
        try:
            yield
        finally:
            self._section = before

    def __enter__(self) -> "CompileWatch":
        """Start to count."""
        self._active = True
        for name in _POINTS:
            module = sys.modules.get(name)
            if module is not None:
                self._wrap_module(module)
        finder = _Finder(self._wrap_module)
        sys.meta_path.insert(0, finder)
        self._undo.append(lambda: sys.meta_path.remove(finder))
        sys.addaudithook(self._audit)  # cannot be removed; it does nothing once the watch has ended
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and put every wrapped function back."""
        self._active = False
        while self._undo:
            self._undo.pop()()

    def _count(self, kind: str, detail: str) -> None:
        self._counts.setdefault(self._section, Counter())[kind] += 1
        self.details.append(f"{self._section}: {kind}: {detail}")

    def _wrap_module(self, module: ModuleType) -> None:
        for path, kind in _POINTS[module.__name__]:
            *parents, name = path.split(".")
            holder: Any = module
            for parent in parents:
                holder = getattr(holder, parent, None)
            real = getattr(holder, name, None)
            if real is None:
                self.missing.append(f"{module.__name__}.{path}")
            else:
                self._replace(holder, name, real, self._counting(real, kind, path))

    def _counting(self, real: Callable[..., Any], kind: str, path: str) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._count(kind, _detail(path, args))
            return real(*args, **kwargs)

        counted.__dict__.update(getattr(real, "__dict__", {}))
        counted.__wrapped__ = real  # type: ignore[attr-defined]
        return counted

    def _replace(self, holder: Any, name: str, real: Any, new: Any) -> None:
        """Put a counting function in place, also where the name was imported from there before."""
        places = [holder]
        if isinstance(holder, ModuleType):
            others = [m for m in list(sys.modules.values()) if m is not holder]
            places += [m for m in others if getattr(m, "__dict__", {}).get(name) is real]
        for place in places:
            setattr(place, name, new)
            self._undo.append(partial(setattr, place, name, real))

    def _audit(self, event: str, args: Sequence[Any]) -> None:
        if not self._active or event not in _EVENTS:
            return
        words = _words(event, args)
        program = os.path.basename(words[0]).rstrip("0123456789.-") if words else ""  # noqa: PTH119 - runs per process
        if program in ("sh", "bash") and len(words) > 2 and words[2].split():
            program = os.path.basename(words[2].split()[0]).rstrip("0123456789.-")  # noqa: PTH119
        if program in _COMPILERS:
            self._count("compiler_processes", program)


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps a module as soon as it has been imported."""

    def __init__(self, wrap: Callable[[ModuleType], None]) -> None:
        self._wrap = wrap
        self._busy: set[str] = set()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname not in _POINTS or fullname in self._busy:
            return None
        self._busy.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._wrap)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, real: Any, wrap: Callable[[ModuleType], None]) -> None:
        self._real = real
        self._wrap = wrap

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        self._wrap(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _words(event: str, args: Sequence[Any]) -> list[str]:
    if event == "os.system":
        return os.fsdecode(args[0]).split()
    argv = args[1] if len(args) > 1 and args[1] else [args[0]]
    if isinstance(argv, (str, bytes)):
        return os.fsdecode(argv).split()
    return [os.fsdecode(a) if isinstance(a, (str, bytes, os.PathLike)) else str(a) for a in argv]


def _detail(path: str, args: Sequence[Any]) -> str:
    """Name the kernel of a Triton compile, else the function."""
    function = getattr(args[0], "fn", None) if args else None
    name = getattr(function, "__name__", None)
    return f"{path} {name}" if name else path
