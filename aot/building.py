"""Build an entry: compile the pieces of a plan, draft the manifest, publish both."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from precast.aot.graph_facts import graph_facts
from precast.aot.kernels import KIND, pack_kernels, record_kernels
from precast.aot.payloads import payload_kind
from precast.aot.progress import Progress
from precast.aot.request import CompileInput
from precast.aot.settings import Settings, settle_graph_mode
from precast.aot.spec import Json
from precast.aot.stamps import payload_stamps
from precast.cache.environment import ignored_variables
from precast.cache.manifest import BuildRecord, Manifest, ModelRecord
from precast.cache.masking import sealed_value
from precast.cache.store import Store

if TYPE_CHECKING:
    from precast.aot.compile import Compiled
    from precast.aot.planning import CompilePlan, Reference

__all__ = ["Builder"]


@dataclass(frozen=True, slots=True)
class Builder:
    """What a build needs beside its plan.

    Attributes:
        reference: The model as it was named.
        overrides: Values for the model's config.
        settings: Settings as resolved.
        input: The request and its target.
        store: Where the entry goes.
        progress: Is told what goes on.
        started: Value of `time.perf_counter` when the work began.
    """

    reference: "Reference"
    overrides: Mapping[str, Json]
    settings: Settings
    input: CompileInput
    store: Store
    progress: Progress
    started: float

    def build(self, plan: "CompilePlan") -> Manifest:
        """Compile and publish.

        Raises:
            IncompatibleError: What the payload is built with is not here.
            CompileError: A piece could not be compiled; nothing is published.
            ConfigValueError: FULL graphs were asked for, and the model's attention can be captured for nothing.
            StoreAccessError: The store cannot be written; nothing of the entry is visible.
        """
        from precast.aot.compile import CompileRequest, compile_pieces
        from precast.aot.publish import publish

        settings = self._settled(plan)
        payload_kind(self.settings.payload).require_tools(self.input.target)
        request = CompileRequest(
            kind=self.settings.payload,
            target=self.input.target,
            options=self.settings.inductor_options(),
            modules=plan.modules,
            paths=self.reference.import_path,
            jobs=self.settings.jobs,
        )
        compiled = compile_pieces(plan.split.pieces, self.settings.ranges(), request, self.progress)
        kernels = self._kernels(plan)
        draft = self._draft(plan, settings, self._stamps(compiled, kernels), time.perf_counter() - self.started)
        return publish(self.store, draft, compiled, plan.split.plan, plan.sources, kernels)

    def _settled(self, plan: "CompilePlan") -> Settings:
        """Lower the graph mode by what the model allows: the manifest tells it, and the code does not depend on it."""
        return settle_graph_mode(self.settings, graph_facts(plan.spec, plan.split.plan, self.settings.splitting_ops))

    def _kernels(self, plan: "CompilePlan") -> "Compiled | None":
        """Compile the Triton kernels that the splitting ops launch themselves, where the target is a GPU."""
        if self.input.target.device == "cpu":
            return None
        from precast.aot.compile import Compiled

        started = time.perf_counter()
        found = record_kernels(plan.spec, plan.calls, self.input.target)
        if not found:
            return None
        ranges = self.settings.ranges()
        span = (min(low for low, _ in ranges), max(high for _, high in ranges))
        return Compiled(KIND, span, pack_kernels(found), time.perf_counter() - started)

    def _stamps(self, compiled: "Sequence[Compiled]", kernels: "Compiled | None") -> dict[str, dict[str, str]]:
        """Say what the payloads need of a node, some of which only their bytes tell; the pieces' kind comes first."""
        kind, target = payload_kind(self.settings.payload), self.input.target
        stamps = {kind.name: payload_stamps(kind.name, target, [kind.needs(made.data) for made in compiled])}
        return {**stamps, KIND: payload_stamps(KIND, target)} if kernels else stamps

    def _draft(
        self, plan: "CompilePlan", settings: Settings, stamps: dict[str, dict[str, str]], seconds: float
    ) -> Manifest:
        from precast import __version__
        from precast.splitter.stitch import stitch

        config = {**dict(plan.spec.config), **({"overrides": dict(self.overrides)} if self.overrides else {})}
        return Manifest(
            key=plan.key,
            model=ModelRecord(plan.spec.name, self.reference.text, {k: sealed_value(k, v) for k, v in config.items()}),
            factors=plan.factors,
            settings=settings.record,
            target=self.input.target.to_json(),
            stamps=stamps,
            plan=plan.split.plan.to_json(),
            code=stitch(plan.split.plan).source,
            payloads=(),
            constants=(),
            build=BuildRecord(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), seconds, __version__),
            ignored=ignored_variables(os.environ),
        )
