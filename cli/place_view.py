"""Where the store is: its root, what decided that, and the file system under it."""

from collections.abc import Mapping

from precast.cache.canonical import Json
from precast.cache.filesystem import filesystem_type, is_network, is_volatile
from precast.cache.layers import layers
from precast.cache.places import listed
from precast.cache.root import CacheRoot, RootChoice
from precast.cache.trust import untrusted_places
from precast.cli.output import Column, Output

__all__ = ["PLACES", "layer_rows", "place_data", "show_place"]

PLACES = (
    Column("name", "FOLDER"),
    Column("path", "PATH", lambda path: str(path or "")),
    Column("origin", "ORIGIN"),
    Column("filesystem", "FILE SYSTEM"),
    Column("writable", "WRITABLE", lambda writable: "yes" if writable else "no"),
)

_ORIGINS = {
    "flag": "--cache-dir",
    "environment": "PRECAST_CACHE_DIR",
    "file": "a configuration file",
    "xdg": "XDG_CACHE_HOME",
    "default": "the default",
}


def place_data(root: RootChoice) -> dict[str, Json]:
    """Give the place as data."""
    kind = filesystem_type(root.path)
    return {
        "root": str(root.path),
        "root_origin": root.origin,
        "filesystem": {"type": kind, "network": is_network(kind), "volatile": is_volatile(kind)},
        "trusted": not untrusted_places(CacheRoot(root.path)),
    }


def layer_rows(root: RootChoice, environ: Mapping[str, str]) -> list[dict[str, Json]]:
    """Give every folder in use as rows: the store, and those of the libraries below."""
    return [
        {
            "name": layer.name,
            "path": str(layer.path) if layer.path else None,
            "origin": layer.origin,
            "filesystem": layer.filesystem,
            "writable": layer.writable,
        }
        for layer in layers(root, environ)
    ]


def show_place(out: Output, root: RootChoice) -> None:
    """Show people the root, what named it, what its file system means, and who else can write to it."""
    kind = filesystem_type(root.path)
    meaning = ""
    if is_network(kind):
        meaning = ", shared over a network"
    elif is_volatile(kind):
        meaning = ", lost with the container or at a restart"
    out.pairs([("root", f"{root.path}  from {_ORIGINS[root.origin]}"), ("", f"on {kind}{meaning}")])
    wrong = untrusted_places(CacheRoot(root.path))
    if wrong:
        told = listed([(each.place, each.reason) for each in wrong])
        out.pairs([("", f"not trusted, as others can write to it: {told}")])
