"""Verify's level `capture`: every planned graph is captured, computes what eager does, and serves random batches.

Replays are held to the tolerances of `aot.numerics` and never to equal bits: cuBLAS takes other algorithms inside of a
capture. What a batch wrote to the KV cache is compared as well as what the forward returned.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from precast.aot.batches import TrialBatch, fitting_shape, random_batch
from precast.aot.capture_request import CaptureRequest
from precast.aot.loaded import LoadedEntry, Model
from precast.aot.report import Finding
from precast.aot.spec import Json
from precast.aot.worker import brief
from precast.cache.sizes import format_size
from precast.capture.candidates import Candidates
from precast.capture.descriptor import BatchDescriptor
from precast.capture.limits import BatchLimits
from precast.capture.modes import CUDAGraphMode
from precast.capture.state import BatchShape
from precast.errors import GraphMemoryError, VerifyError

if TYPE_CHECKING:
    from precast.aot.bench import Bench
    from precast.aot.numerics import Comparison
    from precast.capture.backend import GraphBackend
    from precast.capture.manager import CaptureReport, GraphManager
    from precast.capture.state import GraphState

__all__ = ["check_capture"]

# The batches have histories of random numbers, which attention averages to little: rounding shows more there than in
# what a model makes of its own past (seen: 0.064 in bfloat16). A row that is wrong, and not only rounded otherwise, is
# wrong by about 1.
_SLACK = 2.0
# Of the random batches every tenth is compared with eager, if it is not long: a comparison needs copies in float64.
_COMPARED_EVERY, _COMPARED_TOKENS = 10, 2048
_CAPTURED = (CUDAGraphMode.PIECEWISE, CUDAGraphMode.FULL)


@dataclass(frozen=True, slots=True)
class _Trial:
    """A comparison, and the graph that it is about."""

    descriptor: BatchDescriptor
    result: "Comparison"


def check_capture(entry: LoadedEntry, request: CaptureRequest, backend: "GraphBackend | None" = None) -> Finding:
    """Capture every planned graph, compare each with eager, then send random batches through dispatch.

    Args:
        entry: The loaded entry; its subject knows the model, whose spec has `graph_state`.
        request: What to do.
        backend: What records graphs; by default CUDA graphs.

    Raises:
        NoGpuError: No GPU is usable, or the entry was compiled for the CPU.
        CaptureError: A graph cannot be captured, or there is too little memory for the buffers or the graphs.
        VerifyError: Numbers are wrong, something was compiled, or a graph is missing after the capture.
    """
    with entry.clock.phase("import"):
        from precast.aot.graphs import cuda_backend, graph_candidates, graph_manager

    model = entry.model()
    with entry.clock.phase("bind"):
        found = graph_candidates(
            model.bound,
            request.limits,
            mode=request.mode,
            sizes=request.sizes,
            largest=request.largest,
            interactivity=request.interactivity,
        )
        backend = backend or cuda_backend(model.bound)
    with entry.clock.phase("graph state"):
        state = _allocate(model, found.limits)
    with entry.clock.phase("bind"):
        manager = graph_manager(model.bound, state, found, backend)
    try:
        return _Check(entry, request, found, state, manager).run()
    finally:
        with entry.clock.phase("release graphs"):
            manager.release()


def _allocate(model: Model, limits: BatchLimits) -> "GraphState":
    import torch

    assert model.spec.graph_state is not None
    try:
        return model.spec.graph_state(model.module, limits)
    except torch.OutOfMemoryError as error:
        what = f"too little device memory for the buffers of {limits.max_num_seqs} requests"
        hint = "give lower limits: --max-num-seqs, --max-num-batched-tokens"
        raise GraphMemoryError(what, brief(error), hint) from error


class _Check:
    """One run of the level."""

    def __init__(
        self,
        entry: LoadedEntry,
        request: CaptureRequest,
        found: Candidates,
        state: "GraphState",
        manager: "GraphManager",
    ) -> None:
        self.entry = entry
        self.request = request
        self.found = found
        self.state = state
        self.manager = manager
        self.chance = Random(request.seed)  # noqa: S311 - for batches, not for secrets

    def run(self) -> Finding:
        plan = self.manager.plan()
        captured = self._capture()
        compared = self._compare_all()
        served = self._serve()
        bench = self._bench() if self.request.bench else None
        worst = max((t.result for t in compared), key=lambda r: r.ratio, default=None)
        facts: dict[str, Json] = {
            "mode": self.request.mode.name,
            "lowered": list(self.request.lowered),
            "sizes": list(self.found.sizes),
            "plan": {"graphs": plan.graphs, "seconds": round(plan.seconds, 4), "bytes": plan.size},
            "seconds": round(captured.seconds, 6),
            "bytes": captured.size,
            "modes": dict(_modes(captured)),
            "graphs": [_graph_facts(c) for c in captured.captured],
            "compared": len(compared),
            "max_relative_error": worst.error if worst else 0.0,
            "limit": worst.limit if worst else 0.0,
            "worst": worst.where if worst else "",
            "served": served,
        }
        if bench is not None:
            facts["bench"] = bench.json()
        return self._summary(captured, len(compared), worst, served), facts, "ok"

    def _summary(
        self, captured: "CaptureReport", compared: int, worst: "Comparison | None", served: dict[str, Json]
    ) -> str:
        parts = [
            f"{name} {facts['graphs']} graphs in {facts['seconds']:.2f} s, {format_size(facts['bytes'])}"
            for name, facts in _modes(captured).items()
        ]
        if worst is not None:
            parts.append(f"{compared} replays equal eager, largest relative error {worst.error:.1e}")
        runs = ", ".join(f"{served[name]} {name.upper()}" for name in ("full", "piecewise", "none"))
        parts.append(f"{served['batches']} random batches ({runs}): 0 compiles, 0 late captures")
        return " · ".join(parts)

    def _capture(self) -> "CaptureReport":
        with self.entry.clock.phase("capture"), self.entry.watch.section("capture"):
            report = self.manager.capture(self.entry.progress)
            for name, seconds in report.phases.items():
                self.entry.clock.give(_PHASES.get(name, f"capture {name}"), seconds)
        # Without the kernels of splitting ops in the entry, the warm-up is where they are compiled.
        self.entry.require_zero("capture", processes=True, own_ops=not self.entry.pieces.kernels)
        return report

    def _compare_all(self) -> list[_Trial]:
        graphs = self.found.capture_order
        self.entry.progress.start("compare graphs", len(graphs))
        trials = []
        with self.entry.clock.phase("compare graphs"):
            for at, descriptor in enumerate(graphs):
                started = time.perf_counter()
                shape = fitting_shape(descriptor, self.found.limits, self.chance)
                trials.append(_Trial(descriptor, self._compare(descriptor, shape, self.request.seed + at)))
                label = f"{descriptor.mode.name} {descriptor.num_tokens} tokens"
                self.entry.progress.advance("compare graphs", label, time.perf_counter() - started, 0)
        self.entry.progress.finish("compare graphs")
        self._require_right(trials)
        self._require_nothing_compiled("replay")
        return trials

    def _compare(self, descriptor: BatchDescriptor, shape: BatchShape, seed: int) -> "Comparison":
        """Run the same batch eagerly without padded rows and by its graph, and compare rows and cache."""
        import torch

        from precast.aot.numerics import compare_values, named_leaves

        tokens = sum(shape.query_lens)
        with torch.no_grad(), self.state.use():
            self.state.fill(shape, seed)
            result = self.entry.eager(*self.state.inputs(tokens))
            expected, expected_cache = tuple(named_leaves(result, "result")), tuple(self._written(shape))
            self.state.fill(shape, seed)
            with self.entry.watch.section("replay"):
                result = self.manager.run(descriptor)
            found, found_cache = tuple(named_leaves(result, "result")), tuple(self._written(shape))
        returned = compare_values(tokens, expected, _without_padding(expected, found))
        written = compare_values(tokens, expected_cache, found_cache)
        worse = max(returned, written, key=lambda c: (bool(c.problem), c.ratio))
        return replace(worse, limit=_SLACK * worse.limit)

    def _written(self, shape: BatchShape) -> Iterator[tuple[str, Any]]:
        """Yield what the batch wrote; the first two dims, such as layer and token, become rows of a comparison."""
        for at, tensor in enumerate(self.state.written(shape)):
            yield f"cache[{at}]", tensor.flatten(0, 1) if tensor.dim() > 2 else tensor

    def _require_right(self, trials: Sequence[_Trial]) -> None:
        bad = [t for t in trials if not t.result.ok]
        if not bad:
            return
        named = ", ".join(f"{t.descriptor.mode.name} {t.descriptor.num_tokens}" for t in bad[:8])
        raise VerifyError(
            f"{len(bad)} of {len(trials)} compared steps compute wrong numbers: {named}"
            + (", ..." if len(bad) > 8 else ""),
            bad[0].result.told(),
            "capture with mode NONE until it is known why, and report the model",
            entry=self.entry.subject.key,
        )

    def _serve(self) -> dict[str, Json]:
        """Send random batches through dispatch as a server would; compare some of them."""
        before = self.manager.counts()
        trials = []
        self.entry.progress.start("random batches", self.request.batches)
        with self.entry.clock.phase("random batches"):
            for at in range(self.request.batches):
                started = time.perf_counter()
                batch = random_batch(self.found.limits, self.chance)
                compares = at % _COMPARED_EVERY == 0 and batch.num_tokens <= _COMPARED_TOKENS
                trials += self._step(batch, self.request.seed + at, compares=compares)
                label = f"{batch.num_tokens} tokens"
                self.entry.progress.advance("random batches", label, time.perf_counter() - started, 0)
            self._wait()
        self.entry.progress.finish("random batches")
        counts = self._require_nothing_compiled("replay")
        after = self.manager.counts()
        missing = after.late_captures + after.uncaptured
        if missing:
            raise VerifyError(
                f"{after.late_captures} graphs were captured late, and {after.uncaptured} were missing",
                "every graph that dispatch names must be there when the capture phase ends",
                "report the model",
                entry=self.entry.subject.key,
            )
        self._require_right(trials)
        return {
            "batches": self.request.batches,
            "seed": self.request.seed,
            "compared": len(trials),
            "full": after.full - before.full,
            "piecewise": after.piecewise - before.piecewise,
            "none": after.none - before.none,
            "without_graph": {str(k): v for k, v in self.manager.dispatcher.counts().misses.items()},
            "late_captures": after.late_captures,
            "uncaptured": after.uncaptured,
            **counts,
        }

    def _step(self, batch: TrialBatch, seed: int, *, compares: bool) -> list[_Trial]:
        import torch

        asked = batch.asked()
        descriptor = self.manager.dispatch(
            asked.num_reqs,
            asked.num_tokens,
            asked.uniform_token_count,
            max_query_len=asked.max_query_len,
        )
        shape = batch.shape(descriptor)
        if compares:
            return [_Trial(descriptor, self._compare(descriptor, shape, seed))]
        with torch.no_grad(), self.state.use():
            self.state.fill(shape, seed)
            with self.entry.watch.section("replay"):
                self.manager.run(descriptor)
        return []

    def _bench(self) -> "Bench":
        from precast.aot.bench import run_bench

        with self.entry.clock.phase("bench"):
            return run_bench(self.entry, self.manager, self.state, self.found)

    def _require_nothing_compiled(self, section: str) -> dict[str, Json]:
        return self.entry.require_zero(section, processes=True)

    def _wait(self) -> None:
        import torch

        if self.entry.device == "cuda":
            torch.cuda.synchronize()


_PHASES = {"warm-up": "warm-up", "piecewise": "capture PIECEWISE", "full": "capture FULL"}


def _without_padding(expected: Sequence[tuple[str, Any]], found: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Cut tensors of padded rows down to the rows that eager computed."""
    import torch

    def cut(like: Any, value: Any) -> Any:
        both = isinstance(like, torch.Tensor) and isinstance(value, torch.Tensor)
        if not both or like.dim() != value.dim():
            return value
        return value[tuple(slice(size) for size in like.shape)]

    rows = [(path, cut(like, value)) for (_, like), (path, value) in zip(expected, found, strict=False)]
    return [*rows, *found[len(rows) :]]


def _modes(captured: "CaptureReport") -> dict[str, dict[str, Any]]:
    modes = {}
    for mode in _CAPTURED:
        of = [c for c in captured.captured if c.descriptor.mode is mode]
        if of:
            modes[mode.name] = {
                "sizes": len(of),
                "graphs": captured.graphs(mode),
                "seconds": round(sum(c.seconds for c in of), 6),
                "bytes": captured.bytes_of(mode),
            }
    return modes


def _graph_facts(captured: Any) -> dict[str, Json]:
    descriptor = captured.descriptor
    return {
        "mode": descriptor.mode.name,
        "num_tokens": descriptor.num_tokens,
        "num_reqs": descriptor.num_reqs,
        "uniform_token_count": descriptor.uniform_token_count,
        "graphs": captured.graphs,
        "seconds": round(captured.seconds, 6),
        "bytes": captured.size,
    }
