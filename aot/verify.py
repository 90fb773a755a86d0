"""Verify an entry in this process: files, stamps, load, numbers, each level only when the one before it passed.

`load` and the runs after it are watched from outside the library: no Dynamo frame, no Inductor or Triton compile and no
compiler process may be seen, and a load of `aoti` payloads may start no process at all. What the eager model itself
compiles (the Triton kernels of its own ops) is counted apart.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from precast.aot.capture_request import Obstacle, capture_request, require_gpu
from precast.aot.load import load_pieces
from precast.aot.loaded import LoadedEntry
from precast.aot.phases import OTHER, PhaseClock
from precast.aot.progress import Progress, Silent
from precast.aot.report import Finding, Stage, VerifyReport, counted
from precast.aot.settings import Settings
from precast.aot.sources import Degradation, MegaSource, names_file, require_own
from precast.aot.spec import Json
from precast.aot.stamps import incompatible, mismatches, refuse_optimized_mode
from precast.aot.subject import Subject, file_subject, find_subject, with_model
from precast.aot.torch_seams.watch import CompileWatch
from precast.aot.verify_capture import check_capture
from precast.aot.verify_numerics import check_numerics
from precast.cache.damage import Damage
from precast.cache.options import StoreOptions, open_store, signed_options
from precast.cache.remotes import open_tier
from precast.cache.signatures import VALID, faults, judge, require_signature
from precast.cache.signing_keys import PublicKey, load_public_keys
from precast.cache.store import Store
from precast.errors import (
    CorruptError,
    FormatError,
    PrecastError,
    SignatureError,
    UsageError,
)

__all__ = ["LEVELS", "Stage", "VerifyReport", "verify"]

LEVELS = ("files", "env", "load", "numerics", "capture")
_HEAVY = ("torch._dynamo", "torch._inductor", "sympy", "triton")


def verify(
    what: str | os.PathLike[str],
    *,
    overrides: Mapping[str, Json] | None = None,
    settings: Settings | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    level: str = "auto",
    strict: bool = True,
    token_counts: Sequence[int] | None = None,
    model: str | None = None,
    options: StoreOptions | None = None,
    bench: bool = False,
    progress: Progress | None = None,
) -> VerifyReport:
    """Verify one entry.

    Args:
        what: A key or prefix, a mega file, or MODEL; a key finds its model again when it can be found.
        overrides: Values for the model's config, with MODEL.
        settings: Settings: with MODEL they choose the entry, and for level `capture` the graphs.
        cache_dir: The cache root.
        level: `files`, `env`, `load`, `numerics`, `capture`, or `auto` for the highest possible; who signed the entry
            is looked at before any of them.
        strict: Fail for a missing or damaged object; else its copy in the mega file is used and reported.
        token_counts: Token counts to compare at; 1, 2, a prime, a power of two and the largest by default.
        model: MODEL to compare numbers with, where `what` is a file or a key: neither says where its model lies.
        options: How the store is opened; by default as the environment says.
        bench: Time decode steps too; asks for level `capture`.
        progress: Is told what goes on.

    Raises:
        NoEntryError: There is no such entry; nothing is ever compiled from here.
        NoGpuError: Level `capture` is asked for, and there is no GPU or the entry was compiled for none.
        UsageError: An unknown level, or a file of a public key that cannot be used.
    """
    refuse_optimized_mode()
    clock = PhaseClock()
    options = signed_options(options, None)
    keys = load_public_keys(options.required_signatures)
    asked = _Asked(_level(level, bench), strict, token_counts, settings, bench, keys, options, progress or Silent())
    degraded: list[Degradation] = []
    if names_file(os.fspath(what)):
        with clock.phase("find"):
            subject = with_model(file_subject(Path(what)), model, overrides or {})
        return _Verify(subject, asked, degraded, clock).run()
    store, options = open_store(cache_dir, options)
    asked = replace(asked, options=options)
    try:
        with clock.phase("find"):
            subject = find_subject(
                os.fspath(what), dict(overrides or {}), settings, store, trusts_hints=not keys, strict=strict,
                on_degraded=degraded.append, tier=open_tier(store, options, asked.progress.warning),
            )  # fmt: skip
            subject = with_model(subject, model, overrides or {})
    except CorruptError as error:
        return _without_manifest(store, error)
    with store.hold(subject.key):
        return _Verify(subject, asked, degraded, clock).run()


def _level(level: str, bench: bool) -> str:
    if level not in (*LEVELS, "auto"):
        raise UsageError(f"unknown level `{level}`", f"levels: {', '.join(LEVELS)}, auto", "choose one of these")
    if bench and level not in ("auto", "capture"):
        raise UsageError(f"level `{level}` times nothing", "only captured graphs are timed", "leave the level out")
    return "capture" if bench else level


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a verify was asked for."""

    level: str
    strict: bool
    token_counts: Sequence[int] | None
    settings: Settings | None
    bench: bool
    keys: Sequence[PublicKey]
    options: StoreOptions
    progress: Progress


