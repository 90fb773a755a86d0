"""Precompile a model: look it up, else plan, compile and publish. Says what it did in one result object.

Equal work in flight is awaited, not repeated: one process at a time answers a request, and one at a time builds a key.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from precast.aot.answers import remember_answer, search_path
from precast.aot.building import Builder
from precast.aot.mending import checked, damaged_keys, mend, sweep
from precast.aot.preconditions import require_target, require_usable, require_work_possible
from precast.aot.progress import Progress, Silent
from precast.aot.reference import SpecReference, parse_reference
from precast.aot.request import CompileInput, compile_input
from precast.aot.result import PrecompileResult, from_entry, from_plan
from precast.aot.scratch import scratch_folder
from precast.aot.settings import Settings, settle_settings
from precast.aot.spec import Json, ModelSpec
from precast.aot.stamps import refuse_optimized_mode, stamp_misses
from precast.aot.traces import Traces
from precast.aot.waiting import done_once
from precast.cache.canonical import digest
from precast.cache.counters import record_lookup
from precast.cache.lookup import Lookup, MissReason, lookup
from precast.cache.manifest import Manifest
from precast.cache.options import StoreOptions, open_store
from precast.cache.remotes import open_tier
from precast.cache.requests import candidates
from precast.cache.scratch import require_scratch
from precast.cache.signatures import require_signature
from precast.cache.signing import mend_signatures, sign_entry, signers, stored_signatures
from precast.cache.signing_keys import PrivateKey, PublicKey, load_private_key, load_public_keys
from precast.cache.sources import hash_source, locate_source
from precast.cache.store import Store
from precast.cache.tags import check_tag, set_tag
from precast.cache.trust import require_trusted
from precast.errors import FormatError, LockedError, NoEntryError, StoreAccessError, UsageError

if TYPE_CHECKING:
    from precast.aot.instance import InstanceReference
    from precast.aot.planning import CompilePlan, Reference
    from precast.cache.remote_tier import RemoteTier

__all__ = ["PrecompileResult", "precompile"]


def precompile(
    model: "str | ModelSpec | InstanceReference",
    settings: Settings | None = None,
    *,
    overrides: Mapping[str, Json] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    tags: Sequence[str] = (),
    sign: str | os.PathLike[str] | None = None,
    output: Path | None = None,
    options: StoreOptions | None = None,
    progress: Progress | None = None,
    traces: Traces | None = None,
) -> PrecompileResult:
    """Compile a model ahead of time, unless the store has it already.

    Args:
        model: A spec, MODEL as on the command line, or a live module with one call of it.
        settings: Settings; by default those of the environment.
        overrides: Values for the model's config, for MODEL as text.
        cache_dir: The cache root; by default `PRECAST_CACHE_DIR`, then the user's cache folder.
        force: Compile although an entry is there.
        dry_run: Trace and split, compile and write nothing.
        tags: Names for the entry; `prune` leaves tagged entries alone.
        sign: File of an ed25519 key to sign the entry with, built or found; by default `PRECAST_SIGNING_KEY`. It is
            read before anything is compiled. A found entry that this key signed already is left as it is.
        output: A file that the caller will write afterwards; it is refused now, together with all else that cannot be
            written.
        options: How the store is opened; by default as the environment says. Where it asks for signatures, an entry
            that was found and has none of them is refused, whatever `sign` says.
        progress: Is told what goes on.
        traces: What other calls for this model traced, with settings that differ in their target alone.

    Raises:
        PrecastError: See `precast.errors`; nothing half-written is left.
    """
    started = time.perf_counter()
    refuse_optimized_mode()
    for tag in tags:
        check_tag(tag)
    key_file = sign or os.environ.get("PRECAST_SIGNING_KEY")
    signing = load_private_key(Path(key_file)) if key_file else None
    settings = settle_settings(settings, os.environ)
    if not settings.compile:
        raise _compiles_nothing(settings)
    reference = _reference(model)
    store, opened = open_store(cache_dir, options)
    required = load_public_keys(opened.required_signatures)
    with closing(store):
        builder = Builder(
            reference=reference,
            overrides=dict(overrides or {}),
            settings=settings,
            input=_input(reference, dict(overrides or {}), settings),
            store=store,
            progress=progress or Silent(),
            started=started,
        )
        job = _Precompile(builder, opened, tuple(tags), signing, required, output, traces or Traces())
        result = job.look(force=force) if dry_run else job.share(job.run(force=force))
        if not dry_run:
            sweep(store)
        return replace(result, signed_by=signers(store, result.key), seconds=time.perf_counter() - started)


def _compiles_nothing(settings: Settings) -> UsageError:
    if settings.enforce_eager:
        return UsageError("`enforce_eager` compiles nothing", "it runs the model eagerly", "leave it out")
    return UsageError("optimization level 0 compiles nothing", "-O0 runs the model eagerly", "use -O1 or higher")


def _reference(model: "str | ModelSpec | InstanceReference") -> "Reference":
    if isinstance(model, ModelSpec):
        return SpecReference(model)
    return parse_reference(model) if isinstance(model, str) else model


def _input(reference: "Reference", overrides: Mapping[str, Json], settings: Settings) -> CompileInput:
    made = compile_input(reference.factors(overrides), settings)
    return replace(made, request=replace(made.request, identity=reference.identity))


class _Precompile:
    """One precompile: the lookup needs no torch; the rest imports it."""

    def __init__(
        self,
        builder: Builder,
        options: StoreOptions,
        tags: tuple[str, ...],
        signing: PrivateKey | None,
        required: tuple[PublicKey, ...],
        output: Path | None,
        traces: Traces,
    ) -> None:
        self.builder = builder
        self.options = options
        self.tags = tags
        self.signing = signing
        self.required = required
        self.output = output
        self.traces = traces
        self.store: Store = builder.store
        self.reference = builder.reference
        self.progress = builder.progress
        self.input: CompileInput = builder.input
        self.tier: RemoteTier | None = open_tier(builder.store, options, builder.progress.warning, self._unfit)

    def look(self, *, force: bool) -> PrecompileResult:
        """Say what would be done; write nothing."""
        found = self._lookup()
        if found.hit is not None and not force:
            self._require_signed(found.hit)
            return from_entry("up_to_date", found.hit, self.store.root)
        there = None if force else self._look_behind(None)
        if there is not None:
            return there
        self._require_target()
        require_scratch("trace with: torch looks for one")
        with self._private_caches():
            plan = self._plan()
        present = None if force else self._present(plan.key)
        if present is not None:
            self._require_signed(present)
            return from_entry("up_to_date", present, self.store.root)
        there = None if force else self._look_behind(plan.key)
        if there is not None:
            return there
        ranges = self.builder.settings.ranges()
        return from_plan(plan.key, plan.spec.name, plan.factors, plan.split, ranges, self.store.root)

    def run(self, *, force: bool) -> PrecompileResult:
        """Find the entry or make it."""
        require_usable(self.store, self.options, output=self.output, compiles=force)
        found = self._lookup()
        done = None if force else self._use(found.hit) or self._mend(found)  # neither needs a compiler
        if done is not None:
            return done
        if self.tier is None:
            self._require_buildable()
        with self._once_a_request():
            if not force:
                # Whoever did the same work may have ended since the look before, so that there was nothing to wait for.
                found = self._lookup()
                done = self._use(found.hit) or self._take()
            if done is not None:
                return done
            if self.tier is not None:  # what the remote has need not be buildable here
                self._require_buildable()
            with self._private_caches():
                return self._make(self._plan(), found, force=force)

    def share(self, result: PrecompileResult) -> PrecompileResult:
        """Push the entry to the remote, unless it has it, and tell what moved."""
        if self.tier is None:
            return result
        digests = (self.input.request.digest,) if self.reference.quick else ()
        self.tier.push(result.key, digests, built=result.status not in ("up_to_date", "repaired", "pulled"))
        pushed = self.tier.pushed
        if any(item.kept for item in pushed):
            self.progress.note(f"{self.tier.url} keeps the build of this entry that it has")
        return replace(
            result,
            remote=self.tier.url,
            pulled_bytes=sum(item.bytes for item in self.tier.pulled),
            pushed_bytes=sum(item.bytes for item in pushed),
        )

    def _make(self, plan: "CompilePlan", found: Lookup, *, force: bool) -> PrecompileResult:
        with done_once(self.store, f"work-{plan.key}", self.progress), self.store.reserve(plan.key):
            present = None if force else self._present(plan.key)
            done = self._up_to_date(present) if present is not None else None if force else self._mend_entry(plan.key)
            if done is not None:
                return done
            pulled = None if force or self.tier is None else self.tier.take_key(plan.key)
            if pulled is not None:
                return self._pulled(pulled)
            kept = self._present(plan.key) if force and self.required else None
            manifest = self.builder.build(plan)
            if kept is not None and kept.content_digest == manifest.content_digest:
                self._require_signed(manifest)  # a good entry stays, so this is not what was built
            self._remember(manifest.key)
            self._finish(manifest)
        reasons = (*(self.tier.reasons if self.tier is not None else ()), *found.reasons)
        outcome = "forced" if force or not reasons else reasons[0].code
        record_lookup(self.store, outcome, manifest.key, 0.0, time.time_ns())
        return from_entry("compiled", manifest, self.store.root)

    def _once_a_request(self) -> AbstractContextManager[bool]:
        """Let one process at a time answer this request; what two specs hold cannot be told before they are traced."""
        if not self.reference.quick:
            return nullcontext(False)
        # The request knows the factory by its name only. Other models of that name must not wait for this one.
        source = locate_source(self.reference.module, search_path(self.reference))
        content = ""
        with suppress(OSError):
            content = hash_source(source) if source else ""
        work = digest({"request": self.input.request.digest, "source": content})
        return done_once(self.store, f"request-{work}", self.progress)

    def _use(self, hit: Manifest | None) -> PrecompileResult | None:
        """Answer with an entry that was found; None where there is none, or `prune` took it away meanwhile."""
        if hit is not None:
            with suppress(NoEntryError), self.store.hold(hit.key):
                if self.store.layout.entry(hit.key).is_dir():
                    return self._up_to_date(hit)
        return None

    def _look_behind(self, key: str | None) -> PrecompileResult | None:
        """Say what the remote has for this request, or under a key; nothing is pulled."""
        manifest = None
        if self.tier is not None and key is not None:
            manifest = self.tier.look_up(key)
        elif self.tier is not None and self.reference.quick:
            manifest = self.tier.look(self.input.request, search_path(self.reference), os.environ)
        if manifest is None or self.tier is None:
            return None
        return replace(from_entry("pullable", manifest, self.store.root), remote=self.tier.url)

    def _take(self) -> PrecompileResult | None:
        """Answer with an entry of the remote; None where it has none."""
        if self.tier is None or not self.reference.quick:
            return None
        manifest = self.tier.take(self.input.request, search_path(self.reference), os.environ)
        return None if manifest is None else self._pulled(manifest)

    def _pulled(self, manifest: Manifest) -> PrecompileResult:
        """Answer with what the remote gave; nothing was pulled where only the store's memory of it was lost."""
        moved = self.tier is not None and any(item.new for item in self.tier.pulled)
        return self._up_to_date(manifest, "pulled" if moved else "up_to_date")

    def _lookup(self) -> Lookup:
        if not self.reference.quick:
            return Lookup(None, (MissReason("no_entry_for_model"),))
        found = lookup(self.store, self.input.request, search_path(self.reference), unfit=self._unfit)
        return checked(self.store, found)

    def _unfit(self, manifest: Manifest) -> Iterator[MissReason]:
        """Say why an entry that answers the request by its key will not do: this node, or tensors of a live module."""
        yield from stamp_misses(manifest)
        yield from self.reference.unfit(manifest)

    def _mend(self, found: Lookup) -> PrecompileResult | None:
        """Answer with an entry that nothing but damage kept from answering, if it can be mended."""
        for key in damaged_keys(self.store, found):
            with suppress(FormatError), done_once(self.store, f"work-{key}", self.progress):
                # A manifest that was damaged said nothing about the factors; another entry is no answer.
                done = self._mend_entry(key, lambda manifest: self._lookup().hit == manifest)
                if done is not None:
                    return done
        return None

    def _mend_entry(
        self, key: str, answers: Callable[[Manifest], bool] = lambda manifest: not stamp_misses(manifest)
    ) -> PrecompileResult | None:
        """Mend an entry; None where there is none to mend, or it is in the quarantine now, to be built again."""
        repaired = mend(self.store, key, self.progress)
        if repaired is None or not answers(repaired.manifest):
            return None
        status = "repaired" if repaired.mended else "up_to_date"
        return replace(self._up_to_date(repaired.manifest, status), repaired=repaired.mended)

    def _require_target(self) -> None:
        require_target(self.input.target, self.builder.settings.payload, self.progress)

    def _require_buildable(self) -> None:
        self._require_target()
        require_work_possible(self.store, self.output, self.progress)

    @contextmanager
    def _private_caches(self) -> Iterator[None]:
        """Leave nothing of torch's own behind, and let it run for a user without a name."""
        from precast.aot.torch_seams.caches import private_caches

        with scratch_folder("compile") as folder, private_caches(folder):
            yield

    def _plan(self) -> "CompilePlan":
        from precast.aot.planning import plan_compile

        folders = search_path(self.reference)
        return plan_compile(self.reference, self.builder.overrides, self.input, folders, self.progress, self.traces)

    def _present(self, key: str) -> Manifest | None:
        """Return the manifest of a sound entry that is there already; one that is damaged or unfit is built again."""
        try:
            manifest = None if self.store.check(key) else self.store.manifest(key)
        except (NoEntryError, FormatError):
            return None
        return None if manifest is None or stamp_misses(manifest) else manifest

    def _up_to_date(self, manifest: Manifest, status: str = "up_to_date") -> PrecompileResult:
        require_trusted(self.store.layout, self.options, manifest.key)
        self._require_signed(manifest)
        self._remember_if_new(manifest.key)
        self.store.touch(manifest.key)
        self._finish(manifest)
        record_lookup(self.store, "hit", manifest.key, manifest.build.seconds, time.time_ns())
        return from_entry(status, manifest, self.store.root)

    def _finish(self, manifest: Manifest) -> None:
        """Do what was asked for beside the entry itself, whether it was built now or found."""
        for tag in self.tags:
            set_tag(self.store, tag, manifest.key)
        self._sign(manifest)

    def _sign(self, manifest: Manifest) -> None:
        """Sign the entry if that was asked for, and take away signatures that are worth nothing."""
        if not self.store.read_only:
            for fault in mend_signatures(self.store, manifest):
                self.progress.note(f"a damaged signature was taken away: {fault}")
        if self.signing is not None:
            sign_entry(self.store, manifest, self.signing)

    def _require_signed(self, manifest: Manifest) -> None:
        """Refuse an entry that was found and has none of the signatures asked for; what is built here needs none."""
        if self.required:
            require_signature(manifest, stored_signatures(self.store, manifest.key), self.required)

    def _remember(self, key: str) -> None:
        """Note the answer; where that fails, the entry is there all the same, and the next run traces once more."""
        if self.reference.quick:
            try:
                remember_answer(self.store, self.reference, self.builder.overrides, self.input.request, key)
            except (StoreAccessError, LockedError) as error:
                self.progress.note(f"this answer was not remembered, so the next run traces again: {error}")

    def _remember_if_new(self, key: str) -> None:
        if self.reference.quick and key not in candidates(self.store, self.input.request.digest):
            self._remember(key)
