"""The options that say what is compiled and how, the same for every command that names a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from precast.cache.canonical import Json
from precast.capture.ranges import CAPTURE_SIZES
from precast.cli.graph_flags import GraphFlags
from precast.cli.options import assignments, integers

__all__ = ["CompileFlags", "Payload", "Tune"]

_COMPILE = "Compile settings"


class Payload(StrEnum):
    """Kind of compiled piece."""

    AUTO = "auto"
    AOTI = "aoti"
    INDUCTOR = "inductor"


class Tune(StrEnum):
    """How many configs of a Triton kernel are shipped."""

    STATIC = "static"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class CompileFlags(GraphFlags):
    """The options that say what is compiled and how; they are the same for `precompile` and `verify`."""

    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Value for the model's config; repeatable"),
    ] = None
    config_file: Annotated[
        str | None,
        typer.Option("--config-file", metavar="FILE", help="TOML file with values for the model's config"),
    ] = None
    payload: Annotated[
        Payload | None, typer.Option("--payload", help="Kind of compiled piece", rich_help_panel=_COMPILE)
    ] = None
    tune: Annotated[
        Tune | None,
        typer.Option(
            "--tune",
            help="Ship one config of each Triton kernel, or keep all for the node to time once",
            rich_help_panel=_COMPILE,
        ),
    ] = None
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="NAME",
            help="auto, cpu, cuda; a GPU: a100, b200, h100, h200, l4, l40s, rtx4090, or FILE.json with its "
            "description; or an architecture: x86-64-v3, x86-64-v4, sm_90; precompile takes several",
            rich_help_panel=_COMPILE,
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-num-batched-tokens",
            metavar="N",
            min=1,
            help="Most tokens in one step",
            rich_help_panel=_COMPILE,
        ),
    ] = None
    compile_range_endpoints: Annotated[
        str | None,
        typer.Option(
            "--compile-range-endpoints",
            metavar="LIST",
            help="Where compile ranges end",
            rich_help_panel=_COMPILE,
        ),
    ] = None
    compile_sizes: Annotated[
        str | None,
        typer.Option(
            "--compile-sizes",
            metavar="LIST",
            help="Token counts compiled on their own; cudagraph_capture_sizes stands for those that are captured",
            rich_help_panel=_COMPILE,
        ),
    ] = None
    splitting_ops: Annotated[
        list[str] | None,
        typer.Option("--splitting-op", metavar="OP", help="Cut the graph here; repeatable", rich_help_panel=_COMPILE),
    ] = None
    inductor: Annotated[
        list[str] | None,
        typer.Option("--inductor", metavar="KEY=VALUE", help="Inductor option; repeatable", rich_help_panel=_COMPILE),
    ] = None
    optimization_level: Annotated[
        int | None,
        typer.Option(
            "--optimization-level",
            "-O",
            metavar="LEVEL",
            min=0,
            max=3,
            help="0 to 3",
            rich_help_panel=_COMPILE,
        ),
    ] = None
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", metavar="N", min=1, help="Processes that compile", rich_help_panel=_COMPILE),
    ] = None

    def settings(self) -> dict[str, object]:
        """Give what the user set, by the names of `precast.aot.settings`, and nothing that was left open."""
        given: dict[str, object] = {
            "payload": self.payload and self.payload.value,
            "tune": self.tune and self.tune.value,
            "target": tuple(self.target) if self.target else None,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "compile_range_endpoints": integers("--compile-range-endpoints", self.compile_range_endpoints),
            "compile_sizes": _compile_sizes(self.compile_sizes),
            "splitting_ops": tuple(self.splitting_ops) if self.splitting_ops else None,
            "inductor_config": assignments("--inductor", self.inductor) or None,
            "optimization_level": self.optimization_level,
            "jobs": self.jobs,
            **self.graph_settings(),
        }
        return {name: value for name, value in given.items() if value is not None}

    def model_overrides(self) -> dict[str, Json]:
        """Give the values for the model's config: those of `--config-file`, then those of `--set`."""
        return {**_toml(self.config_file), **assignments("--set", self.overrides)}


def _compile_sizes(text: str | None) -> tuple[int | str, ...] | None:
    """Read numbers, among which a word may stand for the capture sizes."""
    words = [word.strip() for word in (text or "").split(",")]
    if CAPTURE_SIZES not in words:
        return integers("--compile-sizes", text)
    numbers = ",".join(word for word in words if word != CAPTURE_SIZES)
    return (*(integers("--compile-sizes", numbers) or ()), CAPTURE_SIZES)


def _toml(name: str | None) -> Mapping[str, Json]:
    if name is None:
        return {}
    from precast.cli.config_files import read_toml

    return read_toml(Path(name))
