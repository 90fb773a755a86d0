"""What `precast config` shows beside the tool's own values: the compile settings and the variables."""

from collections.abc import Mapping

from precast.aot.settings import SETTING_NAMES, resolve_settings
from precast.cache.canonical import Json
from precast.cli.config import KNOWN, Config, Value

__all__ = ["setting_values", "variables"]


def setting_values(config: Config, environ: Mapping[str, str]) -> list[Value]:
    """Give the compile settings as they are now, by their names in a `[settings]` table.

    Raises:
        ConfigValueError: If the environment or a file holds a value that is not allowed.
    """
    record = resolve_settings({}, environ, config.settings).record
    return [
        Value(
            f"settings.{setting.name}",
            setting.value,
            setting.origin,
            _source(setting.name, setting.origin, config),
        )
        for setting in record
    ]


def variables(environ: Mapping[str, str]) -> list[dict[str, Json]]:
    """Give the environment variables that precast reads, what each does and what it holds."""
    own = [(known.variable, known.help) for known in KNOWN if known.variable]
    own.append(("PRECAST_CONFIG", "Settings file in place of precast.toml"))
    settings = [(f"PRECAST_{name.upper()}", f"The setting {name}") for name in SETTING_NAMES]
    known = sorted([*own, *settings])
    return [{"name": name, "value": environ.get(name), "help": meaning} for name, meaning in known]


def _source(name: str, origin: str, config: Config) -> str:
    if origin == "environment":
        return f"PRECAST_{name.upper()}"
    return config.sources.get(name, "") if origin == "file" else ""
