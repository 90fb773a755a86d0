"""The options that say how the store is opened, for the commands that write entries or load them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["StoreFlags"]

_STORE = "Store"


@dataclass(frozen=True, slots=True)
class StoreFlags:
    """How the store is opened: locks, trust and the remote behind it."""

    lock_timeout: Annotated[
        float | None,
        typer.Option(
            "--lock-timeout",
            metavar="SECONDS",
            min=0,
            help="Wait so long for another process that does the same work (PRECAST_LOCK_TIMEOUT)",
            rich_help_panel=_STORE,
        ),
    ] = None
    trust_root: Annotated[
        bool,
        typer.Option(
            "--trust-root", help="Use a store that other users can write (PRECAST_TRUST_ROOT)", rich_help_panel=_STORE
        ),
    ] = False
    require_signature: Annotated[
        list[Path] | None,
        typer.Option(
            "--require-signature",
            metavar="PUBKEY",
            help="Refuse entries that none of these ed25519 keys signed; repeatable (PRECAST_REQUIRE_SIGNATURE)",
            rich_help_panel=_STORE,
        ),
    ] = None
    remote: Annotated[
        str | None,
        typer.Option(
            "--remote",
            metavar="URL",
            help="Store behind this one: file://, s3://, gs:// or hf:// (PRECAST_REMOTE)",
            rich_help_panel=_STORE,
        ),
    ] = None
    remote_read_only: Annotated[
        bool,
        typer.Option(
            "--remote-read-only",
            help="Take from the remote, never write to it (PRECAST_REMOTE_READ_ONLY)",
            rich_help_panel=_STORE,
        ),
    ] = False
    remote_required: Annotated[
        bool,
        typer.Option(
            "--remote-required",
            help="Fail where the remote does; else that is a warning and a miss (PRECAST_REMOTE_REQUIRED)",
            rich_help_panel=_STORE,
        ),
    ] = False
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Leave the remote alone (PRECAST_OFFLINE)", rich_help_panel=_STORE),
    ] = False
