"""Build an entry: compile the pieces of a plan, draft the manifest, publish both."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from precast.aot.progress import Progress
from precast.aot.reference import ModelReference, SpecReference
from precast.aot.request import CompileInput
from precast.aot.settings import Settings
from precast.aot.spec import Json
from precast.aot.stamps import payload_stamps
from precast.cache.environment import ignored_variables
from precast.cache.manifest import BuildRecord, Manifest, ModelRecord
from precast.cache.masking import sealed_value
from precast.cache.store import Store

if TYPE_CHECKING:
    from precast.aot.planning import CompilePlan

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

    reference: ModelReference | SpecReference
    overrides: Mapping[str, Json]
    settings: Settings
    input: CompileInput
    store: Store
    progress: Progress
    started: float

    def build(self, plan: "CompilePlan") -> Manifest:
        """Compile and publish.

        Raises:
            CompileError: A piece could not be compiled; nothing is published.
            StoreAccessError: The store cannot be written; nothing of the entry is visible.
        """
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
