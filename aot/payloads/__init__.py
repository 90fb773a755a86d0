"""Payload kinds: `aoti` and `inductor`, behind one protocol."""

from precast.aot.payloads.aoti import AotiPayload
from precast.aot.payloads.base import BuildJob, PayloadKind
from precast.aot.payloads.inductor import InductorPayload
from precast.errors import FormatError

__all__ = ["BuildJob", "PayloadKind", "payload_kind"]


def payload_kind(name: str) -> PayloadKind:
    """Return the payload kind of a name.

    Raises:
        FormatError: No kind has the name.
    """
    kinds: tuple[PayloadKind, ...] = (AotiPayload(), InductorPayload())
    for kind in kinds:
        if kind.name == name:
            return kind
    raise FormatError(f"unknown payload kind `{name}`", f"known: {', '.join(k.name for k in kinds)}", "update precast")
