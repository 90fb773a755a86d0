"""Code factors: every source file that took part in building and tracing a model, by module name and content.

The set is the factory's module, what it refers to and imports, module by module, what was imported while the model was
built, and each file whose functions were traced. torch and Triton count as distributions, precast's own sources as
compiler factors. The standard library does not count: what it does to a trace is in the graph.
"""

import ast
import importlib.util
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from precast.aot.observe import is_model_file
from precast.cache.canonical import Json, sha256
from precast.cache.factors import Factor
from precast.cache.sources import distribution_content, hash_source
from precast.errors import CompileError

__all__ = ["IMPORTED_DIGEST", "SCRIPTS", "ModelCode", "model_code", "own_sources"]

_APART = frozenset({"torch", "triton", "precast"})  # compiler factors
_OWN_EXAMPLES = "precast.examples"
SCRIPTS = ("__main__", "__mp_main__")  # the names of a script while it runs; the other one is multiprocessing's
IMPORTED_DIGEST = "__precast_source__"  # set on a module: digest of the source that the process runs
# What of precast itself decides the generated code (W8: an edited pass must not find old entries).
_OWN = (
    "splitter/*.py", "aot/assumptions.py", "aot/compile.py", "aot/described.py", "aot/elf.py", "aot/kernels.py",
    "aot/levels.py", "aot/passes/*.py", "aot/planning.py", "aot/settings.py", "aot/spec.py", "aot/target.py",
    "aot/trace.py", "aot/worker.py", "aot/payloads/*.py", "aot/torch_seams/aoti.py", "aot/torch_seams/capture.py",
    "aot/torch_seams/described*.py", "aot/torch_seams/export.py", "aot/torch_seams/inductor.py",
    "aot/torch_seams/kernels.py", "aot/torch_seams/parameters.py", "aot/torch_seams/passes.py",
    "aot/torch_seams/tuning.py",
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


def model_code(roots: Iterable[str], traced_files: Iterable[Path], known: Container[str] | None = None) -> ModelCode:
    """Return the code of a model that has been imported and traced.

    Args:
        roots: Modules to start from: the factory's and those of the spec's functions.
        traced_files: Files whose functions were traced.
        known: Modules that were imported before the model was; the model's own among the others count, however they
            were imported. None when nobody looked.

    Raises:
        CompileError: A source file is gone, or is not the one that this process imported.
    """
    homes = frozenset(r.partition(".")[0] for r in roots) - _APART
    fresh = () if known is None else (n for n in list(sys.modules) if n not in known)
    files = _closure([*roots, *fresh], homes)
    own = set(files)
    files |= {name: Path(str(sys.modules[name].__file__)) for name in _owners(traced_files)}
    read = {_public_name(name): _source(name, path) for name, path in sorted(files.items())}
    factors = [Factor("code", f"module:{name}", sha256(data)) for name, data in read.items()]
    for name in sorted(_foreign_packages(own)):
        content = distribution_content(name)
        if content is not None:
            value: dict[str, Json] = {"version": content.version, "digest": content.digest}
            factors.append(Factor("code", f"distribution:{content.name}", value))
    unique = {f.name: f for f in factors}
    public = {_public_name(name) for name in own}
    sources = {name: data.decode("utf-8", "replace") for name, data in read.items() if name in public}
    return ModelCode(tuple(unique.values()), sources)


def _closure(roots: Iterable[str], homes: frozenset[str]) -> dict[str, Path]:
    """Follow what modules refer to and import, as far as it is the model's own code.

    A module that an import statement names counts whether it is loaded yet or not, and a submodule that somebody else
    loaded only where the model's code names it, so that the set does not depend on what else the process has done.
    """
    waiting = list(roots)
    seen: dict[str, Path | None] = {}
    named: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            path = seen[name] = _file_of(name, homes)
            if path is not None:
                tree = _parsed(_source(name, path))
                waiting.extend(_referred(name, path, tree))
                named |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        if not waiting:
            waiting = [n for n in _loaded_submodules(seen) if n not in seen and n.rpartition(".")[2] in named]
    return {name: path for name, path in seen.items() if path is not None}


def _loaded_submodules(names: Iterable[str]) -> Iterator[str]:
    """Name the submodules that are attributes of packages: import binds them there, whoever asks for it."""
    for name in list(names):
        for attribute, value in list(vars(sys.modules[name]).items()) if name in sys.modules else ():
            if _is_submodule(name, attribute, value):
                yield f"{name}.{attribute}"


def _is_submodule(package: str, attribute: str, value: object) -> bool:
    return isinstance(value, ModuleType) and value.__name__ == f"{package}.{attribute}"


def _parsed(source: bytes) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])  # it names nothing that could be followed


def _file_of(name: str, homes: frozenset[str]) -> Path | None:
    """Return the source file of a module that is the model's own, without importing it."""
    module = sys.modules.get(name)
    if module is not None:
        found = getattr(module, "__file__", None)
    elif name.rpartition(".")[0] in ("", *sys.modules):
        try:
            spec = importlib.util.find_spec(name)  # its parents are loaded, so nothing is imported
        except (ImportError, ValueError, AttributeError):
            return None
        found = spec.origin if spec is not None else None
    else:
        return None
    path = Path(str(found or ""))
    own = path.suffix == ".py" and path.is_absolute() and is_model_file(str(path), homes)
    return path if own else None


def _referred(name: str, path: Path, tree: ast.Module) -> Iterator[str]:
    module = sys.modules.get(name)
    for origin in _values_of(module) if module is not None else ():
        yield from _with_parents(origin)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for origin in _imported(tree, package):
        yield from _with_parents(origin)


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Name what a source imports, inside functions too: a constant's value does not tell where it is from."""
    parts = package.split(".") if package else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            if origin:
                yield origin
                yield from (f"{origin}.{alias.name}" for alias in node.names)


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[: n + 1]) for n in range(len(parts)))


def _foreign_packages(own: Iterable[str]) -> set[str]:
    """Return the distributions that the model's loaded modules refer to, other than those counted elsewhere."""
    from importlib.metadata import packages_distributions

    names = {n for name in own if name in sys.modules for n in _values_of(sys.modules[name])}
    tops = {n.partition(".")[0] for n in names}
    tops -= {n.partition(".")[0] for n in own} | _APART | set(sys.stdlib_module_names)
    by_package = packages_distributions()
    return {d for t in tops for d in by_package.get(t, ())}


def _values_of(module: ModuleType) -> Iterator[str]:
    """Name the modules that a module's globals are, or come from."""
    for attribute, value in list(vars(module).items()):
        if _is_submodule(module.__name__, attribute, value):
            continue
        origin = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(origin, str):
            yield origin


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
    """Name a script as it is imported by others: by its module where it was run as one (`-m`), else by its file."""
    if name not in SCRIPTS:
        return name
    spec = getattr(sys.modules[name], "__spec__", None)
    return str(spec.name) if spec is not None else Path(str(sys.modules[name].__file__)).stem


def _source(name: str, path: Path) -> bytes:
    """Read a module's source, and refuse it when this process has imported another version of the file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CompileError(f"the source of `{name}` cannot be read", str(error), "restore the file") from error
    module = sys.modules.get(name)
    if module is not None and vars(module).setdefault(IMPORTED_DIGEST, sha256(data)) != sha256(data):
        raise CompileError(
            f"the source of `{name}` has changed since this process imported it",
            "the graph would be the old code's and the key the new one's",
            "start a new process",
        )
    return data
