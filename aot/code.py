"""Code factors: every source file that took part in building and tracing a model, by module name and content.

The set is the factory's module and what it refers to, module by module, and each file whose functions were traced.
torch and Triton count as distributions, precast's own sources as compiler factors, the standard library by Python's
version.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from precast.cache.canonical import Json, sha256
from precast.cache.factors import Factor
from precast.cache.sources import distribution_content, hash_source
from precast.errors import CompileError

__all__ = ["ModelCode", "model_code", "own_sources"]

_APART = frozenset({"torch", "triton", "precast"})  # compiler factors
_OWN_EXAMPLES = "precast.examples"
# What of precast itself decides the generated code (W8: an edited pass must not find old entries).
_OWN = (
    "splitter/*.py", "aot/trace.py", "aot/worker.py", "aot/compile.py", "aot/spec.py", "aot/payloads/*.py",
    "aot/torch_seams/aoti.py", "aot/torch_seams/capture.py", "aot/torch_seams/export.py",
    "aot/torch_seams/inductor.py", "aot/torch_seams/parameters.py",
)  # fmt: skip


def own_sources() -> tuple[Factor, ...]:
    """Return precast's own splitting, tracing and codegen sources as compiler factors; needs no torch."""
    import precast

    root = Path(precast.__file__).parent
    files = sorted({p for pattern in _OWN for p in root.glob(pattern)})
    return tuple(
        Factor("compiler", "precast." + ".".join(p.relative_to(root).with_suffix("").parts), hash_source(p))
        for p in files
    )


@dataclass(frozen=True, slots=True)
class ModelCode:
    """The code that took part.

    Attributes:
        factors: One a module, one an installed distribution.
        sources: Text of the model's own modules, by name.
    """

    factors: tuple[Factor, ...]
    sources: Mapping[str, str]


def model_code(roots: Iterable[str], traced_files: Iterable[Path]) -> ModelCode:
    """Return the code of a model that has been imported and traced.

    Args:
        roots: Modules to start from: the factory's and those of the spec's functions.
        traced_files: Files whose functions were traced.

    Raises:
        CompileError: A traced source file is gone or unreadable.
    """
    modules = _closure(roots)
    names = {m.__name__ for m in modules} | set(_owners(traced_files))
    read = {_public_name(name): data for name in sorted(names) if (data := _source(name)) is not None}
    factors = [Factor("code", f"module:{name}", sha256(data)) for name, data in read.items()]
    for name in sorted(_foreign_packages(modules)):
        content = distribution_content(name)
        if content is not None:
            value: dict[str, Json] = {"version": content.version, "digest": content.digest}
            factors.append(Factor("code", f"distribution:{content.name}", value))
    unique = {f.name: f for f in factors}
    return ModelCode(tuple(unique.values()), {name: data.decode("utf-8", "replace") for name, data in read.items()})


def _closure(roots: Iterable[str]) -> list[ModuleType]:
    """Follow what modules refer to, as far as it is the model's own code."""
    homes = {r.partition(".")[0] for r in roots} - _APART
    waiting = [n for n in roots if n in sys.modules]
    seen: dict[str, ModuleType] = {}
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if name in seen or module is None or not _is_model_code(module, homes):
            continue
        seen[name] = module
        waiting.extend(_referred(module))
    return list(seen.values())


def _referred(module: ModuleType) -> Iterator[str]:
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            yield name
            parent = name.rpartition(".")[0]
            if parent:
                yield parent


def _is_model_code(module: ModuleType, homes: frozenset[str] | set[str]) -> bool:
    top = module.__name__.partition(".")[0]
    if module.__name__.startswith(_OWN_EXAMPLES):
        return True
    if top in _APART or top in sys.stdlib_module_names or not getattr(module, "__file__", None):
        return False
    return top in homes or not _is_installed(Path(str(module.__file__)))


def _is_installed(path: Path) -> bool:
    return any(part in ("site-packages", "dist-packages") for part in path.parts)


def _foreign_packages(modules: Iterable[ModuleType]) -> set[str]:
    """Return the distributions that the model's modules refer to, other than those counted elsewhere."""
    from importlib.metadata import packages_distributions

    own = {m.__name__.partition(".")[0] for m in modules}
    tops = {n.partition(".")[0] for m in modules for n in _referred(m)}
    tops -= own | _APART | set(sys.stdlib_module_names)
    by_package = packages_distributions()
    return {d for t in tops for d in by_package.get(t, ())}


def _owners(files: Iterable[Path]) -> Iterator[str]:
    """Name the modules of traced files, but for torch's, Triton's, precast's and the standard library's own."""
    by_file = {str(m.__file__): n for n, m in list(sys.modules.items()) if getattr(m, "__file__", None)}
    for file in files:
        name = by_file.get(str(file))
        if name is None:
            raise CompileError(
                f"the traced file `{file.name}` belongs to no imported module",
                "its content could not be checked at the next start, so a stale entry could be used",
                "put the model's code into a module",
            )
        top = name.partition(".")[0]
        if name.startswith(_OWN_EXAMPLES) or (top not in _APART and top not in sys.stdlib_module_names):
            yield name


def _public_name(name: str) -> str:
    """Name a script as it is imported by others: by its file."""
    return Path(str(sys.modules[name].__file__)).stem if name == "__main__" else name


def _source(name: str) -> bytes | None:
    file = Path(str(getattr(sys.modules[name], "__file__", None) or ""))
    if file.suffix != ".py":
        return None
    try:
        return file.read_bytes()
    except OSError as error:
        raise CompileError(f"the source of `{name}` cannot be read", str(error), "restore the file") from error
