"""Precompile a model: look it up, else plan, compile and publish. Says what it did in one result object."""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from precast.aot.progress import Progress, Silent
from precast.aot.reference import ModelReference, SpecReference, parse_reference
from precast.aot.request import CompileInput, compile_input
from precast.aot.result import PrecompileResult, from_entry, from_plan
from precast.aot.settings import Settings, settle_settings
from precast.aot.spec import Json, ModelSpec
from precast.aot.stamps import payload_stamps, refuse_optimized_mode
from precast.aot.target import require_buildable
from precast.cache.counters import record_lookup
from precast.cache.environment import ignored_variables
from precast.cache.lookup import Lookup, MissReason, lookup
from precast.cache.manifest import BuildRecord, Manifest, ModelRecord
from precast.cache.masking import sealed_value
from precast.cache.requests import remember
from precast.cache.root import resolve_root
from precast.cache.store import Store
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
        progress: Is told what goes on.

    Raises:
        PrecastError: See `precast.errors`; nothing half-written is left.
    """
    started = time.perf_counter()
    refuse_optimized_mode()
    settings = settle_settings(settings, os.environ)
    if not settings.compile:
        raise UsageError("optimization level 0 compiles nothing", "-O0 runs the model eagerly", "use -O1 or higher")
    reference = SpecReference(model) if isinstance(model, ModelSpec) else parse_reference(model)
    store = Store(resolve_root(os.fspath(cache_dir) if cache_dir else None, os.environ).path)
    with closing(store):
        job = _Precompile(reference, dict(overrides or {}), settings, store, progress or Silent(), started)
        return replace(job.run(force=force, dry_run=dry_run), seconds=time.perf_counter() - started)


def search_path(reference: ModelReference | SpecReference) -> tuple[str, ...]:
    """Return where the modules and data files of a model are looked for when they are hashed again."""
    import precast

    return (*reference.data_path, *sys.path, str(Path(precast.__file__).parent.parent))


class _Precompile:
    """One precompile: the lookup needs no torch; the rest imports it."""

    def __init__(
        self,
        reference: ModelReference | SpecReference,
        overrides: Mapping[str, Json],
        settings: Settings,
        store: Store,
        progress: Progress,
        started: float,
    ) -> None:
        self.started = started
        self.reference = reference
        self.overrides = overrides
        self.settings = settings
        self.store = store
        self.progress = progress
        self.input: CompileInput = compile_input(reference.factors(overrides), settings)

    def run(self, *, force: bool, dry_run: bool) -> PrecompileResult:
        found = self._lookup()
        if found.hit is not None and not force:
            return self._up_to_date(found.hit, dry_run)
        self._warn()
        plan = self._plan()
        present = None if force else self._present(plan.key)
        if present is not None:
            return self._up_to_date(present, dry_run)
        if dry_run:
            ranges = self.settings.ranges()
            return from_plan(plan.key, plan.spec.name, plan.factors, plan.split, ranges, self.store.root)
        manifest = self._build(plan)
        self._remember(manifest.key)
        outcome = "forced" if force else found.reasons[0].code
        record_lookup(self.store, outcome, manifest.key, 0.0, time.time_ns())
        return from_entry("compiled", manifest, self.store.root)

    def _lookup(self) -> Lookup:
        if not self.reference.quick:
            return Lookup(None, (MissReason("no_entry_for_model"),))
        return lookup(self.store, self.input.request, search_path(self.reference))

    def _warn(self) -> None:
        require_buildable(self.input.target, os.environ)
        if self.input.target.device == "cpu" and self.settings.payload == "inductor":
            self.progress.note("an inductor payload on a CPU runs the C++ compiler when it is loaded; aoti does not")

    def _plan(self) -> "CompilePlan":
        from precast.aot.planning import plan_compile

        return plan_compile(self.reference, self.overrides, self.input, search_path(self.reference), self.progress)

    def _present(self, key: str) -> Manifest | None:
        """Return the manifest of a sound entry that is there already; a damaged one is built again."""
        if not self.store.layout.entry(key).is_dir() or self.store.check(key):
            return None
        return self.store.manifest(key)

    def _build(self, plan: "CompilePlan") -> Manifest:
        from precast.aot.compile import CompileRequest, compile_pieces
        from precast.aot.publish import publish

        request = CompileRequest(
            kind=self.settings.payload,
            target=self.input.target,
            options=self.settings.inductor_config,
            modules=plan.modules,
            paths=self.reference.import_path,
            jobs=self.settings.jobs,
        )
        compiled = compile_pieces(plan.split.pieces, self.settings.ranges(), request, self.progress)
        draft = self._draft(plan, time.perf_counter() - self.started)
        return publish(self.store, draft, compiled, plan.split.plan, plan.sources)

    def _draft(self, plan: "CompilePlan", seconds: float) -> Manifest:
        from precast import __version__
        from precast.splitter.stitch import stitch

        kind, target = self.settings.payload, self.input.target
        config = {**dict(plan.spec.config), **({"overrides": dict(self.overrides)} if self.overrides else {})}
        return Manifest(
            key=plan.key,
            model=ModelRecord(plan.spec.name, self.reference.text, {k: sealed_value(k, v) for k, v in config.items()}),
            factors=plan.factors,
            settings=self.settings.record,
            target=target.to_json(),
            stamps={kind: payload_stamps(kind, target)},
            plan=plan.split.plan.to_json(),
            code=stitch(plan.split.plan).source,
            payloads=(),
            constants=(),
            build=BuildRecord(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), seconds, __version__),
            ignored=ignored_variables(os.environ),
        )

    def _remember(self, key: str) -> None:
        """Note how the model was named, for `verify KEY`; secrets among the overrides by digest only."""
        if self.reference.quick:
            sealed = {k: sealed_value(k, v) for k, v in self.overrides.items()}
            remember(self.store, self.input.request.digest, key, {**self.reference.hint, "overrides": sealed})

    def _up_to_date(self, manifest: Manifest, dry_run: bool) -> PrecompileResult:
        if not dry_run:
            self._remember_if_new(manifest.key)
            self.store.touch(manifest.key)
            record_lookup(self.store, "hit", manifest.key, manifest.build.seconds, time.time_ns())
        return from_entry("up_to_date", manifest, self.store.root)

    def _remember_if_new(self, key: str) -> None:
        from precast.cache.requests import candidates

        if self.reference.quick and key not in candidates(self.store, self.input.request.digest):
            self._remember(key)
