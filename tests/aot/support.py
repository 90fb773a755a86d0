"""Entries with payloads that need no compiler: what is under test is what happens around them."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tests.cache.support import make_manifest

from precast.aot.binding import LoadedPieces, bind_forward, bind_state
from precast.aot.load import CompiledModel
from precast.aot.stamps import payload_stamps
from precast.aot.target import Target, cpu_isa
from precast.cache.canonical import sha256
from precast.cache.manifest import Manifest, PayloadRecord
from precast.cache.mega import write_mega
from precast.cache.store import Store
from precast.splitter.plan import GraphInput, RunPiece, SplitPlan

PIECE = "a" * 64
SPAN = (1, 512)
RAW = b"not a real payload " * 30

Piece = Callable[[list[Any]], Sequence[Any]]


def plan(
    arguments: Mapping[str, tuple[str, tuple[int | None, ...]]] | None = None, states: tuple[GraphInput, ...] = ()
) -> SplitPlan:
    """Make a plan of one piece that takes all arguments and states."""
    given = arguments or {"x": ("float32", (None, 4))}
    inputs = tuple(GraphInput(n, "argument", n, None, dtype, shape) for n, (dtype, shape) in given.items()) + states
    token = next(((n, s.index(None)) for n, (_, s) in given.items() if None in s), None)
    return SplitPlan(
        tuple(given), inputs, (RunPiece(PIECE, tuple(i.name for i in inputs), ("r",)),), {"$ref": "r"}, token
    )


def state(
    name: str, source: str, shape: tuple[int, ...], stride: tuple[int, ...], dtype: str = "float32"
) -> GraphInput:
    return GraphInput(name, "state", source, None, dtype, shape, stride)


def manifest(split_plan: SplitPlan | None = None, raw: bytes = RAW, **changes: Any) -> Manifest:
    """Make a manifest for this machine's CPU."""
    target = Target("cpu", cpu_isa())
    record = PayloadRecord(f"{PIECE}:{SPAN[0]}-{SPAN[1]}", "aoti", sha256(raw), len(raw), len(raw), 1.0, SPAN, 1)
    made = replace(
        make_manifest(),
        target=target.to_json(),
        stamps={"aoti": payload_stamps("aoti", target)},
        plan=(split_plan or plan()).to_json(),
        payloads=(record,),
        constants=(),
    )
    return replace(made, **changes)


def publish(root: Path, made: Manifest, raw: bytes = RAW) -> Store:
    """Publish a manifest with one object."""
    store = Store(root)
    store.put_object(raw)
    store.publish(made, write_mega(made, {sha256(raw): raw}, {}))
    return store


def loaded(split_plan: SplitPlan, pieces: Mapping[tuple[int, int], Piece], module: Any = None) -> CompiledModel:
    """Bind callables to a module as `load` does."""
    callables = {(PIECE, span): run for span, run in pieces.items()}
    made = manifest(split_plan)
    bound = bind_state(LoadedPieces(made, split_plan, callables), module or torch.nn.Module())
    return CompiledModel(made, bind_forward(bound), bound=bound)


class Recorder:
    """A progress that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.noted = threading.Event()

    def start(self, stage: str, total: int) -> None:
        self.told.append(f"start: {stage} {total}")

    def advance(self, stage: str, label: str, seconds: float, size: int) -> None:
        self.told.append(f"advance: {stage} {label}")

    def finish(self, stage: str) -> None:
        self.told.append(f"finish: {stage}")

    def note(self, text: str) -> None:
        self.told.append(f"note: {text}")
        self.noted.set()

    def warning(self, code: str, message: str, hint: str = "") -> None:
        self.told.append(f"warning: {code}")
