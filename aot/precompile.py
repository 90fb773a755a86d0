"""Precompile a model: look it up, else plan, compile and publish. Says what it did in one result object.

Equal work in flight is awaited, not repeated: one process at a time answers a request, and one at a time builds a key.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from precast.aot.building import Builder
from precast.aot.progress import Progress, Silent
from precast.aot.reference import ModelReference, SpecReference, parse_reference
from precast.aot.request import CompileInput, compile_input
from precast.aot.result import PrecompileResult, from_entry, from_plan
from precast.aot.settings import Settings, settle_settings
from precast.aot.spec import Json, ModelSpec
from precast.aot.stamps import refuse_optimized_mode
from precast.aot.target import require_buildable
from precast.cache.counters import record_lookup
from precast.cache.in_flight import in_flight
from precast.cache.lookup import Lookup, MissReason, lookup
from precast.cache.manifest import Manifest
from precast.cache.masking import sealed_value
from precast.cache.options import StoreOptions, open_store
from precast.cache.requests import candidates, remember
from precast.cache.store import Store
from precast.cache.tags import check_tag, set_tag
from precast.errors import UsageError

if TYPE_CHECKING:
    from precast.aot.planning import CompilePlan

__all__ = ["PrecompileResult", "precompile", "search_path"]


def precompile(
    model: str | ModelSpec,
    settings: Settings | None = None,
    *,
    overrides: Mapping[str, Json] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    tags: Sequence[str] = (),
    options: StoreOptions | None = None,
    progress: Progress | None = None,
) -> PrecompileResult:
    """Compile a model ahead of time, unless the store has it already.

    Args:
        model: A spec, or MODEL as on the command line.
        settings: Settings; by default those of the environment.
        overrides: Values for the model's config, for MODEL as text.
        cache_dir: The cache root; by default `PRECAST_CACHE_DIR`, then the user's cache folder.
        force: Compile although an entry is there.
        dry_run: Trace and split, compile and write nothing.
        tags: Names for the entry; `prune` leaves tagged entries alone.
        options: How the store is opened; by default as the environment says.
        progress: Is told what goes on.

    Raises:
        PrecastError: See `precast.errors`; nothing half-written is left.
    """
    started = time.perf_counter()
    refuse_optimized_mode()
    for tag in tags:
        check_tag(tag)
    settings = settle_settings(settings, os.environ)
    if not settings.compile:
        raise UsageError("optimization level 0 compiles nothing", "-O0 runs the model eagerly", "use -O1 or higher")
    reference = SpecReference(model) if isinstance(model, ModelSpec) else parse_reference(model)
    store, opened = open_store(cache_dir, options)
    with closing(store):
        builder = Builder(
            reference=reference,
            overrides=dict(overrides or {}),
            settings=settings,
            input=compile_input(reference.factors(dict(overrides or {})), settings),
            store=store,
            progress=progress or Silent(),
            started=started,
        )
        job = _Precompile(builder, opened, tuple(tags))
        result = job.look(force=force) if dry_run else job.run(force=force)
        return replace(result, seconds=time.perf_counter() - started)


def search_path(reference: ModelReference | SpecReference) -> tuple[str, ...]:
    """Return where the modules and data files of a model are looked for when they are hashed again."""
    import precast

    return (*reference.data_path, *sys.path, str(Path(precast.__file__).parent.parent))


class _Precompile:
    """One precompile: the lookup needs no torch; the rest imports it."""

    def __init__(self, builder: Builder, options: StoreOptions, tags: tuple[str, ...]) -> None:
        self.builder = builder
        self.options = options
        self.tags = tags
        self.store: Store = builder.store
        self.reference = builder.reference
        self.progress = builder.progress
        self.input: CompileInput = builder.input

    def look(self, *, force: bool) -> PrecompileResult:
        """Say what would be done; write nothing."""
        found = self._lookup()
        if found.hit is not None and not force:
            return from_entry("up_to_date", found.hit, self.store.root)
        self._warn()
        plan = self._plan()
        present = None if force else self._present(plan.key)
        if present is not None:
            return from_entry("up_to_date", present, self.store.root)
        ranges = self.builder.settings.ranges()
        return from_plan(plan.key, plan.spec.name, plan.factors, plan.split, ranges, self.store.root)

    def run(self, *, force: bool) -> PrecompileResult:
        """Find the entry or make it."""
        found = self._lookup()
        if found.hit is not None and not force:
            return self._up_to_date(found.hit)
        self._warn()
        with in_flight(self.store, f"request-{self.input.request.digest}", self._tell_waiting) as waited:
            if waited and not force:
                found = self._lookup()
                if found.hit is not None:
                    return self._up_to_date(found.hit)
            return self._make(self._plan(), found, force=force)

    def _make(self, plan: "CompilePlan", found: Lookup, *, force: bool) -> PrecompileResult:
        with in_flight(self.store, f"work-{plan.key}", self._tell_waiting):
            present = None if force else self._present(plan.key)
            if present is not None:
                return self._up_to_date(present)
            manifest = self.builder.build(plan)
        self._remember(manifest.key)
        self._finish(manifest)
        outcome = "forced" if force else found.reasons[0].code
        record_lookup(self.store, outcome, manifest.key, 0.0, time.time_ns())
        return from_entry("compiled", manifest, self.store.root)

    def _lookup(self) -> Lookup:
        if not self.reference.quick:
            return Lookup(None, (MissReason("no_entry_for_model"),))
        return lookup(self.store, self.input.request, search_path(self.reference))

    def _tell_waiting(self, holder: str) -> None:
        self.progress.note(f"{holder} does the same work; waiting for it")

    def _warn(self) -> None:
        require_buildable(self.input.target, os.environ)
        if self.input.target.device == "cpu" and self.builder.settings.payload == "inductor":
            self.progress.note("an inductor payload on a CPU runs the C++ compiler when it is loaded; aoti does not")

    def _plan(self) -> "CompilePlan":
        from precast.aot.planning import plan_compile

        return plan_compile(
            self.reference, self.builder.overrides, self.input, search_path(self.reference), self.progress
        )

    def _present(self, key: str) -> Manifest | None:
        """Return the manifest of a sound entry that is there already; a damaged one is built again."""
        if not self.store.layout.entry(key).is_dir() or self.store.check(key):
            return None
        return self.store.manifest(key)

    def _up_to_date(self, manifest: Manifest) -> PrecompileResult:
        self._remember_if_new(manifest.key)
        self.store.touch(manifest.key)
        self._finish(manifest)
        record_lookup(self.store, "hit", manifest.key, manifest.build.seconds, time.time_ns())
        return from_entry("up_to_date", manifest, self.store.root)

    def _finish(self, manifest: Manifest) -> None:
        """Do what was asked for beside the entry itself, whether it was built now or found."""
        for tag in self.tags:
            set_tag(self.store, tag, manifest.key)

    def _remember(self, key: str) -> None:
        """Note how the model was named, for `verify KEY`; secrets among the overrides by digest only."""
        if self.reference.quick:
            sealed = {k: sealed_value(k, v) for k, v in self.builder.overrides.items()}
            remember(self.store, self.input.request.digest, key, {**self.reference.hint, "overrides": sealed})

    def _remember_if_new(self, key: str) -> None:
        if self.reference.quick and key not in candidates(self.store, self.input.request.digest):
            self._remember(key)
