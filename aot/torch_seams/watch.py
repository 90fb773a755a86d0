"""Count what a loaded artifact must not do: Dynamo frames, Inductor lowerings, Triton compiles, processes.

The functions that do the work are wrapped, and processes are seen by the interpreter's audit events. torch's own
counters are not used: a pure load replays some of them, and none of them shows the C++ compiler (torch-aot.md section
6). A process that native code starts by itself raises no audit event and is not seen.

Tried on torch 2.11.0 and 2.13.0, Triton 3.6 and later.
"""

import importlib.abc
import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any

__all__ = ["KINDS", "CompileWatch"]

KINDS = ("dynamo_frames", "inductor_compiles", "triton_compiles", "cpp_builds", "compiler_processes", "processes")

# Module -> (attribute path, what a call of it counts as). A name that is not there any more is told, never passed over.
_POINTS: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        "torch._dynamo.convert_frame": (("_compile", "dynamo_frames"), ("fullgraph_capture", "dynamo_frames")),
        "torch._inductor.graph": (("GraphLowering.run", "inductor_compiles"),),
        "triton.compiler.compiler": (("compile", "triton_compiles"),),
        "torch._inductor.cpp_builder": (("CppBuilder.build", "cpp_builds"),),
        "_posixsubprocess": (("fork_exec", "processes"),),  # multiprocessing calls it without an audit event
    }
)
_COMPILERS = frozenset({
    "amdclang", "amdclang++", "as", "c++", "cc", "cc1", "cc1plus", "ccache", "cicc", "clang", "clang++", "collect2",
    "cpp", "cudafe++", "distcc", "dpcpp", "fatbinary", "g++", "gcc", "gold", "hipcc", "icc", "icecc", "icpc", "icpx",
    "icx", "ld", "ld.bfd", "ld.gold", "ld.lld", "lld", "lto-wrapper", "lto1", "mold", "nvc", "nvc++", "nvcc", "nvlink",
    "ptxas", "ptxas-blackwell", "sccache", "tcc",
})  # fmt: skip
_VERSION = re.compile(r"-?\d+(\.\d+)*$")  # g++-12, clang-17.0, clang17
_TRIPLET = re.compile(r"^\w+(-\w+){1,3}-(?=\D)")  # x86_64-linux-gnu-, x86_64-conda-linux-gnu-
_SHELLS = frozenset({"ash", "bash", "busybox", "dash", "ksh", "sh", "zsh"})
_LAUNCHERS = frozenset({"command", "env", "exec", "ionice", "nice", "nohup", "setsid", "stdbuf", "time", "timeout"})
_EVENTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.exec", "os.system", "os.fork", "os.forkpty"})


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
        self._real: dict[int, tuple[Any, Any]] = {}

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
        self._wrap([sys.modules[name] for name in _POINTS if name in sys.modules])
        finder = _Finder(lambda module: self._wrap([module]))
        sys.meta_path.insert(0, finder)
        self._undo.append(lambda: sys.meta_path.remove(finder))
        events = _process_events()
        events.watches.append(self)
        self._undo.append(lambda: events.watches.remove(self))
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and put every wrapped function back, also where its name was imported while the watch was on."""
        self._active = False
        while self._undo:
            self._undo.pop()()
        for module, name, value in _names():
            counted, real = self._real.get(id(value), (None, None))
            if counted is value and counted is not None:
                setattr(module, name, real)
        self._real.clear()

    def _count(self, kind: str, detail: str) -> None:
        self._counts.setdefault(self._section, Counter())[kind] += 1
        self.details.append(f"{self._section}: {kind}: {detail}")

    def _wrap(self, modules: Sequence[ModuleType]) -> None:
        """Wrap what is watched in modules; the names of all modules are looked through once for all of it."""
        found: list[tuple[Any, str, Any, str, str]] = []
        for module in modules:
            for path, kind in _POINTS[module.__name__]:
                *parents, name = path.split(".")
                holder: Any = module
                for parent in parents:
                    holder = getattr(holder, parent, None)
                real = getattr(holder, name, None)
                if real is None:
                    self.missing.append(f"{module.__name__}.{path}")
                else:
                    found.append((holder, name, real, kind, path))
        known_as = _places({id(real) for _, _, real, _, _ in found})
        for holder, name, real, kind, path in found:
            self._replace(holder, name, real, self._counting(real, kind, path), known_as.get(id(real), []))

    def _counting(self, real: Callable[..., Any], kind: str, path: str) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self._active:  # some may hold on to this after the watch, such as a closure
                self._count(kind, _detail(path, args))
            return real(*args, **kwargs)

        counted.__dict__.update(getattr(real, "__dict__", {}))
        counted.__wrapped__ = real  # type: ignore[attr-defined]
        self._real[id(counted)] = (counted, real)
        return counted

    def _replace(self, holder: Any, name: str, real: Any, new: Any, known_as: Sequence[tuple[ModuleType, str]]) -> None:
        """Put a counting function in place, also where it was imported from there before, under whatever name."""
        places = [(holder, name)]
        # subprocess raises an event of its own for the function that it has imported from _posixsubprocess
        if isinstance(holder, ModuleType) and holder.__name__ != "_posixsubprocess":
            places += [(m, n) for m, n in known_as if m is not holder]
        for place, other in places:
            setattr(place, other, new)
            self._undo.append(partial(setattr, place, other, real))

    def saw(self, event: str, args: Sequence[Any]) -> None:
        """Count a process that was started; called by the process's one audit hook."""
        programs = _programs(event, args)
        if event != "os.exec":  # takes this process's place
            self._count("processes", " ".join(programs) or event)
        compilers = [p for p in programs if _is_compiler(p)]
        if compilers:
            self._count("compiler_processes", compilers[0])


