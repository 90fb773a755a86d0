"""Settings: one frozen value for each choice, and the record of where it came from and what lowered it.

Order: flag, environment, file, level, default. Only what changes generated code goes into the key; every field is
either in `KEY_FIELDS` or in `EXCLUDED` with a reason, and a test holds that.
"""

import dataclasses
import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from precast.aot.capture_settings import check_capture, planned_sizes
from precast.aot.graph_facts import GraphFacts
from precast.aot.levels import DEFAULT_LEVEL, LEVELS, RULES, Case
from precast.aot.payloads.base import TIMED
from precast.aot.payloads.inductor import KEEP
from precast.aot.setting_values import parse_value
from precast.aot.target import device_of
from precast.cache.manifest import SettingRecord
from precast.capture.ranges import CAPTURE_SIZES, compile_sizes
from precast.errors import ConfigKeyError, ConfigValueError, UsageError

__all__ = [
    "EXCLUDED",
    "KEY_FIELDS",
    "SETTING_NAMES",
    "Settings",
    "resolve_settings",
    "settle_graph_mode",
    "settle_settings",
]

OPEN = ""  # left for the level to fill

KEY_FIELDS = (
    "payload",
    "max_num_batched_tokens",
    "compile_range_endpoints",
    "compile_sizes",
    "splitting_ops",
    "inductor_config",
)

