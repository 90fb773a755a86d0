"""vLLM's compile caches, read-only: what lies in one, and its factor files as sides of a difference.

The layout is that of vLLM 0.33 (`torch_compile_cache/<10 hex>/rank_<r>_<dp>/<prefix>` for a cache of pieces,
`torch_compile_cache/torch_aot_compile/<64 hex>/rank_<r>_<dp>/model` for an AOT artifact). vLLM keeps the variables of
a key as they are and of the rest only digests; an AOT folder has no factors at all.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast.cache.canonical import Json
from precast.cache.diff import Side
from precast.cache.disk import DiskUsage, parts
from precast.cache.factors import Factor
from precast.cache.fields import HEX64
from precast.errors import CorruptError, NoEntryError, StoreAccessError

__all__ = ["FACTORS_FILE", "VllmEntry", "is_factors", "is_vllm_root", "read_vllm_factors", "vllm_entries"]

FACTORS_FILE = "cache_key_factors.json"

_HOME = "torch_compile_cache"
_AOT = "torch_aot_compile"
_HEX10 = re.compile(r"[0-9a-f]{10}")
_RANK = re.compile(r"rank_(\d+_\d+)")
_ARTIFACT = re.compile(r"artifact_compile_range_\d+_\d+_subgraph_\d+|artifact_shape_.+_subgraph_\d+")
# Compiler caches that vLLM puts beside the prefixes.
_NO_PREFIX = frozenset({"inductor_cache", "triton_cache"})

# The digests in a factor file, and the group that each stands for.
_DIGESTS = {"config_hash": "config", "code_hash": "code", "compiler_hash": "compiler"}


@dataclass(frozen=True, slots=True)
class VllmEntry:
    """One keyed folder of a vLLM cache.

    Attributes:
        kind: `hash` for a cache of pieces, `aot` for an AOT artifact.
        key: The folder's name: 10 hex digits, or 64 for `aot`.
        ranks: The ranks that wrote to it, such as `0_0` for rank 0 of data-parallel rank 0.
        prefixes: The parts of the model, such as `backbone`; none for `aot`.
        artifacts: How many compiled artifacts it holds.
        bytes: What it takes on disk, as `du` counts.
        mtime_ns: When something in it was last written, in nanoseconds since the epoch.
        factors: One of its factor files, or None where it has none.
    """

    kind: str
    key: str
    ranks: tuple[str, ...]
    prefixes: tuple[str, ...]
    artifacts: int
    bytes: int
    mtime_ns: int
    factors: Path | None


def is_vllm_root(path: Path) -> bool:
    """Tell whether a folder is a cache root of vLLM's, or the `torch_compile_cache` folder in one."""
    return next(_folders(_home(path)), None) is not None


def vllm_entries(path: Path) -> tuple[VllmEntry, ...]:
    """List what a vLLM cache holds, sorted by kind and key. Nothing is written, and links are not followed.

    Args:
        path: `VLLM_CACHE_ROOT`, or the `torch_compile_cache` folder in it.

    Raises:
        NoEntryError: There is no vLLM cache.
    """
    if not is_vllm_root(path):
        raise NoEntryError(
            f"{path} holds no vLLM compile cache",
            f"a vLLM cache has folders of 10 hex digits, or {_AOT}, in {_HOME}",
            "Give the folder that VLLM_CACHE_ROOT names; vLLM's own default is ~/.cache/vllm",
            path=str(path),
        )
    found = (_entry(kind, folder) for kind, folder in _folders(_home(path)))
    return tuple(sorted(found, key=lambda entry: (entry.kind, entry.key)))


