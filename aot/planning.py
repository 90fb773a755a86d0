"""Plan a compile: import, build and trace the model once, split it, and form its key. Nothing is compiled or written.

The plan is the one object that a dry run shows and a real run executes.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from precast.aot.assumptions import check_assumptions
from precast.aot.code import SCRIPTS, model_code
from precast.aot.described import compiling_for
from precast.aot.kernels import OpCall, op_calls
from precast.aot.observe import Observation, observe, variables_named_in
from precast.aot.progress import Progress
from precast.aot.reference import ModelReference, SpecReference
from precast.aot.request import CompileInput
from precast.aot.spec import Json, ModelSpec
from precast.aot.trace import TracedGraph, build_for_tracing, trace
from precast.aot.traces import Traces
from precast.cache.canonical import digest
from precast.cache.environment import rule_for_variable, variable_factor
from precast.cache.factors import Factor, entry_key
from precast.cache.masking import sealed_value
from precast.splitter.split import Split, split

if TYPE_CHECKING:
    from torch import nn

    from precast.aot.instance import InstanceReference

__all__ = ["BuiltModel", "CompilePlan", "Reference", "TracedModel", "plan_compile"]

Reference: TypeAlias = "ModelReference | SpecReference | InstanceReference"


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model as its constructor made it.

    Attributes:
        seen: What was read and imported meanwhile; what is imported already cannot be seen again.
        spec: The model.
        module: The module, with parameters that take no memory.
    """

    seen: Observation
    spec: ModelSpec
    module: "nn.Module"


@dataclass(frozen=True, slots=True)
class TracedModel:
    """A model as it was traced and split: what plans for several targets have in common.

    Attributes:
        spec: The model.
        split: The split graph.
        factors: What the trace adds to the factors of a request.
        sources: Text of the model's own modules, by name.
        modules: Modules that register custom ops, for the compile processes.
        calls: The calls of splitting ops, for the kernels that these launch themselves.
        asks_device: Whether it may be another one for another GPU.
    """

    spec: ModelSpec
    split: Split
    factors: tuple[Factor, ...]
    sources: Mapping[str, str]
    modules: tuple[str, ...]
    calls: tuple[OpCall, ...]
    asks_device: bool


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """A compile that can be carried out.

    Attributes:
        key: Key of the entry that it makes.
        spec: The model.
        split: The split graph.
        factors: All factors of the key.
        sources: Text of the model's own modules, by name.
        modules: Modules that register custom ops, for the compile processes.
        calls: The calls of splitting ops, for the kernels that these launch themselves.
    """

    key: str
    spec: ModelSpec
    split: Split
    factors: tuple[Factor, ...]
    sources: Mapping[str, str]
    modules: tuple[str, ...]
    calls: tuple[OpCall, ...]


def plan_compile(
    reference: Reference,
    overrides: Mapping[str, Json],
    given: CompileInput,
    search_path: Iterable[str],
    progress: Progress,
    traces: Traces,
) -> CompilePlan:
    """Trace and split a model, and form its key.

    Args:
        reference: The model.
        overrides: Values for its config.
        given: The factors known before the import, settings and target.
        search_path: Folders under which data files are named.
        progress: Is told what goes on.
        traces: What was traced of the model for other targets, and is used again.

    Raises:
        PrecastError: The model cannot be imported, built, traced or split; see `precast.errors`.
    """
    progress.start("trace", 0)
    built = traces.once(lambda: _built(reference, overrides))
    model = traces.of(given, lambda: _traced(reference, built, given, search_path))
    progress.finish("trace")
    unique = tuple({f.label: f for f in (*given.request.factors, *model.factors)}.values())
    return CompilePlan(entry_key(unique), model.spec, model.split, unique, model.sources, model.modules, model.calls)


def _built(reference: Reference, overrides: Mapping[str, Json]) -> BuiltModel:
    if not isinstance(reference, (ModelReference, SpecReference)):
        return reference.built()  # whatever was read while it was built is in it now
    with observe([reference.module.partition(".")[0]]) as seen:
        spec = reference.spec(overrides)
        return BuiltModel(seen, spec, build_for_tracing(spec))


