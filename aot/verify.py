"""Verify an entry in this process: files, stamps, load, numbers, each level only when the one before it passed.

`load` and the runs after it are watched from outside the library: no Dynamo frame, no Inductor or Triton compile and no
compiler process may be seen, and a load of `aoti` payloads may start no process at all. What the eager model itself
compiles (the Triton kernels of its own ops) is counted apart.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precast.aot.load import LoadedPieces, bind_module, load_pieces
from precast.aot.progress import Progress, Silent
from precast.aot.settings import Settings
from precast.aot.sources import Degradation, MegaSource, names_file, require_own
from precast.aot.spec import Json, ModelSpec
from precast.aot.stamps import incompatible, mismatches, refuse_optimized_mode
from precast.aot.subject import Subject, file_subject, find_subject, with_model
from precast.aot.torch_seams.watch import CompileWatch
from precast.cache.damage import Damage
from precast.cache.options import StoreOptions, open_store, signed_options
from precast.cache.remotes import open_tier
from precast.cache.signatures import VALID, faults, judge, require_signature
from precast.cache.signing_keys import PublicKey, load_public_keys
from precast.cache.store import Store
from precast.errors import (
    CorruptError,
    ExitCode,
    FormatError,
    PrecastError,
    SignatureError,
    UsageError,
    VerifyError,
)

if TYPE_CHECKING:
    from precast.aot.numerics import Comparison

__all__ = ["LEVELS", "Stage", "VerifyReport", "verify"]

LEVELS = ("files", "env", "load", "numerics")
_HEAVY = ("torch._dynamo", "torch._inductor", "sympy", "triton")


@dataclass(frozen=True, slots=True)
class Stage:
    """One level of a verify.

    Attributes:
        name: The level.
        status: `ok`, `failed`, `degraded` or `skipped`.
        seconds: Wall time.
        summary: One line for people.
        facts: The same for machines.
    """

    name: str
    status: str
    seconds: float
    summary: str
    facts: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome.

    Attributes:
        key: The entry's key.
        level: The highest level that ran.
        stages: What was checked, in order.
        problems: Every failure.
    """

    key: str
    level: str
    stages: tuple[Stage, ...]
    problems: tuple[PrecastError, ...]

    @property
    def ok(self) -> bool:
        """Tell whether everything that was asked for passed."""
        return not self.problems and all(s.status in ("ok", "skipped") for s in self.stages)

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code of the first problem; a degraded load is a partial success."""
        if self.problems:
            return self.problems[0].exit_code
        return ExitCode.OK if self.ok else ExitCode.PARTIAL


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
    progress: Progress | None = None,
) -> VerifyReport:
    """Verify one entry.

    Args:
        what: A key or prefix, a mega file, or MODEL; a key finds its model again when it can be found.
        overrides: Values for the model's config, with MODEL.
        settings: Settings, with MODEL.
        cache_dir: The cache root.
        level: `files`, `env`, `load`, `numerics`, or `auto` for the highest possible; who signed the entry is looked
            at before any of them.
        strict: Fail for a missing or damaged object; else its copy in the mega file is used and reported.
        token_counts: Token counts to compare at; 1, 2, a prime, a power of two and the largest by default.
        model: MODEL to compare numbers with, where `what` is a file or a key: neither says where its model lies.
        options: How the store is opened; by default as the environment says.
        progress: Is told what goes on.

    Raises:
        NoEntryError: There is no such entry; nothing is ever compiled from here.
        UsageError: An unknown level, or a file of a public key that cannot be used.
    """
    refuse_optimized_mode()
    if level not in (*LEVELS, "auto"):
        raise UsageError(f"unknown level `{level}`", f"levels: {', '.join(LEVELS)}, auto", "choose one of these")
    options = signed_options(options, None)
    keys = load_public_keys(options.required_signatures)
    degraded: list[Degradation] = []
    if names_file(os.fspath(what)):
        subject = with_model(file_subject(Path(what)), model, overrides or {})
        checks = _Verify(subject, strict, token_counts, progress or Silent(), degraded, keys, options)
        return checks.run(level)
    store, options = open_store(cache_dir, options)
    try:
        subject = find_subject(
            os.fspath(what), dict(overrides or {}), settings, store, trusts_hints=not keys, strict=strict,
            on_degraded=degraded.append, tier=open_tier(store, options, (progress or Silent()).warning),
        )  # fmt: skip
    except CorruptError as error:
        return _without_manifest(store, error)
    subject = with_model(subject, model, overrides or {})
    with store.hold(subject.key):
        return _Verify(subject, strict, token_counts, progress or Silent(), degraded, keys, options).run(level)


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

    def __init__(
        self,
        subject: Subject,
        strict: bool,
        token_counts: Sequence[int] | None,
        progress: Progress,
        degraded: list[Degradation],
        keys: Sequence[PublicKey],
        options: StoreOptions,
    ) -> None:
        self.subject = subject
        self.strict = strict
        self.token_counts = token_counts
        self.progress = progress
        self.degraded = degraded
        self.keys = keys
        self.options = options
        self.stages: list[Stage] = []
        self.problems: list[PrecastError] = []
        self.watch = CompileWatch()

    def run(self, level: str) -> VerifyReport:
        wanted = LEVELS if level == "auto" else LEVELS[: LEVELS.index(level) + 1]
        steps = {"files": self._files, "env": self._env}
        self._step("signature", self._signature)
        if any(isinstance(problem, SignatureError) for problem in self.problems):
            return self._report()
        for name in wanted[:2]:
            self._step(name, steps[name])
        if len(wanted) > 2 and not self.problems:
            with self.watch:
                self._loaded_levels(wanted[2:], required=level == "numerics")
        self.subject.source.touch()
        return self._report()

    def _report(self) -> VerifyReport:
        ran = [s.name for s in self.stages if s.status != "skipped"]
        return VerifyReport(self.subject.key, ran[-1], tuple(self.stages), tuple(self.problems))

    def _signature(self) -> tuple[str, dict[str, Json], str]:
        """Look at who signed the entry. Damage to signatures counts as damage, whether or not any are asked for."""
        signatures = self.subject.source.signatures()
        if self.keys:
            require_signature(self.subject.manifest, signatures, self.keys)
        judged = judge(self.subject.manifest, signatures)
        facts: dict[str, Json] = {
            "signatures": [{"id": j.id, "algorithm": j.algorithm, "verdict": j.verdict} for j in judged],
            "required": [key.id for key in self.keys],
        }
        member = "the header" if isinstance(self.subject.source, MegaSource) else "signatures.json"
        bad = [f"{member}: {fault}" for fault in faults(self.subject.manifest, signatures)]
        if bad and self.strict:
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

    def _loaded_levels(self, names: Sequence[str], *, required: bool) -> None:
        loaded: list[LoadedPieces] = []
        self._step("load", lambda: self._load(loaded))
        if "numerics" not in names or self.problems:
            return
        if self.subject.spec is None:
            why = "the model is not at hand; name it with --model to compare numbers"
            self.stages.append(Stage("numerics", "skipped", 0.0, why))
            if required:
                self.problems.append(UsageError("numbers cannot be compared", why, "run it again with --model MODEL"))
            return
        self._step("numerics", lambda: self._numerics(loaded[0]))

    def _step(self, name: str, check: Callable[[], tuple[str, dict[str, Json], str]]) -> None:
        self.progress.start(name, 0)
        started = time.perf_counter()
        try:
            summary, facts, status = check()
        except PrecastError as error:
            self.problems.append(error)
            summary, facts, status = error.what, {}, "failed"
        self.stages.append(Stage(name, status, time.perf_counter() - started, summary, facts))
        self.progress.finish(name)

    def _files(self) -> tuple[str, dict[str, Json], str]:
        source = self.subject.source
        count = len({p.object for p in source.manifest.payloads})
        damage = source.damage()
        facts: dict[str, Json] = {"objects": count, "damaged": [item.json() for item in damage]}
        told = "; ".join(map(str, damage)) or f"{count} objects match"
        if damage and self.strict:
            self.problems += _problems(self.subject.key, damage)
            return told, facts, "failed"
        return told, facts, "degraded" if damage else "ok"

    def _env(self) -> tuple[str, dict[str, Json], str]:
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

    def _load(self, loaded: list[LoadedPieces]) -> tuple[str, dict[str, Json], str]:
        require_own(self.subject.source, self.options)
        import torch  # noqa: F401 - its import is not part of the load

        started = time.perf_counter()
        with self.watch.section("load"):
            loaded.append(load_pieces(self.subject.source))
        seconds = time.perf_counter() - started
        counts = self._require_zero("load", processes=self._starts_processes())
        imported = [m for m in _HEAVY if m in sys.modules]
        summary = f"{len(loaded[0].callables)} payloads in {seconds * 1000:.0f} ms · {_zeros(counts)}"
        facts: dict[str, Json] = {"load_seconds": round(seconds, 6), "imported": list(imported), **counts}
        if self.degraded:
            facts["degraded"] = [[d.payload, d.reason] for d in self.degraded]
            return f"degraded: {len(self.degraded)} payloads came from the mega file · {summary}", facts, "degraded"
        return summary, facts, "ok"

    def _numerics(self, loaded: LoadedPieces) -> tuple[str, dict[str, Json], str]:
        from precast.aot.numerics import build_real, choose_token_counts

        assert self.subject.spec is not None
        spec = self.subject.spec()
        with self.watch.section("eager"):
            module = build_real(spec, str(self.subject.manifest.target["device"]))
        run = bind_module(loaded, module)
        counts = tuple(self.token_counts or choose_token_counts(loaded.ranges))
        outside = [n for n in counts if not any(low <= n <= high for low, high in loaded.ranges)]
        if outside:
            raise UsageError(
                f"{outside[0]} tokens are outside the entry's compile ranges",
                ", ".join(f"{low}-{high}" for low, high in loaded.ranges),
                "choose token counts inside them",
            )
        self.progress.start("compare", len(counts))
        results = list(self._compare_all(spec, module, run, counts))
        self.progress.finish("compare")
        return self._judge(results)

    def _compare_all(
        self, spec: ModelSpec, module: Any, run: Callable[..., Any], counts: Sequence[int]
    ) -> "Iterator[Comparison]":
        from precast.aot.numerics import compare

        def eager(*inputs: Any) -> Any:
            with self.watch.section("eager"):
                return module(*inputs)

        for tokens in counts:
            started = time.perf_counter()
            with self.watch.section("run"):
                result = compare(spec, module, run, tokens, eager)
            self.progress.advance("compare", f"{tokens} tokens", time.perf_counter() - started, 0)
            yield result

    def _judge(self, results: "Sequence[Comparison]") -> tuple[str, dict[str, Json], str]:
        counts = self._require_zero("run", processes=True)
        own = self.watch.counts("eager")
        worst = max(results, key=lambda r: r.ratio)
        bad = [r for r in results if not r.ok]
        if bad:
            raise VerifyError(
                f"the numbers are wrong at {', '.join(str(r.tokens) for r in bad)} tokens",
                bad[0].problem
                or f"{bad[0].where}: largest relative error of a row {bad[0].error:.2e}, limit {bad[0].limit:.0e}",
                "run `precast precompile --force`, and report the model if it stays wrong",
                entry=self.subject.key,
            )
        tokens = ", ".join(str(r.tokens) for r in results)
        facts: dict[str, Json] = {
            "tokens": [r.tokens for r in results],
            "max_abs": max(r.max_abs for r in results),
            "max_relative_error": worst.error,
            "limit": worst.limit,
            "worst": worst.where,
            **counts,
            "eager_model": dict(own),
        }
        summary = (
            f"{tokens} tokens · largest relative error {worst.error:.1e} (limit {worst.limit:.0e}) · {_zeros(counts)}"
        )
        if any(own.values()):
            summary += f" · the model's own ops, apart: {_zeros(own)}"
        return summary, facts, "ok"

    def _starts_processes(self) -> bool:
        """Tell whether a load may start processes: one of `aoti` payloads alone starts none."""
        return any(p.kind == "inductor" for p in self.subject.manifest.payloads)

    def _require_zero(self, section: str, *, processes: bool) -> dict[str, Json]:
        """Refuse compile work in a section, and other processes too where it may start none."""
        counts = self.watch.counts(section)
        if self.watch.missing:
            raise VerifyError(
                "this torch cannot be watched",
                f"it lacks {', '.join(self.watch.missing)}",
                "use a version of torch that precast knows",
            )
        compiled = any(count for kind, count in counts.items() if kind != "processes")
        if compiled or (counts["processes"] and not processes):
            seen = [d for d in self.watch.details if d.startswith(f"{section}:")]
            what = "something was traced or compiled" if compiled else "a process was started"
            raise VerifyError(
                f"{what}: {_zeros(counts)}",
                "; ".join(seen[:4]),
                "run `precast precompile --force`",
                entry=self.subject.key,
            )
        return dict(counts)


def _zeros(counts: Mapping[str, Any]) -> str:
    return " · ".join(f"{name.replace('_', ' ')} {value}" for name, value in counts.items())
