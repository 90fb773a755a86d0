"""Sides by name: whatever a person gives to `inspect diff`, opened as something that can be compared."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from precast.cache.canonical import Json, decode_json
from precast.cache.diff import Side
from precast.cache.fields import HEX64
from precast.cache.leftovers import ASIDE
from precast.cache.manifest import Manifest
from precast.cache.mega import MegaFile
from precast.cache.root import LAYOUT, CacheRoot
from precast.cache.store import Store
from precast.cache.tags import resolve_entry
from precast.cache.vllm import FACTORS_FILE, is_factors, is_vllm_root, read_vllm_factors
from precast.errors import AmbiguousKeyError, CorruptError, NoEntryError, PrecastError, StoreAccessError, UsageError

__all__ = ["LIVE", "Side", "entry_side", "manifest_side", "open_side"]

LIVE = "live"

_MANIFEST = "manifest.json"
_DIGITS = 12


def open_side(text: str, store: Store, live: Callable[[], Side] | None = None) -> Side:
    """Open a side.

    Args:
        text: `live`; a key, its prefix or a tag; `ROOT@KEY` for an entry in another root; or the path of a manifest,
            an entry's folder, a mega file, or vLLM's `cache_key_factors.json` or the folder with it.
        store: Where keys and tags are looked up.
        live: Makes the side of the live request; None where there is none.

    Raises:
        NoEntryError: There is no such side.
        AmbiguousKeyError: A prefix fits several entries; the error lists them.
        CorruptError: The side is damaged or only half written.
        FormatError: It has a format that this version does not read.
        UsageError: The text names something else, or a root that is not precast's.
        StoreAccessError: It cannot be read.
    """
    if text == LIVE:
        return _live(live)
    path = Path(text)
    if path.is_file():
        return _file_side(path)
    if path.is_dir() and (side := _folder_side(path)) is not None:
        return side
    root, at, key = text.rpartition("@")
    if at and root:
        return entry_side(key, _other_store(Path(root)))
    if "/" in text:
        raise NoEntryError(f"`{text}` does not exist", "it is written like a path", _HINT, path=text)
    return entry_side(text, store)


_HINT = "Give a key, a tag, ROOT@KEY, live, or the path of a manifest, a mega file or a vLLM factor file"


def entry_side(text: str, store: Store) -> Side:
    """Open an entry of a store by tag, key or prefix of a key.

    Raises:
        NoEntryError: There is no such entry.
        AmbiguousKeyError: The prefix fits several entries; the error lists them.
        CorruptError: The entry is damaged.
        UsageError: The text is neither a tag nor a key.
    """
    key = resolve_entry(store, text)
    label = key[:_DIGITS] if key.startswith(text.lower()) else text
    return manifest_side(store.manifest(key), label, store.read_object)


def manifest_side(manifest: Manifest, label: str, read: Callable[[str, int], bytes] | None = None) -> Side:
    """Make a side of a manifest.

    Args:
        manifest: The manifest.
        label: What people call the side.
        read: Returns an object's raw bytes by name and size; None where the sources are out of reach. Sources that
            are damaged are left out: the factors still tell what changed.
    """
    return Side(
        label=label,
        key=manifest.key,
        factors=manifest.factors,
        sources=_sources(manifest, read),
        settings=manifest.settings,
        ignored=manifest.ignored,
    )


def _live(live: Callable[[], Side] | None) -> Side:
    if live is None:
        raise UsageError("`live` names no request here", "no model is given", "Give the model, or name an entry")
    return live()


def _sources(manifest: Manifest, read: Callable[[str, int], bytes] | None) -> Mapping[str, str]:
    if manifest.sources is None or read is None:
        return {}
    texts: Json = None
    with suppress(PrecastError, ValueError):
        texts = decode_json(read(manifest.sources.object, manifest.sources.bytes))
    return {name: text for name, text in texts.items() if isinstance(text, str)} if isinstance(texts, dict) else {}


def _file_side(path: Path) -> Side:
    try:
        with path.open("rb") as stream:
            is_json = stream.read(1) == b"{"
            data = b"{" + stream.read() if is_json else b""
    except OSError as error:
        raise _unreadable(path, error) from error
    if not is_json:
        return _mega_side(path)
    if is_factors(_plain(data)):
        return read_vllm_factors(path)
    try:
        manifest = Manifest.from_json(data)
    except CorruptError as error:
        error.path = str(path)
        raise
    store = _home_store(path)
    return manifest_side(manifest, manifest.key[:_DIGITS], store.read_object if store else None)


def _mega_side(path: Path) -> Side:
    file = MegaFile(path)
    return manifest_side(file.manifest, path.name, lambda name, _: file.payload(name))


def _plain(data: bytes) -> object:
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and "schema" not in document else None


def _home_store(manifest: Path) -> Store | None:
    """Return the store that a manifest lies in, by its place; None for a manifest elsewhere."""
    place = manifest.absolute().parent
    root = place.parent.parent.parent
    return Store(root, read_only=True) if place == CacheRoot(root).entry(place.name) else None


def _folder_side(folder: Path) -> Side | None:
    """Open a folder as a side; None where it is none, so that its name may still be a tag."""
    if (folder / _MANIFEST).is_file():
        return _file_side(folder / _MANIFEST)
    if (HEX64.fullmatch(folder.name) and folder.parent.name == "entries") or ASIDE.fullmatch(folder.name):
        raise CorruptError(
            f"{folder} holds no whole entry",
            "its manifest is missing: it was not written to the end, or it was damaged since",
            "Run `precast precompile` again",
            path=str(folder),
        )
    files = _factor_files(folder)
    if len(files) > 1:
        names = ", ".join(str(path.relative_to(folder).parent) for path in files)
        raise AmbiguousKeyError(f"{folder} holds several factor files", names, "Give one of these folders")
    if files:
        return read_vllm_factors(files[0])
    if is_vllm_root(folder.parent) or is_vllm_root(folder.parent.parent):
        why = "vLLM stores no factors beside an AOT artifact, or could not write them"
        raise NoEntryError(f"{folder} holds no factor file", why, "Give a folder of 10 hex digits", path=str(folder))
    if (folder / LAYOUT / "entries").is_dir():
        raise UsageError(f"{folder} is a cache root, not an entry", hint=f"Write {folder}@KEY")
    return None


def _factor_files(folder: Path) -> list[Path]:
    """Return vLLM's factor files in a folder of a prefix, a rank or a key."""
    found = (path for depth in ("", "*/", "*/*/") for path in folder.glob(f"{depth}{FACTORS_FILE}"))
    return sorted(path for path in found if path.is_file())


def _other_store(root: Path) -> Store:
    if not root.is_dir():
        raise NoEntryError(f"There is no cache root {root}", "it is no folder", _HINT, path=str(root))
    if not (root / LAYOUT / "entries").is_dir():
        raise UsageError(
            f"{root} is no cache root of precast's",
            f"it holds no {LAYOUT}/entries",
            "Give the folder that `--cache-dir` names, before the @",
        )
    return Store(root, read_only=True)


def _unreadable(path: Path, error: OSError) -> StoreAccessError:
    return StoreAccessError(
        f"{path} cannot be read", error.strerror or str(error), "Let this user read it", path=str(path)
    )
