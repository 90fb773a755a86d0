"""Source files and installed distributions as content, found without importing anything.

A location is never part of what is returned: a module is its name and the digest of its file, a distribution its
name, its version and a digest over what it installed. So the same wheels in another virtual environment are the same
content.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from precast.cache.distributions import DistributionContent, distribution_content

__all__ = [
    "DistributionContent",
    "SourceFile",
    "distribution_content",
    "hash_source",
    "locate_data",
    "locate_source",
]

# The order in which the import system looks for a module in one folder; bytecode without source has no source to
# hash.
_SUFFIXES = (*EXTENSION_SUFFIXES, ".py")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One source file that took part in building or tracing.

    Attributes:
        module: The module's full name.
        sha256: Digest of the file.
    """

    module: str
    sha256: str


def locate_source(module: str, search_path: Sequence[str]) -> Path | None:
    """Find the file that an import of a module would load, without importing it or its parents.

    Follows the rules of the path-based finder for folders (Python reference, 5.5): regular packages first, then
    modules, then namespace packages. Import hooks and zip files are not seen; their modules count as not found.

    Args:
        module: The module's full name.
        search_path: Folders, as in `sys.path`; an empty string is the current folder.
    """
    *parents, name = module.split(".")
    portions = [Path(folder or ".") for folder in search_path]
    for parent in parents:
        portions = _package_portions(parent, portions)
    return next((path for folder in portions if (path := _module_file(folder, name)) is not None), None)


def locate_data(name: str, search_path: Sequence[str]) -> Path | None:
    """Find a data file by its path below a folder of the search path, such as `shop/vocabulary.json`."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return None
    return next((path for folder in search_path if (path := Path(folder or ".", name)).is_file()), None)


def hash_source(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's bytes.

    Raises:
        OSError: The file cannot be read.
    """
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _module_file(folder: Path, name: str) -> Path | None:
    package = _package_file(folder / name)
    if package is not None:
        return package
    return next((path for suffix in _SUFFIXES if (path := folder / f"{name}{suffix}").is_file()), None)


def _package_file(folder: Path) -> Path | None:
    return next((path for suffix in _SUFFIXES if (path := folder / f"__init__{suffix}").is_file()), None)


def _package_portions(name: str, portions: list[Path]) -> list[Path]:
    """Return the folders that hold a package's submodules: one, or several for a namespace package."""
    namespace = []
    for folder in portions:
        if _package_file(folder / name) is not None:
            return [folder / name]
        if _module_file(folder, name) is not None:
            return []
        if (folder / name).is_dir():
            namespace.append(folder / name)
    return namespace
