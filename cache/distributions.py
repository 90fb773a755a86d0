"""Installed distributions by content, read from their metadata folders without importing anything.

A wheel's RECORD lists every installed file with its digest, so one small file stands for all of torch. What differs
between two installations of the same wheel is left out: bytecode, scripts outside site-packages and the installer's
own notes.
"""

import csv
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

from precast.cache.canonical import digest

__all__ = ["DistributionContent", "distribution_content"]

# The installer writes these, or rewrites them; RECORD cannot list its own digest.
_INSTALLER_FILES = frozenset({"INSTALLER", "REQUESTED", "direct_url.json", "RECORD"})


@dataclass(frozen=True, slots=True)
class DistributionContent:
    """What a distribution installed.

    Attributes:
        name: Its normalized name.
        version: Its version.
        digest: Digest over its files, by their paths below site-packages.
    """

    name: str
    version: str
    digest: str


def distribution_content(name: str, search_path: Sequence[str] | None = None) -> DistributionContent | None:
    """Return the content of an installed distribution, or None where it is not installed.

    RECORD is trusted for wheels: a file that was edited in place afterwards does not change the digest. A key then
    misses the edit unless the file counts by itself, as traced source files do; files of torch and Triton do not.
    An editable install, or one without RECORD, is read file by file.

    Args:
        name: The distribution's name, in any spelling.
        search_path: Folders to look in; None means `sys.path`.
    """
    wanted = _normalized(name)
    for folder in sys.path if search_path is None else search_path:
        metadata = _metadata_folder(Path(folder or "."), wanted)
        if metadata is not None:
            lines = _recorded(metadata)
            if lines is None:
                lines = _listed(metadata, wanted, search_path)
            return DistributionContent(wanted, _version(metadata), digest(sorted(lines)))
    return None


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _metadata_folder(folder: Path, wanted: str) -> Path | None:
    """Find `<name>-<version>.dist-info`, or an `.egg-info` of older tools, in one folder."""
    try:
        names = sorted(item.name for item in folder.iterdir())
    except OSError:
        return None
    for suffix in (".dist-info", ".egg-info"):
        for name in names:
            stem = name.removesuffix(suffix)
            if stem != name and _normalized(stem.partition("-")[0]) == wanted:
                return folder / name
    return None


def _version(metadata: Path) -> str:
    for path in (metadata / "METADATA", metadata / "PKG-INFO", metadata):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found = re.search(r"^Version:\s*(\S+)", text, re.MULTILINE)
        if found:
            return found[1]
    return metadata.stem.partition("-")[2]


def _recorded(metadata: Path) -> list[list[str]] | None:
    """Return path and digest of each recorded file; None for an editable install or one without RECORD."""
    if _editable_project(metadata) is not None:
        return None
    try:
        with (metadata / "RECORD").open(encoding="utf-8", newline="") as stream:
            rows = [row for row in csv.reader(stream) if row]
    except (OSError, UnicodeDecodeError):
        return None
    kept = (row for row in rows if _counts(row[0], metadata))
    return [[row[0], row[1] if len(row) > 1 and row[1] else _hash(metadata.parent / row[0])] for row in kept]


def _counts(path: str, metadata: Path) -> bool:
    parts = path.split("/")
    if path.endswith(".pyc") or path.startswith("/") or ".." in parts:
        return False
    return not (parts[0] == metadata.name and parts[-1] in _INSTALLER_FILES)


def _listed(metadata: Path, wanted: str, search_path: Sequence[str] | None) -> list[list[str]]:
    """Return path and digest of each `.py` file below the distribution's top-level names."""
    folders = [metadata.parent]
    project = _editable_project(metadata)
    if project is not None:
        folders = [project / "src", project, *(Path(item or ".") for item in search_path or sys.path)]
    lines = []
    for name in _top_level(metadata, wanted):
        home = next((home for home in folders if (home / name).is_dir() or (home / f"{name}.py").is_file()), None)
        if home is not None:
            files = _python_files(home, name)
            lines += [[path.relative_to(home).as_posix(), _hash(path)] for path in files]
    return lines


def _top_level(metadata: Path, wanted: str) -> Iterable[str]:
    try:
        return sorted((metadata / "top_level.txt").read_text(encoding="utf-8").split())
    except OSError:
        return (wanted.replace("-", "_"),)


def _python_files(home: Path, name: str) -> Iterator[Path]:
    single = home / f"{name}.py"
    if single.is_file():
        yield single
    yield from _below(home / name, ())


def _below(folder: Path, parents: tuple[Path, ...]) -> Iterator[Path]:
    # A checkout may link its packages into place, so links are followed, but never into a loop.
    real = folder.resolve()
    if real in parents or not folder.is_dir():
        return
    for item in sorted(folder.iterdir()):
        if item.is_dir():
            yield from _below(item, (*parents, real))
        elif item.suffix == ".py":
            yield item


def _editable_project(metadata: Path) -> Path | None:
    """Return the project's folder, where `direct_url.json` says that the install is editable (PEP 610)."""
    try:
        origin = json.loads((metadata / "direct_url.json").read_bytes())
        if origin["dir_info"]["editable"] is True:
            return Path(unquote(urlparse(origin["url"]).path))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _hash(path: Path) -> str:
    try:
        return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "absent"
