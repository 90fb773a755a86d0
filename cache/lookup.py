"""The quick lookup: from a request to an entry without tracing and without importing torch.

A request names candidates that answered it before. A candidate is a hit if all that its key was made of is still the
same: its source files, distributions and data files are hashed again where they lie now, and the variables that its
model read are read again. Everything else is in the request's own digest.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from precast.cache.canonical import Json, digest
from precast.cache.environment import variable_factor
from precast.cache.factors import Factor, group_digests
from precast.cache.manifest import SCHEMA, TOO_NEW, Manifest
from precast.cache.requests import candidates
from precast.cache.sources import distribution_content, hash_source, locate_data, locate_source
from precast.cache.store import Store
from precast.cache.told import needs_trace
from precast.errors import CorruptError, FormatError, NoEntryError, StoreAccessError

__all__ = ["READ_AGAIN", "Lookup", "MissReason", "Request", "factor_now", "judge", "lookup"]

READ_AGAIN = ("env", "code")

_REQUEST_SCHEMA = "precast.request/1"


@dataclass(frozen=True, slots=True)
class Request:
    """What is known before tracing.

    Attributes:
        factors: Factors of any group, in any order; what names the model belongs to them.
        identity: What tells the model apart and is no part of a key, as text; empty where the factors do.
    """

    factors: tuple[Factor, ...]
    identity: str = ""

    @property
    def digest(self) -> str:
        """The request's own digest, under which candidates are remembered.

        Raises:
            ValueError: A factor is not registered or is given twice.
        """
        known = {"schema": _REQUEST_SCHEMA, "groups": group_digests(self.factors)}
        return digest({**known, "identity": self.identity} if self.identity else known)


@dataclass(frozen=True, slots=True)
class MissReason:
    """Why a candidate is no hit, or why there is none.

    Attributes:
        code: `no_entry_for_model`, `factor_changed`, `artifact_missing`, `corrupt`, `format_too_old`,
            `format_too_new`, `target_mismatch` where the entry cannot run on this node, or `remote_unreachable` where
            a remote might have had an entry.
        entry: The candidate's key, or empty.
        factor: The changed factor's label, the missing or damaged member, or the stamp that does not fit.
        a: What the entry holds; None where it holds nothing.
        b: What is there now; None where nothing is. For a damaged member, the kind of damage as of `Damage`.
    """

    code: str
    entry: str = ""
    factor: str = ""
    a: Json = None
    b: Json = None


@dataclass(frozen=True, slots=True)
class Lookup:
    """The answer to a request.

    Attributes:
        hit: The entry's manifest, or None.
        reasons: For a miss, everything that speaks against each candidate.
    """

    hit: Manifest | None
    reasons: tuple[MissReason, ...]


def lookup(
    store: Store,
    request: Request,
    search_path: Sequence[str],
    environ: Mapping[str, str] | None = None,
    unfit: Callable[[Manifest], Iterable[MissReason]] = lambda _: (),
) -> Lookup:
    """Find the entry that answers a request, or say why there is none.

    Files of the entry are only seen to exist with the right size; their digests are checked when they are read.

    Args:
        store: The store; nothing in it is written.
        request: What is known before tracing.
        search_path: Folders in which source files are looked for, as in `sys.path`.
        environ: The environment; None means `os.environ`.
        unfit: Says what speaks against an entry on this node, although it is the right one by its key.
    """
    environ = os.environ if environ is None else environ
    reasons: list[MissReason] = []
    for key in candidates(store, request.digest):
        try:
            manifest = store.manifest(key)
        except (NoEntryError, StoreAccessError) as error:
            reasons.append(MissReason("artifact_missing", key, "manifest.json", b=error.why))
            continue
        except CorruptError as error:
            reasons.append(_unusable(key, error))
            continue
        against = [
            *judge(manifest, request, search_path, environ), *_missing(store, manifest), *unfit(manifest)
        ]  # fmt: skip
        if not against:
            return Lookup(manifest, ())
        reasons += against
    return Lookup(None, tuple(reasons) or (MissReason("no_entry_for_model"),))


def _unusable(key: str, error: CorruptError) -> MissReason:
    if not isinstance(error, FormatError):
        return MissReason("corrupt", key, "manifest.json", b=error.why)
    code = "format_too_new" if error.what == TOO_NEW else "format_too_old"
    return MissReason(code, key, "manifest.json", b=SCHEMA)


def _missing(store: Store, manifest: Manifest) -> Iterator[MissReason]:
    for item in store.glance(manifest):
        yield MissReason("artifact_missing", manifest.key, item.sentence, b=item.code)


def judge(
    manifest: Manifest, request: Request, search_path: Sequence[str], environ: Mapping[str, str]
) -> Iterator[MissReason]:
    """Compare each factor of an entry with what it is now; those that only tracing can tell are left out.

    A pointer may be damaged or lie in the wrong place, so a factor that only one of the two has counts as changed.

    Args:
        manifest: The entry, of this store or of a remote.
        request: What is known before tracing.
        search_path: Folders in which source files are looked for, as in `sys.path`.
        environ: The environment.

    Yields:
        What speaks against the entry: nothing for one that answers the request, if its files are there.
    """
    asked = {factor.label: factor.value for factor in request.factors}
    for factor in manifest.factors:
        if factor.label not in asked and factor.group not in READ_AGAIN:
            if not needs_trace((factor.group, factor.name)):
                yield MissReason("factor_changed", manifest.key, factor.label, factor.value)
            continue
        now = asked.pop(factor.label) if factor.label in asked else factor_now(factor, search_path, environ).value
        if digest(now) != digest(factor.value):
            yield MissReason("factor_changed", manifest.key, factor.label, factor.value, now)
    for label, value in asked.items():
        yield MissReason("factor_changed", manifest.key, label, None, value)


def factor_now(factor: Factor, search_path: Sequence[str], environ: Mapping[str, str]) -> Factor:
    """Return a factor of the groups `READ_AGAIN` as it is now: its variable, source, data file or distribution.

    Args:
        factor: A factor of an entry.
        search_path: Folders in which files are looked for, as in `sys.path`.
        environ: The environment.

    Returns:
        The factor with its present value; None where nothing is.
    """
    if factor.group == "env":
        return variable_factor(factor.name, environ)
    return replace(factor, value=_code_now(factor, search_path))


def _code_now(factor: Factor, search_path: Sequence[str]) -> Json:
    kind, _, name = factor.name.partition(":")
    reader = _READERS.get(kind)
    return None if reader is None else reader(name, search_path)


def _module_now(name: str, search_path: Sequence[str]) -> Json:
    path = locate_source(name, search_path)
    return None if path is None else hash_source(path)


def _data_now(name: str, search_path: Sequence[str]) -> Json:
    path = locate_data(name, search_path)
    return None if path is None else hash_source(path)


def _distribution_now(name: str, search_path: Sequence[str]) -> Json:
    content = distribution_content(name, search_path)
    return None if content is None else {"version": content.version, "digest": content.digest}


_READERS: Mapping[str, Callable[[str, Sequence[str]], Json]] = {
    "module": _module_now,
    "data": _data_now,
    "distribution": _distribution_now,
}
