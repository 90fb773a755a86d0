"""The traffic that coverage is about: of a file, of the options that name batches, or all that the limits allow."""

from dataclasses import dataclass
from pathlib import Path

from precast.capture.limits import BatchLimits
from precast.capture.traffic import (
    ExpectedBatch,
    decode_batches,
    default_traffic,
    mixed_batches,
    read_traffic,
    too_large,
)
from precast.cli.options import exclusive
from precast.errors import UsageError

__all__ = ["Given", "traffic_of"]


@dataclass(frozen=True, slots=True)
class Given:
    """Traffic and where it comes from.

    Attributes:
        source: `file`, `options` or `limits`.
        batches: The batches.
        too_large: Numbers of requests whose decode step is left out, as it has more tokens than a step may have.
    """

    source: str
    batches: tuple[ExpectedBatch, ...]
    too_large: tuple[int, ...] = ()


def traffic_of(
    limits: BatchLimits,
    *,
    file: str | None = None,
    decode: tuple[int, ...] | None = None,
    mixed: tuple[int, ...] | None = None,
) -> Given:
    """Return the traffic that options name; without any, all that the limits allow.

    Args:
        limits: Limits of a batch.
        file: Name of a file of JSON lines.
        decode: Decode steps, by their requests.
        mixed: Batches with a prefill, by their tokens.

    Raises:
        ConfigValueError: The file holds no traffic.
        UsageError: The file cannot be read; or options contradict each other.
    """
    named = decode is not None or mixed is not None
    exclusive({"--traffic": file is not None, "--decode-batches or --mixed-tokens": named})
    if file is not None:
        return Given("file", read_traffic(_lines(file), limits, f"--traffic {file}"))
    if named:
        return Given("options", (*decode_batches(limits, decode or ()), *mixed_batches(limits, mixed or ())))
    return Given("limits", default_traffic(limits), too_large(limits))


def _lines(name: str) -> list[str]:
    try:
        return Path(name).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"--traffic {name} cannot be read", why or "", "give a file of JSON lines") from error
