"""Python imports this at start-up where its folder is on PYTHONPATH: what is traced and compiled is counted.

`COUNT_LOG` is a file; each process appends one JSON line to it when it ends. What does the work is wrapped as soon as
its module is imported; a name that is not there any more is counted as missing, so that nothing passes unseen.
"""

import atexit
import importlib.abc
import importlib.util
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

_LOG = os.environ.get("COUNT_LOG", "")
_POINTS = {
    "torch._dynamo.convert_frame": ({"_compile": "dynamo", "fullgraph_capture": "dynamo"}),
    "torch._inductor.graph": {"GraphLowering.run": "inductor"},
    "torch._inductor.cpp_builder": {"CppBuilder.build": "cpp"},
    "triton.compiler.compiler": {"compile": "triton"},
}
_COMPILERS = ("gcc", "g++", "cc", "c++", "clang", "clang++", "nvcc", "ptxas", "ld", "as")
_SEEN: Counter[str] = Counter()


def _wrap(module: Any) -> None:
    for path, kind in _POINTS[module.__name__].items():
        *outer, name = path.split(".")
        holder = getattr(module, outer[0], None) if outer else module
        real = getattr(holder, name, None)
        if real is None:
            _SEEN[f"missing {module.__name__}.{path}"] += 1
            continue

        def counted(*args: Any, _real: Any = real, _kind: str = kind, **kwargs: Any) -> Any:
            _SEEN[_kind] += 1
            return _real(*args, **kwargs)

        counted.__wrapped__ = real  # type: ignore[attr-defined]
        setattr(holder, name, counted)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in _POINTS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            _wrap(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _audit(event: str, args: Any) -> None:
    if event in ("subprocess.Popen", "os.posix_spawn", "os.system"):
        _SEEN["processes"] += 1
        words = [os.fsdecode(args[0]), *(map(os.fsdecode, args[1] or ()) if len(args) > 1 else ())]
        _SEEN["compilers"] += any(Path(word).name in _COMPILERS for word in words)


def _write() -> None:
    line = json.dumps(
        {"counts": dict(_SEEN), "torch": "torch" in sys.modules, "dynamo": "torch._dynamo" in sys.modules}
    )
    with Path(_LOG).open("a", encoding="utf-8") as log:
        log.write(line + "\n")


if _LOG:
    sys.meta_path.insert(0, _Finder())
    sys.addaudithook(_audit)
    atexit.register(_write)
