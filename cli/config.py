"""Configuration with its origins: flag, then environment, then project file, then user file, then default."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast.cache.canonical import Json
from precast.cli.config_files import ConfigFile, project_file, read_explicit, user_file
from precast.cli.github import GithubChoice
from precast.cli.options import ProgressChoice
from precast.cli.output import Format
from precast.cli.terminal import ColorChoice
from precast.errors import ConfigKeyError, ConfigValueError

__all__ = ["KNOWN", "SETTINGS_TABLE", "Config", "Known", "Value", "load_config"]

SETTINGS_TABLE = "settings"


@dataclass(frozen=True, slots=True)
class Known:
    """One value of the tool's own configuration.

    Attributes:
        key: Its name in a file.
        flag: The option that sets it.
        variable: The environment variable that sets it, or empty.
        default: What holds when nobody sets it.
        choices: The values allowed, or nothing for any text.
        is_path: Whether a relative value belongs to the folder of the file that it stands in.
        help: One line for people.
    """

    key: str
    flag: str
    variable: str
    default: str
    help: str
    choices: tuple[str, ...] = ()
    is_path: bool = False


KNOWN = (
    Known("cache_dir", "--cache-dir", "PRECAST_CACHE_DIR", "", "Folder of the store", is_path=True),
    Known("format", "--format", "PRECAST_FORMAT", "human", "How the answer is written", tuple(Format)),
    Known("color", "--color", "", "auto", "When to color", tuple(ColorChoice)),
    Known("progress", "--progress", "PRECAST_PROGRESS", "auto", "How long work is shown", tuple(ProgressChoice)),
    Known("github", "--github", "", "auto", "When to talk to GitHub Actions", tuple(GithubChoice)),
    Known("remote", "--remote", "PRECAST_REMOTE", "", "Address of the store behind this one"),
    Known("lock_timeout", "--lock-timeout", "PRECAST_LOCK_TIMEOUT", "", "Seconds to wait for the same work elsewhere"),
    Known("log_file", "--log-file", "PRECAST_LOG", "", "File for a debug log", is_path=True),
)


@dataclass(frozen=True, slots=True)
class Value:
    """One value and where it came from.

    Attributes:
        key: Its name.
        value: What holds.
        origin: `flag`, `environment`, `project`, `user` or `default`; a compile setting may say
            `file` or `level`.
        source: The option, the variable or the file, or empty for a default.
    """

    key: str
    value: Json
    origin: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Config:
    """The merged configuration.

    Attributes:
        values: The tool's own values, by key.
        settings: The `[settings]` tables of the files, merged, for `precast.aot.settings` to read.
        sources: For each of those settings the file it stands in.
        files: The files that were read.
    """

    values: Mapping[str, Value]
    settings: Mapping[str, object]
    sources: Mapping[str, str]
    files: tuple[Path, ...]

    def get(self, key: str) -> str:
        """Give a value of the tool's own configuration; an empty text means not set."""
        return str(self.values[key].value)


def load_config(flags: Mapping[str, str | None], environ: Mapping[str, str], cwd: Path | None) -> Config:
    """Merge all sources of configuration.

    Args:
        flags: What the user gave, by key, plus `config` for an explicit file.
        environ: The environment.
        cwd: The folder to look for a project file from, or None where there is none.

    Raises:
        ConfigKeyError: If a file holds unknown keys; all of them are named.
        ConfigValueError: If a value is not allowed or a file cannot be read.
    """
    explicit = flags.get("config") or environ.get("PRECAST_CONFIG")
    nearest = project_file(cwd) if cwd and not explicit else None
    project = read_explicit(Path(explicit).expanduser()) if explicit else nearest
    files = [file for file in (project, user_file(environ)) if file is not None]
    for file in files:
        _check_keys(file)
    values = {known.key: _resolve(known, flags, environ, files) for known in KNOWN}
    settings = [(file, file.table.get(SETTINGS_TABLE, {})) for file in reversed(files)]
    return Config(
        values,
        {key: value for _, table in settings for key, value in table.items()},
        {key: str(file.path) for file, table in settings for key in table},
        tuple(file.path for file in files),
    )


def setting_names() -> tuple[str, ...]:
    """Give the names that a `[settings]` table may hold."""
    from precast.aot.settings import SETTING_NAMES

    return SETTING_NAMES


def _resolve(
    known: Known, flags: Mapping[str, str | None], environ: Mapping[str, str], files: Sequence[ConfigFile]
) -> Value:
    given = flags.get(known.key)
    if given:
        return _checked(known, Value(known.key, given, "flag", known.flag))
    if known.variable and environ.get(known.variable):
        return _checked(known, Value(known.key, environ[known.variable], "environment", known.variable))
    for file in files:
        if known.key in file.table:
            return _from_file(known, file)
    return Value(known.key, known.default, "default")


def _from_file(known: Known, file: ConfigFile) -> Value:
    value = file.table[known.key]
    if not isinstance(value, str):
        raise ConfigValueError(f"{known.key} in {file.path} must be text", f"it is {value!r}", path=str(file.path))
    if known.is_path:
        value = str(file.path.absolute().parent / Path(value).expanduser())
    return _checked(known, Value(known.key, value, file.origin, str(file.path)))


def _checked(known: Known, value: Value) -> Value:
    if known.choices and value.value not in known.choices:
        raise ConfigValueError(
            f"{known.key} cannot be {value.value}",
            f"it comes from {value.source}",
            f"Use {' or '.join(known.choices)}",
        )
    return value


def _check_keys(file: ConfigFile) -> None:
    names = (*(known.key for known in KNOWN), SETTINGS_TABLE)
    wrong = [_suggest(key, names) for key in file.table if key not in names]
    inner: Any = file.table.get(SETTINGS_TABLE)
    if inner is not None and not isinstance(inner, dict):
        raise ConfigValueError(f"{SETTINGS_TABLE} in {file.path} must be a table", path=str(file.path))
    if inner:
        known = setting_names()
        wrong += [_suggest(key, known, f"{SETTINGS_TABLE}.") for key in inner if key not in known]
    if wrong:
        raise ConfigKeyError(
            f"Unknown keys in {file.path}" if len(wrong) > 1 else f"Unknown key in {file.path}",
            "; ".join(wrong),
            "Run `precast config`: it lists every key",
            path=str(file.path),
        )


def _suggest(key: str, names: Sequence[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(key, names, n=1)
    return f"{prefix}{key}, did you mean {prefix}{near[0]}?" if near else f"{prefix}{key}"
