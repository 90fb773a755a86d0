"""Leaves of a factor's value: mappings are compared key by key, anything else as a whole."""

from collections.abc import Iterator

from precast.cache.canonical import Json, canonical_json

__all__ = ["ABSENT", "Absent", "Leaf", "leaf_changes"]


class Absent:
    """Stands where a side has no value at all; null is a value."""

    __slots__ = ()


ABSENT = Absent()

Leaf = tuple[tuple[str, ...], "Json | Absent", "Json | Absent"]


def leaf_changes(a: "Json | Absent", b: "Json | Absent") -> Iterator[Leaf]:
    """Yield the path of each leaf that differs, with its two values, sorted by path.

    A digest beside a version that differs is left out: another version has another content, which says nothing new.
    """
    leaves = list(_walk((), a, b))
    versions = {path[:-1] for path, _, _ in leaves if path[-1:] == ("version",)}
    yield from (leaf for leaf in leaves if leaf[0][-1:] != ("digest",) or leaf[0][:-1] not in versions)


def _walk(path: tuple[str, ...], a: "Json | Absent", b: "Json | Absent") -> Iterator[Leaf]:
    inner_a, inner_b = _inner(a), _inner(b)
    if inner_a is not None and inner_b is not None and (inner_a or inner_b):
        for name in sorted(inner_a.keys() | inner_b.keys()):
            yield from _walk((*path, name), inner_a.get(name, ABSENT), inner_b.get(name, ABSENT))
    elif not _same(a, b):
        yield path, a, b


def _inner(value: "Json | Absent") -> "dict[str, Json] | None":
    """Return a mapping's items; what is absent is as good as an empty mapping."""
    if isinstance(value, Absent):
        return {}
    return value if isinstance(value, dict) else None


def _same(a: "Json | Absent", b: "Json | Absent") -> bool:
    if isinstance(a, Absent) or isinstance(b, Absent):
        return a is b
    # Not by ==, for which 1, 1.0 and True are the same.
    return canonical_json(a) == canonical_json(b)