def _traced(
    reference: Reference,
    built: BuiltModel,
    given: CompileInput,
    search_path: Iterable[str],
) -> TracedModel:
    device, settings, seen, spec = given.target.device, given.settings, built.seen, built.spec
    with compiling_for(given.target):
        traced = trace(spec, built.module, device)
    check_assumptions(traced.graph_module.graph, settings.ranges())
    ops = spec.splitting_ops if settings.splitting_ops is None else settings.splitting_ops
    made = split(traced.graph_module, traced.inputs, traced.arguments, traced.result, ops)
    roots = _roots(spec, reference)
    code = model_code(roots, traced.traced_files, seen.imported_before)
    factors = (
        *_spec_factors(spec, reference),
        *code.factors,
        *_observed(seen, traced, code.sources, search_path),
        *_graph_factors(made, traced),
    )
    modules = tuple(r for r in roots if r not in SCRIPTS)
    calls = op_calls(traced.graph_module.graph, ops)
    return TracedModel(spec, made, factors, code.sources, modules, calls, traced.asks_device)


def _spec_factors(spec: ModelSpec, reference: Reference) -> tuple[Factor, ...]:
    """Return the call signature, and a spec's own config where no request factor stands for it."""
    own = {} if reference.quick else spec.config
    config = [Factor("config", n, sealed_value(n, v)) for n, v in ((f"model.spec.{k}", v) for k, v in own.items())]
    inputs = [Factor("config", f"signature.{i.name}", [i.dtype, list(i.shape)]) for i in spec.inputs]
    order = Factor("config", "signature.order", [i.name for i in spec.inputs])
    return (*config, *inputs, order)


def _graph_factors(made: Split, traced: TracedGraph) -> tuple[Factor, ...]:
    """Digest the plan, which names unique pieces by structural key, so every baked number is covered (W8, W11).

    Buffers are bound again at load and cannot make a loaded artifact wrong; they count so that two instances which
    differ in one never share an artifact.
    """
    constants = [Factor("graph", f"constant:{name}", value) for name, value in traced.constants.items()]
    return (Factor("graph", "graph", digest(made.plan.to_json())), *constants)


def _observed(
    seen: Observation, traced: TracedGraph, sources: Mapping[str, str], search_path: Iterable[str]
) -> tuple[Factor, ...]:
    """Turn what the model's code read into factors; a variable of the register is one already."""
    unseen = {name: text for name, text in sources.items() if name in seen.imported_before}
    by_name = variables_named_in(unseen) | (variables_named_in(sources) & traced.environment_strings)
    values = {name: os.environ.get(name) for name in by_name} | seen.variables
    set_ones = {name: value for name, value in values.items() if value is not None}
    variables = [variable_factor(name, set_ones) for name in sorted(values) if not _counted(name)]
    folders = [Path(p or ".").resolve() for p in search_path]
    files = [Factor("code", f"data:{_data_name(f, folders)}", digest) for f, digest in sorted(seen.files.items())]
    return (*variables, *files)


def _counted(name: str) -> bool:
    """Tell whether the environment's register makes a factor of a variable that is set."""
    rule = rule_for_variable(name)
    return rule is not None and rule[1] and name in os.environ


def _data_name(file: Path, folders: Iterable[Path]) -> str:
    """Name a data file below a folder of the search path, or else by its last name: such a one is never found again."""
    place = file.resolve()
    for folder in folders:
        if place.is_relative_to(folder):
            return place.relative_to(folder).as_posix()
    return file.name


def _roots(spec: ModelSpec, reference: Reference) -> tuple[str, ...]:
    functions = (spec.build, spec.sample, spec.load_weights)
    names = (getattr(f, "__module__", None) for f in functions)
    return tuple(dict.fromkeys(n for n in (*reference.modules, *names) if n))
