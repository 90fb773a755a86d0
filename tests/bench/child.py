"""A measured process: `python -m tests.bench.child PEER compile|start FOLDER WORKLOAD`; prints one JSON object last.

`compile` compiles with empty caches and keeps what later starts need. `start` is a serving process: import, load, first
call, capture, and then decode steps. What is timed are the phases alone; the model is built between them.
"""

import json
import resource
import sys
import time

_STARTED = time.perf_counter()
import torch  # noqa: E402 - the import is one of the phases

_IMPORTED = time.perf_counter()

from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from tests.bench.peers import entry, make_peer  # noqa: E402
from tests.bench.peers.base import CannotError, Captured, Forward, Peer  # noqa: E402
from tests.bench.session import Session, checksum, open_session  # noqa: E402
from tests.bench.steps import cpu_microseconds, milliseconds  # noqa: E402
from tests.bench.workload import Workload  # noqa: E402

_HEAVY = ("torch._dynamo", "torch._inductor", "sympy", "triton")
_CPU_BATCH = 8


def main(words: list[str]) -> int:
    """Measure, and print what was found; a peer that cannot says so, and that is no failure."""
    name, stage, folder, work = words
    try:
        peer = make_peer(name)
        found = _STAGES[stage](peer, Path(folder), Workload.from_json(json.loads(work)))
        if entry(name).after is not None:  # it has no compile of its own, where sizes are told
            found["figures"]["bytes"] = peer.stored(Path(folder))
    except CannotError as error:
        found = {"cannot": str(error)}
    found.setdefault("figures", {})["host bytes"] = _peak_bytes()
    print("\n" + json.dumps(found), flush=True)
    return 0


def compile_(peer: Peer, folder: Path, work: Workload) -> dict[str, Any]:
    """Compile with empty caches."""
    if not peer.in_process:
        found: dict[str, Any] = peer.compile_apart(folder, work)
        return {"figures": {**found, "bytes": peer.stored(folder)}}
    session = open_session(work, folder)
    inputs = session.first_inputs()
    with torch.no_grad(), session.state.use():
        started = time.perf_counter()
        forward = peer.compile(session)
        forward(*inputs)
        session.wait()
        seconds = time.perf_counter() - started
    peer.keep(session)
    return {"figures": {"compile": seconds, "bytes": peer.stored(folder)}}


def start(peer: Peer, folder: Path, work: Workload) -> dict[str, Any]:
    """Start as a serving process does, and time decode steps."""
    session = open_session(work, folder)
    inputs = session.first_inputs()
    session.wait()
    figures: dict[str, float] = {"import": _IMPORTED - _STARTED}
    with torch.no_grad(), session.state.use():
        started = time.perf_counter()
        forward = peer.load(session)
        figures["load"] = time.perf_counter() - started
        figures["heavy modules after load"] = _heavy()
        started = time.perf_counter()
        result = forward(*inputs)
        session.wait()
        figures["first call"] = time.perf_counter() - started
        figures["heavy modules after first call"] = _heavy()
    figures["load and first call"] = figures["load"] + figures["first call"]
    found = {"figures": figures, "checksum": checksum(result)}
    if found["checksum"] != found["checksum"]:
        raise RuntimeError("the first call returned NaN")
    del result
    steps: list[tuple[str, int, float]] = []
    ready = figures["load and first call"]
    if work.device == "cuda":
        ready += _captured(peer, session, forward, figures, steps)
    figures["ready"] = ready
    if work.batches:
        if peer.plain or work.device == "cpu":
            _time_plain(session, forward, figures, steps)
        figures |= _floor(session)
    return {**found, "steps": steps}


def _captured(
    peer: Peer, session: Session, forward: Forward, figures: dict[str, float], steps: list[tuple[str, int, float]]
) -> float:
    """Capture in each way, time its steps, release it; return the seconds of the first way."""
    ways = peer.captures(session, forward)
    for way, capture in ways.items():
        captured = capture()
        figures[f"capture {way}"] = captured.seconds
        figures[f"graphs {way} bytes"] = captured.size
        if way != "lean":  # the same graphs as those of `full`
            batches = session.work.batches
            steps += [(way, batch, _time_replay(session, captured, way, batch, figures)) for batch in batches]
        captured.release()
        del captured
    return figures[f"capture {next(iter(ways))}"]


def _time_replay(session: Session, captured: Captured, way: str, batch: int, figures: dict[str, float]) -> float:
    """Time one size; a function, so that nothing keeps its graph when graphs are released."""
    session.decode_inputs(batch)
    step = captured.step(batch)
    with torch.no_grad(), session.state.use():
        if batch == _CPU_BATCH:
            figures[f"cpu {way}"] = cpu_microseconds(step, session.wait)
        return milliseconds(step, session.wait)


def _time_plain(
    session: Session, forward: Forward, figures: dict[str, float], steps: list[tuple[str, int, float]]
) -> None:
    """Time steps without graphs."""
    for batch in session.work.batches:
        step = partial(forward, *session.decode_inputs(batch))
        with torch.no_grad(), session.state.use():
            steps.append(("none", batch, milliseconds(step, session.wait)))
            if batch == _CPU_BATCH and session.work.device == "cuda":
                figures["cpu none"] = cpu_microseconds(step, session.wait)


def _floor(session: Session) -> dict[str, float]:
    """Measure the copy bandwidth, and add up the weights that a step reads; of the embedding it reads a row a token."""
    from precast.aot.floor import copy_bandwidth

    skipped = {id(m.weight) for m in session.module.modules() if isinstance(m, torch.nn.Embedding)}
    head = getattr(session.module, "lm_head", None)
    skipped |= {id(p) for p in head.parameters()} if head is not None else set()  # runs outside of the forward
    weights = {id(p): p.numel() * p.element_size() for p in session.module.parameters()}
    read = sum(size for key, size in weights.items() if key not in skipped)
    return {"weight bytes": read, "copy bandwidth": copy_bandwidth(session.work.device)}


def _peak_bytes() -> int:
    """Return the most memory that this process or one that it started has held."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(kind).ru_maxrss for kind in kinds) * 1024


def _heavy() -> int:
    return sum(name in sys.modules for name in _HEAVY)


_STAGES = {"compile": compile_, "start": start}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
