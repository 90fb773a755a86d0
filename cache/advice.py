"""Advice: for each change that moves the key, what to do to get back to the stored entry."""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from precast.cache.canonical import Json
from precast.cache.diff import Change, Side
from precast.cache.factors import Factor
from precast.cache.masking import is_secret_variable, public_value

__all__ = ["advise"]

_LINES = 5


def advise(changes: Iterable[Change], entry: Side) -> tuple[str, ...]:
    """Return one line for each change, duplicates left out; the first side of each change is the entry's.

    Args:
        changes: What differs between the entry and a request.
        entry: The entry's side.
    """
    return tuple(dict.fromkeys(_line(change, entry) for change in changes))


def _line(change: Change, entry: Side) -> str:
    return _BY_GROUP.get(change.group, _any)(change, entry)


def _env(change: Change, _: Side) -> str:
    name, value = change.factor, change.a
    if value is None:
        return f"Unset {name}"
    if is_secret_variable(name):
        return f"Set {name} back to the value with the digest {value}"
    return f"Set {name}={shlex.quote(_text(value))}"


def _config(change: Change, entry: Side) -> str:
    kind, _, name = change.factor.partition(".")
    if kind == "settings":
        return _setting(name, change.a)
    if kind == "model":
        return _model(change, entry)
    if kind == "signature":
        return f"Give the input `{name}` back its shape and dtype: {_text(change.a)}"
    return _any(change, entry)


def _model(change: Change, entry: Side) -> str:
    if change.factor == "model.factory":
        return f"Name the factory {_text(change.a)}" if change.a is not None else "Name the model's config folder"
    held = _holder(change, entry)
    key = (held.name if held else change.factor).removeprefix("model.")
    flag = key.removeprefix("set.")
    if held is None:
        # A mapping that is new altogether is told leaf by leaf, and `--set` or the file named it by its first word.
        flag = flag.partition(".")[0]
        return f"Leave out --set {flag}{'' if key.startswith('set.') else ', or take it out of config.json'}"
    if public_value("config", held.name, held.value) != held.value:
        return f"Pass the value of {flag} that has the digest {_text(change.a)}"
    return f"Pass --set {flag}={shlex.quote(_assigned(held.value))}"


def _holder(change: Change, entry: Side) -> Factor | None:
    """Return the entry's factor that holds a value or one leaf of it: `--set` takes whole values only."""
    fitting = (
        item for item in entry.factors if item.group == "config" and f"{change.factor}.".startswith(f"{item.name}.")
    )
    return max(fitting, key=lambda item: len(item.name), default=None)


def _assigned(value: Json) -> str:
    """Write a value so that `--set` reads it back: a text that is JSON by itself needs its quotes."""
    if isinstance(value, str):
        with suppress(ValueError):
            json.loads(value)
            return json.dumps(value)
    return _text(value)


def _setting(name: str, value: Json) -> str:
    kind, _, option = name.partition(".")
    if kind == "inductor_config" and option:
        return _inductor(option, value)
    flag = "--splitting-op" if name == "splitting_ops" else f"--{name.replace('_', '-')}"
    if value in (None, [], {}):
        return f"Leave out {flag}"
    if name == "splitting_ops" and isinstance(value, list):
        return f"Pass {' '.join(f'{flag} {_text(item)}' for item in value)}"
    return f"Pass {flag} {','.join(map(_text, value)) if isinstance(value, list) else _text(value)}"


def _inductor(option: str, value: Json) -> str:
    return f"Leave out --inductor {option}" if value is None else f"Pass --inductor {option}={_text(value)}"


def _code(change: Change, entry: Side) -> str:
    kind, _, name = change.factor.partition(":")
    if kind == "module":
        return _module(change, name, entry)
    if kind == "distribution":
        return _distribution(change, name)
    verb = {"removed": "Bring back", "added": "Take away"}.get(change.kind, "Restore")
    return f"{verb} the file {name}"


def _module(change: Change, module: str, entry: Side) -> str:
    file = _file(module, entry)
    if change.kind != "changed":
        return f"{'Bring back' if change.b is None else 'Take away'} {file} (module {module})"
    if not change.lines:
        return f"Revert {file} (module {module}) to the content with the digest {_text(change.a)}"
    numbers = dict.fromkeys(line.line_b or line.line_a for line in change.lines)
    shown = ", ".join(str(number) for number in list(numbers)[:_LINES])
    more = len(numbers) - _LINES + change.rest
    word = "line" if len(numbers) == 1 and not change.rest else "lines"
    return f"Revert {file} {word} {shown}{f' and {more} more' if more > 0 else ''} (module {module})"


def _file(module: str, entry: Side) -> str:
    """Return a module's file below its search path; a package is told by the modules in it."""
    names = {factor.name for factor in entry.factors if factor.group == "code"}
    inner = any(name.startswith(f"module:{module}.") for name in names)
    return f"{module.replace('.', '/')}{'/__init__.py' if inner else '.py'}"


def _distribution(change: Change, name: str) -> str:
    package, _, leaf = name.rpartition(".")
    if leaf == "version" and change.a is not None:
        return f"Install {package}=={_text(change.a)}"
    if leaf == "digest":
        return f"Install {package} again: its version is the same, its files are others"
    return f"Uninstall {package or name}"


def _compiler(change: Change, entry: Side) -> str:
    name, _, leaf = change.factor.partition(".")
    if name in ("torch", "triton"):
        return _distribution(change, change.factor if leaf else f"{name}.version")
    if name == "inductor_config" and leaf:
        return _inductor(leaf, change.a)
    if name == "precast":
        return "Use the version of precast that built the entry: its own splitting or codegen sources differ"
    if name == "target" and leaf.startswith("facts"):
        return _gpu(change, leaf.partition(".")[2])
    lines: Mapping[str, str] = {
        "python": f"Use Python {_text(change.a)}",
        "payload": f"Pass --payload {_text(change.a)}",
        "target": f"Pass --target {_text(change.a)}" if leaf == "device" else f"Compile for {_text(change.a)}",
    }
    return lines.get(name) or _any(change, entry)


def _gpu(change: Change, fact: str) -> str:
    if change.a is None:
        return "Compile again: the entry does not say for which GPU of its architecture it is"
    return f"Compile for a GPU whose {fact} is {_text(change.a)}"


def _any(change: Change, _: Side) -> str:
    return f"Bring {change.label} back to {_text(change.a) if change.a is not None else 'nothing'}"


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


_BY_GROUP: Mapping[str, Callable[[Change, Side], str]] = {
    "env": _env,
    "config": _config,
    "code": _code,
    "compiler": _compiler,
}
