"""How a store is opened: what may be written, who is trusted, how long is waited, and which remote stands behind it."""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from precast.cache.root import resolve_root
from precast.cache.store import Store
from precast.errors import ConfigValueError

__all__ = ["DEFAULT_LOCK_TIMEOUT_S", "RemoteOptions", "StoreOptions", "is_on", "open_store", "signed_options"]

# Long enough for another process to compile a large model; it is only ever waited out when something hangs.
DEFAULT_LOCK_TIMEOUT_S = 1800.0

_ON = ("1", "on", "true", "yes")
_OFF = ("", "0", "off", "false", "no")


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """The store that stands behind the local one.

    Attributes:
        url: Its address, such as `s3://bucket/prefix`, `gs://...`, `hf://...` or `file:///folder`.
        read_only: Take entries from it, never write to it.
        required: Fail where it cannot be reached or refuses; else that is a warning and a miss.
    """

    url: str
    read_only: bool = False
    required: bool = False


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a store is opened.

    Attributes:
        read_only: Write nothing at all, last uses included.
        lock_timeout_s: Seconds to wait for another process that does the same work.
        trust_root: Use a root that other users can write.
        remote: The store behind this one; None where there is none, or nothing may leave this machine.
        required_signatures: Files of ed25519 public keys in PEM; an entry must be signed by one of them. Empty: any.
    """

    read_only: bool = False
    lock_timeout_s: float = DEFAULT_LOCK_TIMEOUT_S
    trust_root: bool = False
    remote: RemoteOptions | None = None
    required_signatures: tuple[Path, ...] = ()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "StoreOptions":
        """Read `PRECAST_READ_ONLY`, `_LOCK_TIMEOUT`, `_TRUST_ROOT`, `_REMOTE...`, `_OFFLINE` and `_REQUIRE_SIGNATURE`.

        Raises:
            ConfigValueError: A value is not allowed.
        """
        url = environ.get("PRECAST_REMOTE", "")
        remote = None
        if url and not _switch(environ, "PRECAST_OFFLINE"):
            remote = RemoteOptions(
                url, _switch(environ, "PRECAST_REMOTE_READ_ONLY"), _switch(environ, "PRECAST_REMOTE_REQUIRED")
            )
        signatures = environ.get("PRECAST_REQUIRE_SIGNATURE", "")
        return cls(
            read_only=_switch(environ, "PRECAST_READ_ONLY"),
            lock_timeout_s=_seconds(environ.get("PRECAST_LOCK_TIMEOUT") or str(DEFAULT_LOCK_TIMEOUT_S)),
            trust_root=_switch(environ, "PRECAST_TRUST_ROOT"),
            remote=remote,
            required_signatures=tuple(Path(name) for name in signatures.split(os.pathsep) if name),
        )


def open_store(
    cache_dir: str | os.PathLike[str] | None = None,
    options: StoreOptions | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Store, StoreOptions]:
    """Open the store that is meant, and say how.

    Args:
        cache_dir: The root; None for the one that the environment names, then the user's cache folder.
        options: How to open it; None takes what the environment says.
        environ: The environment; None means `os.environ`.

    Raises:
        ConfigValueError: A variable has a value that is not allowed.
        StoreAccessError: Nothing names a root and the user has no home folder.
    """
    environ = os.environ if environ is None else environ
    options = StoreOptions.from_environ(environ) if options is None else options
    root = resolve_root(os.fspath(cache_dir) if cache_dir else None, environ).path
    return Store(root, read_only=options.read_only, lock_timeout_s=options.lock_timeout_s), options


def signed_options(
    options: StoreOptions | None,
    keys: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None,
    environ: Mapping[str, str] | None = None,
) -> StoreOptions:
    """Return options that ask for signatures of some keys as well.

    Args:
        options: The options; None takes what the environment says.
        keys: A file of a public key, or several.
        environ: The environment; None means `os.environ`.

    Raises:
        ConfigValueError: A variable has a value that is not allowed.
    """
    options = StoreOptions.from_environ(os.environ if environ is None else environ) if options is None else options
    given = () if keys is None else (keys,) if isinstance(keys, (str, os.PathLike)) else tuple(keys)
    return replace(options, required_signatures=(*options.required_signatures, *map(Path, given)))


def is_on(text: str, name: str) -> bool:
    """Read a switch as people write it: `1`, `on`, `true` or `yes`, and `0`, `off`, `false`, `no` or nothing.

    Args:
        text: The value.
        name: What it is called, for the message.

    Raises:
        ConfigValueError: It is neither.
    """
    value = text.strip().lower()
    if value not in (*_ON, *_OFF):
        raise ConfigValueError(f"{name} cannot be `{text}`", "it is a switch", "write 1 or 0")
    return value in _ON


def _switch(environ: Mapping[str, str], name: str) -> bool:
    return is_on(environ.get(name, ""), name)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ConfigValueError(f"a lock cannot be waited for `{text}`", "it is no number of seconds", "write 600")
    return seconds