EXCLUDED: Mapping[str, str] = MappingProxyType(
    {
        "optimization_level": "what the level decides is in the key, the level itself is not",
        "compile": "without it there is no entry",
        "cudagraph_mode": "graphs are captured from the same code whatever the mode",
        "target": "the target's own description is a compiler factor",
        "tune": "it sets Inductor options, which are a compiler factor",
        "jobs": "how many processes compile does not change what they make",
        "enforce_eager": "without compiled code there is no entry",
        "cudagraph_capture_sizes": "graphs are captured from the same code at any size (W1)",
        "max_cudagraph_capture_size": "graphs are captured from the same code at any size (W1)",
        "interactivity": "it adds capture sizes, and graphs are captured from the same code at any size (W1)",
        "max_num_seqs": "the code is for token counts; how many requests they belong to only attention knows",
        "drafts": "it decides which graphs are captured, from the same code",
        "draft_schedule": "it decides which graphs are captured, from the same code",
        "adaptive_verification": "it decides which graphs are captured, from the same code",
        "max_loras": "it decides which graphs are captured, from the same code",
        "specialize_lora": "it decides which graphs are captured, from the same code",
        "specialize_active_lora": "it decides which graphs are captured, from the same code",
        "num_ubatches": "it decides which graphs are captured, from the same code",
        "ubatch_decode_tokens": "it decides which graphs are captured, from the same code",
        "record": "where a value came from does not change it",
    }
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a user can choose about compilation.

    Attributes:
        optimization_level: 0 to 3; fills what is left open.
        compile: Whether pieces are compiled at all; open for the level to fill, which says no only at level 0.
        cudagraph_mode: Which CUDA graphs a serving process captures; open for the level to fill.
        payload: `aoti` or `inductor`; `auto` takes the target's default.
        tune: `static` ships one config of a Triton kernel; `keep` ships all, in an `inductor` payload, and the node
            times them once.
        target: `cpu`, `cuda`, a described GPU such as `h200`, the path of a description, an architecture such as
            `x86-64-v3` or `sm_90`, or `auto` for this machine.
        max_num_batched_tokens: Largest token count of a step.
        compile_range_endpoints: Token counts at which a compile range ends, besides the largest.
        compile_sizes: Token counts that get code of their own, with static shapes. Until settings are resolved the word
            `cudagraph_capture_sizes` stands for all capture sizes; then these move the key, as any list would.
        splitting_ops: Ops at which the graph is cut; None takes the spec's.
        inductor_config: Inductor options, by dotted name.
        jobs: Compile processes at a time; 0 takes one a usable core.
        enforce_eager: Neither compile nor capture, whatever else was asked for.
        cudagraph_capture_sizes: Capture sizes in tokens; None takes those of the rule.
        max_cudagraph_capture_size: Largest capture size in tokens; None takes that of the rule.
        interactivity: Capture every size from 1 to 32, for less padding in small batches.
        max_num_seqs: Most requests of a step.
        drafts: Draft tokens that each request of a decode step brings besides its own.
        draft_schedule: Pairs of the widest batch in requests and its drafts, for fewer drafts in wider batches.
        adaptive_verification: Requests of a decode step may bring fewer drafts than others.
        max_loras: Most LoRA adapters active at a time.
        specialize_lora: Capture graphs without LoRA besides those with it.
        specialize_active_lora: Capture graphs by the number of active adapters.
        num_ubatches: Microbatches that a decode step may be split into.
        ubatch_decode_tokens: Fewest tokens of a decode step that is split.
        record: Where each value came from, and what lowered it.
    """

    optimization_level: int = DEFAULT_LEVEL
    compile: bool | None = None
    cudagraph_mode: str = OPEN
    payload: str = "auto"
    tune: str = "static"
    target: str = "auto"
    max_num_batched_tokens: int = 8192
    compile_range_endpoints: tuple[int, ...] = ()
    compile_sizes: tuple[int | str, ...] = ()
    splitting_ops: tuple[str, ...] | None = None
    inductor_config: Mapping[str, Any] = field(default_factory=dict)
    jobs: int = 0
    enforce_eager: bool = False
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    max_cudagraph_capture_size: int | None = None
    interactivity: bool = False
    max_num_seqs: int = 256
    drafts: int = 0
    draft_schedule: tuple[tuple[int, int], ...] = ()
    adaptive_verification: bool = False
    max_loras: int = 0
    specialize_lora: bool = True
    specialize_active_lora: bool = False
    num_ubatches: int = 1
    ubatch_decode_tokens: int = 32
    record: tuple[SettingRecord, ...] = field(default=(), compare=False)

    def inductor_options(self) -> dict[str, Any]:
        """Return the Inductor options beside those that the payload kind sets: those of `tune`, then the user's."""
        return {**(KEEP if self.tune == "keep" else {}), **self.inductor_config}

    def key_values(self) -> dict[str, Any]:
        """Return the fields that go into the key, in the form in which they do; order counts nowhere (W6)."""
        return {
            "payload": self.payload,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "compile_range_endpoints": sorted(set(self.compile_range_endpoints)),
            "compile_sizes": self.single_sizes(),
            "splitting_ops": None if self.splitting_ops is None else sorted(set(self.splitting_ops)),
            "inductor_config": dict(sorted(self.inductor_config.items())),
        }

    def single_sizes(self) -> list[int]:
        """Return the token counts with code of their own, ascending.

        Raises:
            UsageError: A word stands for some of them, because the settings are not resolved.
        """
        sizes = [size for size in self.compile_sizes if isinstance(size, int)]
        if len(sizes) < len(self.compile_sizes):
            why = f"`{CAPTURE_SIZES}` among compile_sizes stands for sizes that are not worked out yet"
            raise UsageError("these settings are not resolved", why, "use what `settle_settings` returns")
        return sorted(set(sizes))

    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Return the compile ranges, inclusive, then the single sizes (vllm-behaviour.md step 5)."""
        ends = sorted({*self.compile_range_endpoints, self.max_num_batched_tokens})
        starts = [1, *(e + 1 for e in ends[:-1])]
        return tuple(dict.fromkeys((*zip(starts, ends, strict=True), *((s, s) for s in self.single_sizes()))))


SETTING_NAMES = tuple(f.name for f in dataclasses.fields(Settings) if f.name != "record")


def resolve_settings(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Mapping[str, object] | None = None,
    *,
    detect_target: Callable[[], str] | None = None,
) -> Settings:
    """Merge what the user gave into one record, then fill by level and lower by rule.

    Args:
        flags: Values given on the command line, or by a caller; by field name.
        environ: Environment; `PRECAST_<FIELD>` gives a field.
        file: Values of a configuration file, by field name.
        detect_target: Returns `cpu` or `cuda` for a target left at `auto`; by default this machine is asked.

    Raises:
        ConfigKeyError: A name that is no setting.
        ConfigValueError: A value of the wrong type or out of range.
    """
    found: dict[str, tuple[Any, str]] = {}
    for origin, values in (
        ("file", file or {}),
        ("environment", _from_environment(environ or {})),
        ("flag", flags or {}),
    ):
        for name, value in values.items():
            _require_known(name, origin)
            found[name] = (parse_value(name, value), origin)
    level, _ = found.get("optimization_level", (DEFAULT_LEVEL, "default"))
    for name, value in LEVELS[level].items():
        found.setdefault(name, (value, "level"))
    values = {n: found[n][0] if n in found else _default(n) for n in SETTING_NAMES}
    _check_bounds(values)
    if values["target"] == "auto":
        values["target"] = (detect_target or _detect)()
    _check_tune(values)
    _check_timed(values)
    record = {n: SettingRecord(n, _plain(values[n]), found[n][1] if n in found else "default") for n in SETTING_NAMES}
    return _with_captured_sizes(_lowered(values, record), environ or {})


def settle_settings(
    settings: Settings | None, environ: Mapping[str, str], *, detect_target: Callable[[], str] | None = None
) -> Settings:
    """Return settings that are resolved.

    A caller's own settings are complete: the environment does not change them, and the level fills only what was left
    open. With none given, the environment decides.
    """
    if settings is None:
        return resolve_settings({}, environ, detect_target=detect_target)
    if settings.record:
        return settings
    given = {n: v for n in SETTING_NAMES if (v := getattr(settings, n)) not in (OPEN, None)}
    return resolve_settings(given, {}, detect_target=detect_target)


def settle_graph_mode(settings: Settings, facts: GraphFacts) -> Settings:
    """Lower the graph mode by the rules that need the model, once that is known; the record is continued.

    Nothing that is part of the key changes. Settling twice is the same as settling once.

    Args:
        settings: Settings, resolved or not.
        facts: What the spec and the split plan say.

    Raises:
        ConfigValueError: FULL was asked for, and attention can be captured for nothing.
    """
    settings = settle_settings(settings, {})
    values = {n: getattr(settings, n) for n in SETTING_NAMES}
    return _lowered(values, {r.name: r for r in settings.record}, facts)


def _lowered(values: dict[str, Any], record: dict[str, SettingRecord], facts: GraphFacts | None = None) -> Settings:
    """Apply the rules in order; each effect is written down."""
    for rule in RULES:
        case = Case(values, facts, _asked(record["cudagraph_mode"]))
        new = rule.lower(case)
        if new is not None:
            values[rule.setting] = new
            told = rule.reason.format_map(case.words())
            record[rule.setting] = record[rule.setting].lowered(_plain(new), told)
    return Settings(**values, record=tuple(record[n] for n in SETTING_NAMES))


def _asked(record: SettingRecord) -> str:
    return str(record.value if record.lowered_from is None else record.lowered_from)


def _with_captured_sizes(settings: Settings, environ: Mapping[str, str]) -> Settings:
    """Refuse limits that contradict each other, and put capture sizes where a compile size stands for them."""
    check_capture(settings)
    if CAPTURE_SIZES not in settings.compile_sizes:
        return settings
    captured = planned_sizes(settings, environ).sizes
    sizes = compile_sizes(settings.compile_sizes, captured)
    why = f"`{CAPTURE_SIZES}` stands for {len(captured)} sizes"
    why += "" if captured else ", as mode NONE captures no graphs"
    record = tuple(r.lowered(_plain(sizes), why) if r.name == "compile_sizes" else r for r in settings.record)
    return dataclasses.replace(settings, compile_sizes=sizes, record=record)


def _check_bounds(values: Mapping[str, Any]) -> None:
    """Refuse ranges and sizes that no step can reach."""
    largest = values["max_num_batched_tokens"]
    for name in ("compile_range_endpoints", "compile_sizes"):
        beyond = [n for n in values[name] if n != CAPTURE_SIZES and n > largest]
        if beyond:
            raise ConfigValueError(
                f"`{name}` holds {beyond[0]}",
                f"a step has at most {largest} tokens (`max_num_batched_tokens`)",
                f"leave out {beyond[0]}, or raise max_num_batched_tokens",
            )


def _check_tune(values: Mapping[str, Any]) -> None:
    """Refuse to keep configs in a payload that holds one of each kernel."""
    if values["tune"] == "keep" and values["payload"] == "aoti" and device_of(values["target"]) != "cpu":
        raise ConfigValueError(
            "`tune` cannot be 'keep' in an aoti payload",
            "AOTInductor stores one config of a kernel",
            "add --payload inductor, or leave --tune keep out",
        )


def _check_timed(values: Mapping[str, Any]) -> None:
    """Refuse options for which a GPU would have to be here: code is always made from its description."""
    asked = [name for name in (*TIMED, "dynamic_scale_rblock") if values["inductor_config"].get(name)]
    if asked and device_of(values["target"]) != "cpu":
        raise ConfigValueError(
            f"`inductor_config` cannot turn on `{asked[0]}` for a GPU",
            "it times kernels, or compiles more of them where they are loaded; code is made from a description alone",
            "leave it out; --tune keep lets the node choose between configs",
        )


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {n: environ[v] for n in SETTING_NAMES if (v := f"PRECAST_{n.upper()}") in environ}


def _require_known(name: str, origin: str) -> None:
    if name in SETTING_NAMES:
        return
    near = difflib.get_close_matches(name, SETTING_NAMES, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"settings: {', '.join(SETTING_NAMES)}"
    raise ConfigKeyError(f"unknown setting `{name}`", f"given by {origin}", hint)


def _default(name: str) -> Any:
    spec = next(f for f in dataclasses.fields(Settings) if f.name == name)
    return spec.default if spec.default is not dataclasses.MISSING else {}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _detect() -> str:
    from precast.aot.target import detect_device

    return detect_device(os.environ)