class _ProcessEvents:
    """The audit hook of this process: one for all watches, since a hook cannot be removed and each slows every event.

    Attributes:
        watches: Watches that are on.
    """

    def __init__(self) -> None:
        self.watches: list[CompileWatch] = []

    def __call__(self, event: str, args: Sequence[Any]) -> None:
        if not self.watches or event not in _EVENTS:
            return
        if event == "os.posix_spawn" and sys._getframe(1).f_code.co_filename == subprocess.__file__:
            return  # the second event of one Popen
        for watch in tuple(self.watches):
            watch.saw(event, args)


@cache
def _process_events() -> _ProcessEvents:
    events = _ProcessEvents()
    sys.addaudithook(events)
    return events


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
        module.__loader__ = self._real
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        self._real.exec_module(module)
        self._wrap(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _names() -> Iterator[tuple[ModuleType, str, Any]]:
    """Yield every name of every imported module."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            for name, value in list(module.__dict__.items()):
                yield module, name, value


def _places(wanted: set[int]) -> dict[int, list[tuple[ModuleType, str]]]:
    """Find under which names of which modules objects are known, by their `id`."""
    found: dict[int, list[tuple[ModuleType, str]]] = {}
    for module, name, value in _names():
        if id(value) in wanted:
            found.setdefault(id(value), []).append((module, name))
    return found


def _programs(event: str, args: Sequence[Any]) -> list[str]:
    """Return the names of the programs that a process runs, those that a shell or a launcher runs for it included."""
    if event in ("os.fork", "os.forkpty"):
        return []
    if event == "os.system":
        return _of_script(_text(args[0]))
    argv = args[1] if len(args) > 1 and args[1] else [args[0]]
    words = _text(argv).split() if isinstance(argv, (str, bytes, os.PathLike)) else [_text(a) for a in argv]
    found = _of_words(words)
    file = _name(_text(args[0])) if args[0] else ""
    return found if not file or file in found else [file, *found]


def _of_words(words: Sequence[str]) -> list[str]:
    if not words:
        return []
    name, rest = _name(words[0]), list(words[1:])
    if name in _SHELLS:
        flag = next((at for at, word in enumerate(rest) if word.startswith("-") and word.endswith("c")), None)
        return [name, *(_of_script(rest[flag + 1]) if flag is not None and len(rest) > flag + 1 else [])]
    if name in _LAUNCHERS:
        while rest and (rest[0].startswith("-") or "=" in rest[0] or rest[0][:1].isdigit()):
            rest.pop(0)
        return [name, *_of_words(rest)]
    return [name]


def _of_script(text: str) -> list[str]:
    """Return the program of each command of a shell script, roughly: it is split where commands end."""
    found = []
    for command in re.split(r"[;&|()`\n]+|\$\(", text):
        words = [w.strip("'\"") for w in command.split()]
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        found += _of_words(words)
    return found


def _name(path: str) -> str:
    return os.path.basename(path)  # noqa: PTH119 - runs per process


def _text(value: Any) -> str:
    return os.fsdecode(value) if isinstance(value, (str, bytes, os.PathLike)) else str(value)


def _is_compiler(program: str) -> bool:
    bare = program if program in _COMPILERS else _VERSION.sub("", program)
    return bare in _COMPILERS or _TRIPLET.sub("", bare) in _COMPILERS


def _detail(path: str, args: Sequence[Any]) -> str:
    """Name the kernel of a Triton compile, else the function."""
    function = getattr(args[0], "fn", None) if args else None
    name = getattr(function, "__name__", None)
    return f"{path} {name}" if name else path
