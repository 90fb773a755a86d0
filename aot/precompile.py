"""Precompile a model: look it up, else trace, split, compile, publish. Says what it did in one result object."""

import os
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast.aot.code import code_factors
from precast.aot.progress import Progress, Silent
from precast.aot.reference import ModelReference, parse_reference
from precast.aot.request import CompileInput, compile_input
from precast.aot.settings import Settings, settle_settings
from precast.aot.spec import Json, ModelSpec
from precast.aot.stamps import payload_stamps, refuse_optimized_mode
from precast.aot.target import require_compilable
from precast.cache.canonical import digest
from precast.cache.factors import Factor, entry_key, group_digests
from precast.cache.lookup import Lookup, lookup
from precast.cache.manifest import BuildRecord, Manifest, ModelRecord, PayloadRecord
from precast.cache.requests import remember
from precast.cache.root import resolve_root
from precast.cache.store import Store
from precast.errors import UsageError

if TYPE_CHECKING:
    from precast.splitter.split import Split

__all__ = ["PrecompileResult", "precompile", "search_path"]


@dataclass(frozen=True, slots=True)
class PrecompileResult:
    """What a precompile did, or would do.

    Attributes:
        status: `compiled`, `up_to_date`, or `planned` for a dry run that would compile.
        key: The entry's key.
        model: The model's name.
        factors_digests: Digest of each factor group.
        pieces: Compiled pieces of the graph.
        unique: Unique ones among them.
        ranges: Compile ranges.
        splitting_ops: Calls of each splitting op.
        payloads: One a unique piece and range.
        mega_bytes: Size of the mega artifact.
        stored_bytes: Size of the objects as stored.
        seconds: Wall time of this call.
        saved_seconds: Wall time of the build that an up-to-date entry saves.
        root: The cache root.
        next_command: What to run next.
    """

    status: str
    key: str
    model: str
    factors_digests: Mapping[str, str]
    pieces: int
    unique: int
    ranges: tuple[tuple[int, int], ...]
    splitting_ops: Mapping[str, int]
    payloads: tuple[PayloadRecord, ...]
    mega_bytes: int
    stored_bytes: int
    seconds: float
    saved_seconds: float
    root: Path
    next_command: str


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
    reference = model if isinstance(model, ModelSpec) else parse_reference(model)
    store = Store(resolve_root(os.fspath(cache_dir) if cache_dir else None, os.environ).path)
    job = _Precompile(reference, dict(overrides or {}), settings, store, progress or Silent())
    with closing(store):
        return replace(job.run(force=force, dry_run=dry_run), seconds=time.perf_counter() - started)


def search_path(reference: ModelReference | ModelSpec) -> tuple[str, ...]:
    """Return where the modules of a model are looked for when their sources are hashed again."""
    import sys

    import precast

    own = str(Path(precast.__file__).parent.parent)
    first = reference.search_path if isinstance(reference, ModelReference) else ()
    return (*first, *sys.path, own)


