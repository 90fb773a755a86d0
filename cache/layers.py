"""Layers: every folder in which precast, or a library that it may run, keeps things, and what decides about each."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from precast.cache.access import is_writable
from precast.cache.filesystem import filesystem_type
from precast.cache.root import RootChoice
from precast.cache.scratch import scratch_candidates

__all__ = ["Layer", "hub_folder", "layers"]


@dataclass(frozen=True, slots=True)
class Layer:
    """One folder.

    Attributes:
        name: `store`, `temporary` (compiles and loads unpack there), `huggingface` (models named `hf:...`) or `triton`
            (kernels of a model's own, on CUDA).
        path: The folder, whether or not it exists; None where nothing names one.
        origin: The variable that names it, or `flag`, `file` or `default`.
        filesystem: Type of the file system under it; empty without a folder.
        writable: Whether this process may write there.
    """

    name: str
    path: Path | None
    origin: str
    filesystem: str
    writable: bool


def layers(root: RootChoice, environ: Mapping[str, str]) -> tuple[Layer, ...]:
    """Find every layer as it is now. Nothing is created.

    Args:
        root: The root of the store.
        environ: The environment.
    """
    origins = {"environment": "PRECAST_CACHE_DIR", "xdg": "XDG_CACHE_HOME"}
    return (
        _layer("store", root.path, origins.get(root.origin, root.origin)),
        _layer("temporary", *_temporary(environ)),
        _layer("huggingface", *hub_folder(environ)),
        _layer("triton", *_first(_triton(environ))),
    )


def hub_folder(environ: Mapping[str, str]) -> tuple[Path | None, str]:
    """Return where huggingface-hub keeps files, and the variable that names it.

    Returns:
        None where nothing names a folder and the user has no home: then the library makes one that is called `~`.
    """
    return _first(_huggingface(environ))


def _layer(name: str, path: Path | None, origin: str) -> Layer:
    if path is None:
        return Layer(name, None, origin, "", writable=False)
    return Layer(name, path, origin, filesystem_type(path), is_writable(path))


def _temporary(environ: Mapping[str, str]) -> tuple[Path | None, str]:
    for folder, origin in scratch_candidates(environ):
        if folder.is_dir() and is_writable(folder):
            return folder, origin
    return None, "default"


def _first(found: Iterator[tuple[Path, str]]) -> tuple[Path | None, str]:
    return next(found, (None, "default"))


def _huggingface(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Yield what huggingface-hub takes, the strongest first."""
    yield from _named(environ, ("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub"))
    yield from _named(environ, ("XDG_CACHE_HOME", "huggingface/hub"))
    yield from _at_home(environ, ".cache/huggingface/hub")


def _triton(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Yield what Triton takes, the strongest first."""
    yield from _named(environ, ("TRITON_CACHE_DIR", ""), ("TRITON_HOME", ".triton/cache"))
    yield from _at_home(environ, ".triton/cache")


def _named(environ: Mapping[str, str], *variables: tuple[str, str]) -> Iterator[tuple[Path, str]]:
    for name, below in variables:
        if environ.get(name):
            yield Path(environ[name], below).absolute(), name


def _at_home(environ: Mapping[str, str], below: str) -> Iterator[tuple[Path, str]]:
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - Path.home raises where there is none
    if Path(home).is_absolute():
        yield Path(home, below), "HOME" if environ.get("HOME") else "default"
