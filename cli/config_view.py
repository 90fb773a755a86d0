"""What `precast config` shows beside the tool's own values: the compile settings and the variables."""

from collections.abc import Mapping
from dataclasses import replace

from precast.aot.settings import SETTING_NAMES
from precast.aot.target_list import settings_by_target
from precast.cache.canonical import Json
from precast.cache.remote_errors import clean, shown_url
from precast.cli.config import KNOWN, Config, Value

__all__ = ["own_values", "setting_values", "variables"]


def own_values(config: Config) -> list[Value]:
    """Give the tool's own values as they may be shown, all but the folder of the store."""
    values = [config.values[known.key] for known in KNOWN if known.key != "cache_dir"]
    return [replace(v, value=shown_url(str(v.value))) if v.key == "remote" and v.value else v for v in values]


def setting_values(config: Config, environ: Mapping[str, str]) -> list[Value]:
    """Give the compile settings as they are now, by their names in a `[settings]` table.

    Raises:
        ConfigValueError: If the environment or a file holds a value that is not allowed.
    """
    found = settings_by_target({}, environ, config.settings)
    names: list[Json] = [settings.target for settings in found]
    record = [replace(r, value=names) if r.name == "target" and len(names) > 1 else r for r in found[0].record]
    return [
        Value(
            f"settings.{setting.name}",
            setting.value,
            setting.origin,
            _source(setting.name, setting.origin, config),
        )
        for setting in record
    ]


_PASSPHRASE = "PRECAST_SIGNING_PASSPHRASE"  # noqa: S105 - the name of a variable

# No file may say these: a checkout could bring one along.
_ONLY_VARIABLES = (
    ("PRECAST_CONFIG", "Settings file in place of precast.toml"),
    ("PRECAST_LOCKS", "Kind of locks: auto, flock, or lease where the folder is on a network"),
    ("PRECAST_OFFLINE", "Leave the remote alone"),
    ("PRECAST_READ_ONLY", "Write nothing to the store"),
    ("PRECAST_REMOTE_READ_ONLY", "Take from the remote, never write to it"),
    ("PRECAST_REMOTE_REQUIRED", "Fail where the remote does"),
    ("PRECAST_REQUIRE_SIGNATURE", "Public keys, of which one must have signed an entry"),
    ("PRECAST_SIGNING_KEY", "File of the key that precompile signs with"),
    (_PASSPHRASE, "What opens that key if it is encrypted"),
    ("PRECAST_TRUST_ROOT", "Use a store that other users can write"),
)

# What the remotes' drivers read for themselves.
_OF_DRIVERS = (
    ("AWS_ENDPOINT_URL", "Server of an s3:// remote; its driver reads the other AWS_ variables too"),
    ("GOOGLE_APPLICATION_CREDENTIALS", "File of the credentials for a gs:// remote"),
    ("HF_TOKEN", "Token for an hf:// remote"),
)
_SECRET = (_PASSPHRASE, "HF_TOKEN")


def variables(environ: Mapping[str, str]) -> list[dict[str, Json]]:
    """Give the environment variables that precast reads, what each does and what it holds."""
    own = [(known.variable, known.help) for known in KNOWN if known.variable]
    settings = [(f"PRECAST_{name.upper()}", f"The setting {name}") for name in SETTING_NAMES]
    known = sorted([*own, *_ONLY_VARIABLES, *_OF_DRIVERS, *settings])
    return [{"name": name, "value": _shown(name, environ), "help": meaning} for name, meaning in known]


def _shown(name: str, environ: Mapping[str, str]) -> str | None:
    value = environ.get(name)
    if not value:
        return value
    if name in _SECRET:
        return "set"
    return shown_url(value) if name == "PRECAST_REMOTE" else clean(value) if name == "AWS_ENDPOINT_URL" else value


def _source(name: str, origin: str, config: Config) -> str:
    if origin == "environment":
        return f"PRECAST_{name.upper()}"
    return config.sources.get(name, "") if origin == "file" else ""
