"""Finding and reading the files that hold precast's configuration."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precast.errors import ConfigValueError

__all__ = ["ConfigFile", "project_file", "read_explicit", "read_toml", "user_file"]


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One file and the part of it that is ours.

    Attributes:
        path: Where it is.
        origin: `project` or `user`.
        table: The values, not yet checked.
    """

    path: Path
    origin: str
    table: Mapping[str, Any]


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigValueError: If there is no such file or it is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigValueError(f"Cannot read {path}", error.strerror or "", path=str(path)) from error
    except ValueError as error:
        raise ConfigValueError(f"{path} is not valid TOML", str(error), path=str(path)) from error


def read_explicit(path: Path) -> ConfigFile:
    """Read the file that `--config` or PRECAST_CONFIG names; a pyproject.toml gives its `[tool.precast]`.

    Raises:
        ConfigValueError: If it cannot be read.
    """
    return ConfigFile(path, "project", _ours(path, read_toml(path)))


def project_file(start: Path) -> ConfigFile | None:
    """Find the configuration of the project that a folder belongs to: in the folder or its nearest parent.

    In one folder `precast.toml` goes before `[tool.precast]` in pyproject.toml.

    Raises:
        ConfigValueError: If a file of ours is not valid TOML.
    """
    for folder in (start, *start.parents):
        own, shared = folder / "precast.toml", folder / "pyproject.toml"
        if _is_file(own):
            return ConfigFile(own, "project", read_toml(own))
        if _is_file(shared) and _mentions_us(shared):
            return ConfigFile(shared, "project", _ours(shared, read_toml(shared)))
    return None


def user_file(environ: Mapping[str, str]) -> ConfigFile | None:
    """Find the user's own file: `$XDG_CONFIG_HOME/precast/config.toml`, else the same below `~/.config`.

    Raises:
        ConfigValueError: If it is not valid TOML.
    """
    base = environ.get("XDG_CONFIG_HOME") or (f"{environ['HOME']}/.config" if environ.get("HOME") else "")
    path = Path(base) / "precast" / "config.toml"
    if not base or not _is_file(path):
        return None
    return ConfigFile(path, "user", read_toml(path))


def _ours(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    if path.name != "pyproject.toml":
        return document
    table: dict[str, Any] = document.get("tool", {}).get("precast", {})
    return table


def _mentions_us(path: Path) -> bool:
    """Tell whether a pyproject.toml is for us too, without failing for one that is not ours and broken."""
    try:
        return "tool.precast" in path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False
