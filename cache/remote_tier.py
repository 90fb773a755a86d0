"""What happens with the remote behind a store: read through it, write through to it, and what its failures mean.

Unless the remote is required, none of its failures stops anything: the first one that is the remote's is told as one
warning, and from then on the remote is left alone; a damaged or unsigned entry is told and is a miss.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from precast.cache.lookup import MissReason, Request, judge
from precast.cache.manifest import Manifest
from precast.cache.remote import Pulled, Pushed, Remote
from precast.cache.signing_keys import PublicKey
from precast.cache.store import MIN_PREFIX, Store
from precast.errors import (
    AmbiguousKeyError,
    CorruptError,
    FormatError,
    NoEntryError,
    PartialError,
    RemoteError,
    UntrustedError,
)

__all__ = ["RemoteTier", "Tell"]

_T = TypeVar("_T")

Tell = Callable[[str, str, str], None]
"""Takes a code, a message and a hint: a warning."""


@dataclass(slots=True)
class RemoteTier:
    """The remote behind one store, for one command.

    Attributes:
        store: The local store.
        remote: The remote.
        tell: Takes warnings.
        writable: Whether entries are pushed.
        required: Whether a failure of the remote fails the command.
        trusted: Keys of which one must have signed an entry; empty where anybody may have made it.
        unfit: Says what speaks against an entry on this node, for a lookup that may build another.
        pulled: What was pulled.
        pushed: What was pushed.
        unreachable: Whether reading failed, so that an entry may be there that was not seen.
    """

    store: Store
    remote: Remote
    tell: Tell
    writable: bool = True
    required: bool = False
    trusted: Sequence[PublicKey] = ()
    unfit: Callable[[Manifest], Iterable[MissReason]] = lambda _: ()
    pulled: list[Pulled] = field(default_factory=list)
    pushed: list[Pushed] = field(default_factory=list)
    unreachable: bool = False
    _broken: bool = False

    @property
    def url(self) -> str:
        """The remote's address as it may be shown."""
        return self.remote.url

    @property
    def reasons(self) -> tuple[MissReason, ...]:
        """What the remote has to do with a miss: that it could not be asked, or nothing."""
        return (MissReason("remote_unreachable", b=self.url),) if self.unreachable else ()

    def look(self, request: Request, search_path: Sequence[str], environ: Mapping[str, str]) -> Manifest | None:
        """Find an entry of the remote that answers a request, as a local lookup does; nothing is pulled.

        Args:
            request: What is known before tracing.
            search_path: Folders in which source files are looked for.
            environ: The environment.

        Raises:
            RemoteError: The remote is required and cannot be reached or refuses.
            CorruptError: The remote is required and a candidate is damaged.
        """
        return next((m for m in self._answers(request, search_path, environ) if self._complete(m)), None)

    def look_up(self, key: str) -> Manifest | None:
        """Return the manifest of an entry of the remote, if it fits this node and all of it is there.

        Raises:
            RemoteError: The remote is required and cannot be reached or refuses.
            CorruptError: The remote is required and the entry is damaged.
        """
        manifest = self._read(lambda: self.remote.manifest(key, self.trusted))
        fits = manifest is not None and not any(self.unfit(manifest)) and self._complete(manifest)
        return manifest if fits else None

    def take(self, request: Request, search_path: Sequence[str], environ: Mapping[str, str]) -> Manifest | None:
        """Find an entry of the remote that answers a request, and pull it.

        Returns:
            The entry as the local store has it now, or None.

        Raises:
            RemoteError: The remote is required and cannot be reached or refuses.
            CorruptError: The remote is required and a candidate is damaged.
            StoreAccessError: The local store cannot be written.
        """
        found = (self.pull(manifest.key) for manifest in self._answers(request, search_path, environ))
        return next((manifest for manifest in found if manifest is not None), None)

    def take_key(self, key: str) -> Manifest | None:
        """Pull an entry, if the remote has it and it fits this node.

        Raises:
            PrecastError: As `take`.
        """
        manifest = self._read(lambda: self.remote.manifest(key, self.trusted))
        return None if manifest is None or any(self.unfit(manifest)) else self.pull(key)

    def has(self, key: str) -> bool:
        """Tell whether the remote has an entry; one that cannot be asked has none.

        Raises:
            RemoteError: The remote is required and cannot be reached or refuses.
        """
        return bool(self._read(lambda: self.remote.has(key)))

    def pull(self, key: str) -> Manifest | None:
        """Pull an entry, if the remote has it.

        Args:
            key: Its full key.

        Returns:
            The entry as the local store has it now, or None.

        Raises:
            RemoteError: The remote is required and cannot be reached or refuses.
            CorruptError: The remote is required and the entry is damaged.
            StoreAccessError: The local store cannot be written.
            LockedError: Another process held the entry's lock all the time.
        """
        if self.store.read_only:
            if self.has(key):
                what = f"entry {key[:12]} is in {self.url}, and is not pulled: the store was opened read-only"
                self.tell("remote.not_pulled", what, "Leave out --read-only")
            return None
        pulled = self._read(lambda: self.remote.fetch(self.store, key, self.trusted))
        if pulled is None:
            return None
        self.pulled.append(pulled)
        return pulled.manifest

    def pull_named(self, prefix: str) -> Manifest | None:
        """Pull the one entry whose key starts with a text; None where the text is no key, or there is none.

        Raises:
            AmbiguousKeyError: Several entries of the remote have such a key; the error lists them.
            PrecastError: As `pull`.
        """
        wanted = prefix.lower()
        if not MIN_PREFIX <= len(wanted) <= 64 or not set(wanted) <= set("0123456789abcdef"):
            return None
        keys = self._read(lambda: self.remote.keys(wanted)) or ()
        if len(keys) > 1:
            what = f"`{prefix}` fits several entries of {self.url}"
            raise AmbiguousKeyError(what, ", ".join(keys), "Give more digits of the key")
        return self.pull(keys[0]) if keys else None

    def push(self, key: str, request_digests: Sequence[str], *, built: bool) -> None:
        """Push an entry of the local store, unless the remote has it or may not be written.

        Args:
            key: Its key.
            request_digests: Requests that it answers.
            built: Whether it was built just now.

        Raises:
            PartialError: The remote is required, and the entry could not be pushed.
            CorruptError: The remote is required, and the local entry is damaged.
        """
        if not self.writable or self._broken:
            return
        try:
            pushed = self.remote.push(self.store, key, request_digests, built=built)
        except RemoteError as error:
            if self.required:
                what = f"Entry {key[:12]} is stored here, but was not pushed"
                raise PartialError(what, f"{error.what}: {error.why}", error.hint, entry=key) from error
            self._break(error)
        except (CorruptError, NoEntryError) as error:
            if self.required:
                raise
            self.tell(error.code, f"entry {key[:12]} is not pushed: {error}", error.hint)
        else:
            self.pushed.append(pushed)

    def _answers(self, request: Request, search_path: Sequence[str], environ: Mapping[str, str]) -> Iterator[Manifest]:
        """Yield the remote's entries that nothing speaks against, as far as their manifests tell."""
        for key in self._read(lambda: self.remote.candidates(request.digest)) or ():
            manifest = self._read(partial(self.remote.manifest, key, self.trusted))
            if manifest is None:
                continue
            if not any((*judge(manifest, request, search_path, environ), *self.unfit(manifest))):
                yield manifest

    def _complete(self, manifest: Manifest) -> bool:
        return self._read(lambda: self.remote.missing(manifest)) == ()

    def _read(self, job: Callable[[], _T]) -> _T | None:
        """Ask the remote something; None where it fails and is not required, or has no such thing."""
        if self._broken:
            return None
        try:
            return job()
        except NoEntryError:
            return None
        except FormatError as error:
            self.tell("remote.format", f"an entry of {self.url} is left alone: {error}", error.hint)
        except (CorruptError, UntrustedError) as error:
            if self.required:
                raise
            code = "remote.corrupt" if isinstance(error, CorruptError) else "remote.untrusted"
            self.tell(code, f"an entry of {self.url} is left alone: {error}", error.hint)
        except RemoteError as error:
            if self.required:
                raise
            self.unreachable = True
            self._break(error)
        return None

    def _break(self, error: RemoteError) -> None:
        self._broken = True
        self.tell(error.code, f"{error.what}: {error.why}", error.hint)