def _without_manifest(store: Store, error: CorruptError) -> VerifyReport:
    """Report on an entry whose manifest is damaged: all its damage, as far as the mega artifact tells."""
    started = time.perf_counter()
    damage = () if isinstance(error, FormatError) or not error.entry else store.check(error.entry)
    if not damage:  # another format, or mended by another process since
        raise error
    facts: dict[str, Json] = {"damaged": [item.json() for item in damage]}
    told = "; ".join(map(str, damage))
    stage = Stage("files", "failed", time.perf_counter() - started, told, facts)
    return VerifyReport(error.entry, "files", (stage,), tuple(_problems(error.entry, damage)))


def _problems(key: str, damage: Sequence[Damage]) -> Iterator[CorruptError]:
    for item in damage:
        yield CorruptError(
            f"{item.member} of entry {key[:12]} is damaged", item.reason,
            "run `precast precompile` again: it repairs this entry, or builds it anew", entry=key, path=item.path,
        )  # fmt: skip


class _Verify:
    """Runs the levels and keeps what each found."""

    def __init__(self, subject: Subject, asked: _Asked, degraded: list[Degradation], clock: PhaseClock) -> None:
        self.subject = subject
        self.asked = asked
        self.degraded = degraded
        self.stages: list[Stage] = []
        self.problems: list[PrecastError] = []
        self.watch = CompileWatch()
        self.clock = clock

    def run(self) -> VerifyReport:
        level = self.asked.level
        wanted = LEVELS if level == "auto" else LEVELS[: LEVELS.index(level) + 1]
        steps = {"files": self._files, "env": self._env}
        if level == "capture":
            require_gpu(self.subject.manifest, self.asked.settings)
        with self.clock.phase("signature"):
            self._step("signature", self._signature)
        if any(isinstance(problem, SignatureError) for problem in self.problems):
            return self._report()
        for name in wanted[:2]:
            with self.clock.phase(name):
                self._step(name, steps[name])
        if len(wanted) > 2 and not self.problems:
            # To watch every name of every module takes its time, at both ends.
            with self.clock.phase("watch"), self.watch, self.clock.phase(OTHER):
                self._loaded_levels(wanted[2:])
        self.subject.source.touch()
        return self._report()

    def _report(self) -> VerifyReport:
        ran = [s.name for s in self.stages if s.status != "skipped"]
        phases = self.clock.seconds()
        return VerifyReport(self.subject.key, ran[-1], tuple(self.stages), tuple(self.problems), phases)

    def _signature(self) -> Finding:
        """Look at who signed the entry. Damage to signatures counts as damage, whether or not any are asked for."""
        signatures = self.subject.source.signatures()
        if self.asked.keys:
            require_signature(self.subject.manifest, signatures, self.asked.keys)
        judged = judge(self.subject.manifest, signatures)
        facts: dict[str, Json] = {
            "signatures": [{"id": j.id, "algorithm": j.algorithm, "verdict": j.verdict} for j in judged],
            "required": [key.id for key in self.asked.keys],
        }
        member = "the header" if isinstance(self.subject.source, MegaSource) else "signatures.json"
        bad = [f"{member}: {fault}" for fault in faults(self.subject.manifest, signatures)]
        if bad and self.asked.strict:
            raise CorruptError(
                f"the signatures of entry {self.subject.key[:12]} are damaged", "; ".join(bad),
                "run `precast precompile` again: it takes such signatures away", entry=self.subject.key,
            )  # fmt: skip
        if bad:
            return f"damaged: {'; '.join(bad)}", facts, "degraded"
        valid = [j.id for j in judged if j.verdict == VALID]
        if valid:
            return f"signed by {', '.join(valid)}", facts, "ok"
        return signatures.unread or ", ".join(f"{j.id} {j.verdict}" for j in judged) or "unsigned", facts, "skipped"

    def _loaded_levels(self, names: Sequence[str]) -> None:
        loaded: list[LoadedEntry] = []
        self._step("load", lambda: self._load(loaded))
        if "numerics" not in names or self.problems:
            return
        if self.subject.spec is None:
            why = "the model is not at hand; name it with --model to compare numbers"
            hint = "run it again with --model MODEL"
            for name in names[1:]:
                self._skip(name, why, UsageError("numbers cannot be compared", why, hint))
            return
        entry = loaded[0]
        self._step("numerics", lambda: check_numerics(entry, self.asked.token_counts))
        if "capture" in names and not self.problems:
            self._capture(entry)

    def _capture(self, entry: LoadedEntry) -> None:
        request = capture_request(entry, self.asked.settings, bench=self.asked.bench)
        if isinstance(request, Obstacle):
            self._skip("capture", request.why, request.problem)
        else:
            self._step("capture", lambda: check_capture(entry, request))

    def _skip(self, name: str, why: str, problem: PrecastError | None) -> None:
        """Leave a level out; that is a problem only for the level that was asked for."""
        self.stages.append(Stage(name, "skipped", 0.0, why))
        if problem is not None and name == self.asked.level:
            self.problems.append(problem)

    def _step(self, name: str, check: Callable[[], Finding]) -> None:
        self.asked.progress.start(name, 0)
        started = time.perf_counter()
        try:
            summary, facts, status = check()
        except PrecastError as error:
            self.problems.append(error)
            summary, facts, status = error.what, {}, "failed"
        self.stages.append(Stage(name, status, time.perf_counter() - started, summary, facts))
        self.asked.progress.finish(name)

    def _files(self) -> Finding:
        source = self.subject.source
        count = len({p.object for p in source.manifest.payloads})
        damage = source.damage()
        facts: dict[str, Json] = {"objects": count, "damaged": [item.json() for item in damage]}
        told = "; ".join(map(str, damage)) or f"{count} objects match"
        if damage and self.asked.strict:
            self.problems += _problems(self.subject.key, damage)
            return told, facts, "failed"
        return told, facts, "degraded" if damage else "ok"

    def _env(self) -> Finding:
        refuse_optimized_mode()
        manifest = self.subject.manifest
        differing = mismatches(manifest, os.environ)
        stamps = {k: v for wanted in manifest.stamps.values() for k, v in wanted.items()}
        facts: dict[str, Json] = {"stamps": dict(stamps), "differing": [m.json() for m in differing]}
        if differing:
            problem = incompatible(manifest, differing)
            self.problems.append(problem)
            return problem.what, facts, "failed"
        return " · ".join(f"{k} {v}" for k, v in stamps.items()), facts, "ok"

    def _load(self, loaded: list[LoadedEntry]) -> Finding:
        require_own(self.subject.source, self.asked.options)
        with self.clock.phase("import"):
            import torch  # noqa: F401 - its import is not part of the load

        started = time.perf_counter()
        with self.watch.section("load"), self.clock.phase("load"):
            pieces = load_pieces(self.subject.source)
        seconds = time.perf_counter() - started
        loaded.append(LoadedEntry(self.subject, pieces, self.watch, self.clock, self.asked.progress))
        counts = loaded[0].require_zero("load", processes=self._starts_processes())
        imported = [m for m in _HEAVY if m in sys.modules]
        summary = f"{len(pieces.callables)} payloads in {seconds * 1000:.0f} ms · {counted(counts)}"
        facts: dict[str, Json] = {"load_seconds": round(seconds, 6), "imported": list(imported), **counts}
        if self.degraded:
            facts["degraded"] = [[d.payload, d.reason] for d in self.degraded]
            return f"degraded: {len(self.degraded)} payloads came from the mega file · {summary}", facts, "degraded"
        return summary, facts, "ok"

    def _starts_processes(self) -> bool:
        """Tell whether a load may start processes: one of `aoti` payloads alone starts none."""
        return any(p.kind == "inductor" for p in self.subject.manifest.payloads)
