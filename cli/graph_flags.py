"""The options that say which CUDA graphs are captured, and for which batches; none of them changes compiled code."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from precast.cli.options import integers

__all__ = ["GraphFlags", "GraphMode"]

_GRAPHS = "CUDA graphs"


class GraphMode(StrEnum):
    """Which CUDA graphs are captured."""

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"
    FULL_DECODE_ONLY = "FULL_DECODE_ONLY"
    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"


@dataclass(frozen=True, slots=True)
class GraphFlags:
    """The options of the graph mode, the capture sizes and the limits of a batch."""

    cudagraph_mode: Annotated[
        GraphMode | None,
        typer.Option(
            "--cudagraph-mode",
            case_sensitive=False,
            help="Which graphs to capture; the level chooses if left out",
            rich_help_panel=_GRAPHS,
        ),
    ] = None
    enforce_eager: Annotated[
        bool | None,
        typer.Option("--enforce-eager", help="Neither compile nor capture", rich_help_panel=_GRAPHS),
    ] = None
    cudagraph_capture_sizes: Annotated[
        str | None,
        typer.Option(
            "--cudagraph-capture-sizes",
            metavar="LIST",
            help="Token counts to capture graphs for",
            rich_help_panel=_GRAPHS,
        ),
    ] = None
    max_cudagraph_capture_size: Annotated[
        int | None,
        typer.Option(
            "--max-cudagraph-capture-size",
            metavar="N",
            min=1,
            help="Largest token count to capture a graph for",
            rich_help_panel=_GRAPHS,
        ),
    ] = None
    interactivity: Annotated[
        bool | None,
        typer.Option("--interactivity", help="Capture every size from 1 to 32", rich_help_panel=_GRAPHS),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        typer.Option("--max-num-seqs", metavar="N", min=1, help="Most requests in one step", rich_help_panel=_GRAPHS),
    ] = None
    drafts: Annotated[
        int | None,
        typer.Option(
            "--drafts",
            metavar="N",
            min=0,
            help="Draft tokens of each request in a decode step",
            rich_help_panel=_GRAPHS,
        ),
    ] = None
    draft_schedule: Annotated[
        str | None,
        typer.Option(
            "--draft-schedule",
            metavar="LIST",
            help="Fewer drafts for wider batches: 8:3,32:1 is 3 up to 8 requests, 1 up to 32",
            rich_help_panel=_GRAPHS,
        ),
    ] = None
    adaptive_verification: Annotated[
        bool | None,
        typer.Option(
            "--adaptive-verification", help="Requests may bring fewer drafts than others", rich_help_panel=_GRAPHS
        ),
    ] = None
    max_loras: Annotated[
        int | None,
        typer.Option(
            "--max-loras", metavar="N", min=0, help="Most LoRA adapters active at a time", rich_help_panel=_GRAPHS
        ),
    ] = None
    specialize_lora: Annotated[
        bool | None,
        typer.Option(
            "--specialize-lora/--no-specialize-lora",
            help="Capture graphs without LoRA besides those with it",
            rich_help_panel=_GRAPHS,
        ),
    ] = None
    specialize_active_lora: Annotated[
        bool | None,
        typer.Option(
            "--specialize-active-lora/--no-specialize-active-lora",
            help="Capture graphs by the number of active adapters",
            rich_help_panel=_GRAPHS,
        ),
    ] = None
    num_ubatches: Annotated[
        int | None,
        typer.Option(
            "--num-ubatches",
            metavar="N",
            min=1,
            help="Microbatches that a decode step may be split into",
            rich_help_panel=_GRAPHS,
        ),
    ] = None
    ubatch_decode_tokens: Annotated[
        int | None,
        typer.Option(
            "--ubatch-decode-tokens",
            metavar="N",
            min=1,
            help="Fewest tokens of a decode step that is split",
            rich_help_panel=_GRAPHS,
        ),
    ] = None

    def graph_settings(self) -> dict[str, object]:
        """Give each option by the name of its setting; None for what was left open."""
        return {
            "cudagraph_mode": self.cudagraph_mode and self.cudagraph_mode.value,
            "enforce_eager": self.enforce_eager,
            "cudagraph_capture_sizes": integers("--cudagraph-capture-sizes", self.cudagraph_capture_sizes),
            "max_cudagraph_capture_size": self.max_cudagraph_capture_size,
            "interactivity": self.interactivity,
            "max_num_seqs": self.max_num_seqs,
            "drafts": self.drafts,
            "draft_schedule": self.draft_schedule,
            "adaptive_verification": self.adaptive_verification,
            "max_loras": self.max_loras,
            "specialize_lora": self.specialize_lora,
            "specialize_active_lora": self.specialize_active_lora,
            "num_ubatches": self.num_ubatches,
            "ubatch_decode_tokens": self.ubatch_decode_tokens,
        }