def read_vllm_factors(path: Path) -> Side:
    """Read a factor file of vLLM's as a side. Fields that are not known are left out.

    Args:
        path: A `cache_key_factors.json`.

    Raises:
        NoEntryError: There is no such file.
        CorruptError: It is no factor file.
        StoreAccessError: It cannot be read.
    """
    try:
        document = json.loads(path.read_bytes(), parse_constant=str)
    except FileNotFoundError as error:
        raise NoEntryError(
            f"{path} does not exist", hint="Give a vLLM cache_key_factors.json", path=str(path)
        ) from error
    except OSError as error:
        raise StoreAccessError(
            f"{path} cannot be read", error.strerror or str(error), "Let this user read it", path=str(path)
        ) from error
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, f"it is not JSON ({error})") from error
    if not is_factors(document):
        raise _corrupt(path, "it has none of the fields env, config_hash, code_hash and compiler_hash")
    key = next((part for part in reversed(path.absolute().parts) if _HEX10.fullmatch(part)), "")
    return Side(_label(path, key), key, tuple(_factors(document)), foreign=True)


def is_factors(document: Any) -> bool:
    """Tell whether a decoded JSON document is a factor file of vLLM's."""
    return isinstance(document, dict) and not document.keys().isdisjoint({"env", *_DIGESTS})


def _label(path: Path, key: str) -> str:
    """Name a file by what tells it from others: its key, rank and prefix."""
    parts = path.absolute().parts
    return f"vllm:{'/'.join(parts[parts.index(key) : -1])}" if key else f"vllm:{path.name}"


def _factors(document: dict[str, Any]) -> Iterator[Factor]:
    variables = document.get("env")
    if isinstance(variables, dict):
        yield from (Factor("env", name, _json(value)) for name, value in sorted(variables.items()))
    for field, group in _DIGESTS.items():
        if isinstance(document.get(field), str):
            yield Factor(group, field, document[field])


def _json(value: Any) -> Json:
    """Return a decoded value in a form that has canonical JSON: the key `$float` is taken there."""
    if isinstance(value, dict):
        return {f"{name}_" if name == "$float" else name: _json(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_json(inner) for inner in value]
    plain: Json = str(value) if isinstance(value, float) else value
    return plain


def _home(path: Path) -> Path:
    inner = path / _HOME
    return inner if inner.is_dir() else path


def _folders(home: Path) -> Iterator[tuple[str, Path]]:
    """Yield kind and folder of each entry."""
    for folder in _below(home):
        if _HEX10.fullmatch(folder.name) and any(_RANK.fullmatch(inner.name) for inner in _below(folder)):
            yield "hash", folder
    for folder in _below(home / _AOT):
        if HEX64.fullmatch(folder.name):
            yield "aot", folder


def _below(folder: Path) -> Iterator[Path]:
    """Yield the folders in a folder, sorted; links and what cannot be read are left out."""
    try:
        inner = sorted(folder.iterdir())
        yield from (path for path in inner if path.is_dir() and not path.is_symlink())
    except OSError:
        return


def _entry(kind: str, folder: Path) -> VllmEntry:
    ranks = [inner for inner in _below(folder) if _RANK.fullmatch(inner.name)]
    prefixes = [inner for rank in ranks for inner in _below(rank) if inner.name not in _NO_PREFIX]
    items = list(parts(str(folder)))
    usage = DiskUsage()
    for item in items:
        usage.add(item)
    factor_files = [path for prefix in prefixes if (path := prefix / FACTORS_FILE).is_file()]
    return VllmEntry(
        kind=kind,
        key=folder.name,
        ranks=tuple(rank.name.removeprefix("rank_") for rank in ranks),
        prefixes=tuple(sorted({prefix.name for prefix in prefixes})) if kind == "hash" else (),
        artifacts=_artifacts(ranks, prefixes, kind),
        bytes=usage.bytes,
        mtime_ns=max((item.modified_ns for item in items), default=0),
        factors=next(iter(factor_files), None),
    )


def _artifacts(ranks: list[Path], prefixes: list[Path], kind: str) -> int:
    if kind == "aot":
        return sum((rank / "model").is_file() for rank in ranks)
    return sum(_ARTIFACT.fullmatch(path.name) is not None for prefix in prefixes for path in _names(prefix))


def _names(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _corrupt(path: Path, why: str) -> CorruptError:
    return CorruptError(f"{path} is no factor file of vLLM's", why, "Give a cache_key_factors.json", path=str(path))