class _Precompile:
    """One precompile: the lookup needs no torch; the rest imports it."""

    def __init__(
        self,
        reference: ModelReference | ModelSpec,
        overrides: Mapping[str, Json],
        settings: Settings,
        store: Store,
        progress: Progress,
    ) -> None:
        self.reference = reference
        self.overrides = overrides
        self.settings = settings
        self.store = store
        self.progress = progress
        self.input: CompileInput = compile_input(_identity(reference), overrides, settings)

    def run(self, *, force: bool, dry_run: bool) -> PrecompileResult:
        found = self._lookup()
        if found.hit is not None and not force:
            return self._up_to_date(found.hit)
        require_compilable(self.input.target.arch)
        spec = self.reference if isinstance(self.reference, ModelSpec) else self.reference.spec(self.overrides)
        if self.input.target.device == "cpu" and self.settings.payload == "inductor":
            self.progress.note("an inductor payload on a CPU runs the C++ compiler when it is loaded; aoti does not")
        split, factors = self._trace(spec)
        key = entry_key(factors)
        if dry_run:
            return self._result("planned", key, spec.name, factors, split)
        present = None if force else self._present(key)
        if present is not None:
            self._remember(key)
            return self._up_to_date(present)
        manifest = self._build(spec, key, factors, split)
        self._remember(key)
        return self._describe("compiled", manifest)

    def _lookup(self) -> Lookup:
        return lookup(self.store, self.input.request, search_path(self.reference))

    def _trace(self, spec: ModelSpec) -> "tuple[Split, tuple[Factor, ...]]":
        from precast.aot.assumptions import check_assumptions, sample_counts
        from precast.aot.trace import build_for_tracing, trace
        from precast.splitter.split import split

        self.progress.start("trace", 0)
        device = self.input.target.device
        traced = trace(spec, build_for_tracing(spec, device), device)
        check_assumptions(traced.graph_module.graph, sample_counts(self.settings.ranges()))
        ops = spec.splitting_ops if self.settings.splitting_ops is None else self.settings.splitting_ops
        made = split(traced.graph_module, traced.inputs, traced.arguments, traced.result, ops)
        code = code_factors(_roots(spec, self.reference), traced.traced_files)
        self.progress.finish("trace")
        return made, (*self.input.shared, *spec_factors(spec), *code, _graph_factor(made))

    def _present(self, key: str) -> Manifest | None:
        """Return the manifest of a sound entry that is there already; a damaged one is built again."""
        damaged = self.store.layout.entry(key).is_dir() and self.store.check(key)
        if not self.store.layout.entry(key).is_dir() or damaged:
            return None
        return self.store.manifest(key)

    def _build(self, spec: ModelSpec, key: str, factors: tuple[Factor, ...], split: "Split") -> Manifest:
        from precast.aot.compile import CompileRequest, compile_pieces
        from precast.aot.publish import publish

        started = time.perf_counter()
        roots = tuple(r for r in _roots(spec, self.reference) if r != "__main__")
        paths = self.reference.search_path if isinstance(self.reference, ModelReference) else ()
        request = CompileRequest(
            self.settings.payload, self.input.target, self.settings.inductor_config, roots, paths, self.settings.jobs
        )
        compiled = compile_pieces(split.pieces, self.settings.ranges(), request, self.progress)
        draft = self._draft(spec, key, factors, split, time.perf_counter() - started)
        return publish(self.store, draft, compiled, split.plan)

    def _draft(
        self, spec: ModelSpec, key: str, factors: tuple[Factor, ...], split: "Split", seconds: float
    ) -> Manifest:
        from precast.splitter.stitch import stitch

        kind, target = self.settings.payload, self.input.target
        text = self.reference.text if isinstance(self.reference, ModelReference) else spec.name
        config = {**dict(spec.config), **({"overrides": dict(self.overrides)} if self.overrides else {})}
        built = BuildRecord(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), seconds, _version())
        return Manifest(
            key=key,
            model=ModelRecord(spec.name, text, config),
            factors=factors,
            settings=self.settings.record,
            target=target.to_json(),
            stamps={kind: payload_stamps(kind, target)},
            plan=split.plan.to_json(),
            code=stitch(split.plan).source,
            payloads=(),
            constants=(),
            build=built,
        )

    def _remember(self, key: str) -> None:
        hint: dict[str, Any] = {}
        if isinstance(self.reference, ModelReference):
            folder = str(self.reference.folder) if self.reference.folder else ""
            hint = {"reference": self.reference.text, "folder": folder, "overrides": dict(self.overrides)}
        remember(self.store, self.input.request.digest, key, hint)

    def _up_to_date(self, manifest: Manifest) -> PrecompileResult:
        self.store.touch(manifest.key)
        return self._describe("up_to_date", manifest)

    def _describe(self, status: str, manifest: Manifest) -> PrecompileResult:
        from precast.splitter.plan import SplitPlan

        plan = SplitPlan.from_json(manifest.plan)
        return PrecompileResult(
            status=status,
            key=manifest.key,
            model=manifest.model.name,
            factors_digests=group_digests(manifest.factors),
            pieces=len(plan.pieces),
            unique=len(plan.unique_keys),
            ranges=tuple(dict.fromkeys(p.range for p in manifest.payloads)),
            splitting_ops=plan.op_counts(),
            payloads=manifest.payloads,
            mega_bytes=manifest.mega.bytes if manifest.mega else 0,
            stored_bytes=sum({p.object: p.stored_bytes for p in manifest.payloads}.values()),
            seconds=0.0,
            saved_seconds=manifest.build.seconds if status == "up_to_date" else 0.0,
            root=self.store.root,
            next_command=f"precast verify {manifest.key[:12]}",
        )

    def _result(
        self, status: str, key: str, name: str, factors: tuple[Factor, ...], split: "Split"
    ) -> PrecompileResult:
        return PrecompileResult(
            status=status,
            key=key,
            model=name,
            factors_digests=group_digests(factors),
            pieces=len(split.plan.pieces),
            unique=len(split.pieces),
            ranges=self.settings.ranges(),
            splitting_ops=split.plan.op_counts(),
            payloads=(),
            mega_bytes=0,
            stored_bytes=0,
            seconds=0.0,
            saved_seconds=0.0,
            root=self.store.root,
            next_command="precast precompile with the same arguments, without --dry-run",
        )


def spec_factors(spec: ModelSpec) -> tuple[Factor, ...]:
    """Return a spec's config and call signature as factors."""
    config = [Factor("config", f"model.{k}", v) for k, v in spec.config.items()]
    inputs = [Factor("config", f"signature.{i.name}", [i.dtype, list(i.shape)]) for i in spec.inputs]
    order = Factor("config", "signature.order", [i.name for i in spec.inputs])
    return (*config, *inputs, order)


def _graph_factor(split: "Split") -> Factor:
    """Digest the plan; it names unique pieces by structural key, so every baked number is covered (W8, W11)."""
    return Factor("graph", "graph", digest(split.plan.to_json()))


def _roots(spec: ModelSpec, reference: ModelReference | ModelSpec) -> tuple[str, ...]:
    functions = (spec.build, spec.sample, spec.load_weights)
    names = [getattr(f, "__module__", None) for f in functions]
    first = [reference.module] if isinstance(reference, ModelReference) else []
    return tuple(dict.fromkeys([*first, *(n for n in names if n)]))


def _identity(reference: ModelReference | ModelSpec) -> Mapping[str, Json]:
    if isinstance(reference, ModelReference):
        return reference.identity
    inputs: list[Json] = [[i.name, i.dtype, list(i.shape)] for i in reference.inputs]
    return {
        "kind": "spec",
        "name": reference.name,
        "config": dict(reference.config),
        "inputs": inputs,
        "splitting_ops": list(reference.splitting_ops),
        "build": getattr(reference.build, "__qualname__", ""),
    }


def _version() -> str:
    from precast import __version__

    return __version__
