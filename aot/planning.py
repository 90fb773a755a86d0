"""Plan a compile: import, build and trace the model once, split it, and form its key. Nothing is compiled or written.

The plan is the one object that a dry run shows and a real run executes.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from precast.aot.assumptions import check_assumptions
from precast.aot.code import model_code
from precast.aot.described import compiling_for
from precast.aot.kernels import OpCall, op_calls
from precast.aot.observe import Observation, observe, variables_named_in
from precast.aot.progress import Progress
from precast.aot.reference import ModelReference, SpecReference
from precast.aot.request import CompileInput
from precast.aot.spec import Json, ModelSpec
from precast.aot.trace import TracedGraph, build_for_tracing, trace
from precast.cache.canonical import digest
from precast.cache.environment import rule_for_variable, variable_factor
from precast.cache.factors import Factor, entry_key
from precast.cache.masking import sealed_value
from precast.splitter.split import Split, split

__all__ = ["CompilePlan", "Reference", "plan_compile"]

Reference: TypeAlias = ModelReference | SpecReference


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
) -> CompilePlan:
    """Trace and split a model, and form its key.

    Args:
        reference: The model.
        overrides: Values for its config.
        given: The factors known before the import, settings and target.
        search_path: Folders under which data files are named.
        progress: Is told what goes on.

    Raises:
        PrecastError: The model cannot be imported, built, traced or split; see `precast.errors`.
    """
    progress.start("trace", 0)
    device, settings = given.target.device, given.settings
    with observe([reference.module.partition(".")[0]]) as seen:
        spec = reference.spec(overrides)
        module = build_for_tracing(spec)
    with compiling_for(given.target):
        traced = trace(spec, module, device)
    check_assumptions(traced.graph_module.graph, settings.ranges())
    ops = spec.splitting_ops if settings.splitting_ops is None else settings.splitting_ops
    made = split(traced.graph_module, traced.inputs, traced.arguments, traced.result, ops)
    roots = _roots(spec, reference)
    code = model_code(roots, traced.traced_files, seen.imported_before)
    factors = (
        *given.request.factors,
        *_spec_factors(spec, reference),
        *code.factors,
        *_observed(seen, traced, code.sources, search_path),
        *_graph_factors(made, traced),
    )
    progress.finish("trace")
    unique = tuple({f.label: f for f in factors}.values())
    modules = tuple(r for r in roots if r != "__main__")
    calls = op_calls(traced.graph_module.graph, ops)
    return CompilePlan(entry_key(unique), spec, made, unique, code.sources, modules, calls)


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
    return tuple(dict.fromkeys(n for n in (reference.module, *names) if n))
