"""`python -m tests.bench cpu|gpu`: measure, write JSON after each process, compare, and write the report."""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bench.commands import ENTRIES, measure_commands
from tests.bench.compare import comparable, worse_figures
from tests.bench.goals import judge
from tests.bench.launch import Budget, Runner
from tests.bench.machine import describe_machine, same_machine
from tests.bench.peers import PEERS
from tests.bench.recording import Bench, tell
from tests.bench.report import render_report
from tests.bench.results import FOLDER, Results, read_results, results_path, write_results
from tests.bench.scaling import LAYERS, measure_scaling
from tests.bench.start_up import PeersPart
from tests.bench.table import render
from tests.bench.wording import number
from tests.bench.workload import cpu_model, cpu_small, gpu_model

__all__ = ["run_suite"]

_PARTS = ("peers", "scaling", "commands")
_GPU_BUDGET = 450.0


def run_suite(where: str, argv: Sequence[str]) -> int:
    """Run a benchmark.

    Args:
        where: `cpu` or `gpu`.
        argv: Options.

    Returns:
        0 when it ran to its end, whatever it found; 1 when a process failed.
    """
    options = _options(where, argv)
    device = "cuda" if where == "gpu" else "cpu"
    try:
        machine = describe_machine(device)
    except subprocess.CalledProcessError:
        print(f"error: torch cannot use a {device} device here", file=sys.stderr)
        return 2
    kept = results_path(where, quick=options.quick)
    path = options.output / kept.name
    committed = read_results(kept)
    results = _begin(where, options, machine, read_results(path if path.is_file() else kept))
    scratch = Path(options.scratch or tempfile.mkdtemp(prefix="precast-bench-"))
    scratch.mkdir(parents=True, exist_ok=True)
    budget = Budget(options.budget)
    bench = Bench(
        results,
        Runner(scratch, budget),
        budget,
        lambda: write_results(results, path),
        options.repeats,
        options.slow_repeats,
        set(),
    )
    try:
        _measure(bench, where, options, scratch)
    finally:
        bench.save()
        worse = _worse(committed, bench)
        path.with_suffix(".html").write_text(render_report(results, worse))
        if options.scratch is None:
            shutil.rmtree(scratch, ignore_errors=True)
    _conclude(results, worse, path)
    failed = [a for a in results.absent.values() if a.scope in bench.measured and not a.cannot]
    return 1 if [a for a in failed if a.stage != "budget" and a.why != "the budget ended"] else 0


def _options(where: str, argv: Sequence[str]) -> argparse.Namespace:
    gpu = where == "gpu"
    names = [peer.name for peer in PEERS if ("cuda" if gpu else "cpu") in peer.devices]
    parser = argparse.ArgumentParser(prog=f"python -m tests.bench {where}", description=__doc__)
    parts = _PARTS[:2] if gpu else _PARTS  # commands need no GPU
    parser.add_argument("--parts", type=_words(_PARTS), default=parts, help=f"of {', '.join(_PARTS)}")
    parser.add_argument("--peers", type=_words(names), default=tuple(names), help=f"of {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="small models and few repeats; not compared as the real")
    parser.add_argument("--repeats", type=int, help="starts of each peer, and calls of each command")
    parser.add_argument("--slow-repeats", type=int, help="starts of each slow peer")
    parser.add_argument("--layers", type=_numbers, help="depths of the part `scaling`")
    parser.add_argument("--scaling-peers", type=_words(names), help="peers of the part `scaling`")
    parser.add_argument("--entries", type=_numbers, default=ENTRIES, help="sizes of the roots of the part `commands`")
    parser.add_argument("--budget", type=float, default=_GPU_BUDGET if gpu else None, help="seconds for all of it")
    parser.add_argument("--output", type=Path, help="where JSON and report are written (default: tests/bench/results)")
    parser.add_argument("--scratch", help="a folder for caches and artifacts, which stays")
    options = parser.parse_args(argv)
    options.command = " ".join(("python -m tests.bench", where, *argv))
    options.repeats = options.repeats or (1 if options.quick else 3 if gpu else 5)
    options.slow_repeats = min(options.repeats, options.slow_repeats or (1 if options.quick or gpu else 3))
    options.layers = options.layers or ((2, 4) if options.quick else (8, 64) if gpu else LAYERS)
    options.scaling_peers = options.scaling_peers or (("precast-aoti",) if gpu else ("precast-aoti", "compile"))
    if options.quick:
        options.entries = tuple(n for n in options.entries if n <= 1_000)
    options.output = options.output or (Path(tempfile.gettempdir()) / "precast-bench" if options.quick else FOLDER)
    return options


def _begin(where: str, options: argparse.Namespace, machine: dict[str, object], there: Results | None) -> Results:
    """Go on with earlier results of an equal machine, and begin anew otherwise."""
    if there is not None and same_machine(there.machine, machine) and there.quick == options.quick:
        whole = options.command == f"python -m tests.bench {where}"
        there.command = options.command if whole else _joined(there.command, options.command)
        there.machine = machine
        return there
    return Results(where, options.command, options.quick, machine)


def _joined(before: str, now: str) -> str:
    """Name every command that made the results, each once."""
    return before if now in before.split("`, `") else f"{before}`, `{now}"


def _measure(bench: Bench, where: str, options: argparse.Namespace, scratch: Path) -> None:
    gpu = where == "gpu"
    model = gpu_model(quick=options.quick) if gpu else cpu_model(quick=options.quick)
    peers = PeersPart(bench, model, options.peers) if "peers" in options.parts else None
    if peers is not None:
        peers.run(1, 2)
    if "scaling" in options.parts:
        narrow = gpu_model(quick=options.quick) if gpu else cpu_small()
        measure_scaling(bench, narrow, options.layers, options.scaling_peers)
    if peers is not None:
        peers.run(3, 4)
    if "commands" in options.parts:
        measure_commands(bench, scratch, options.entries)


def _worse(committed: Results | None, bench: Bench) -> list[str]:
    why = comparable(committed, bench.results)
    if why is not None or committed is None:
        tell(f"not compared: {why}")
        return []
    return [str(worse) for worse in worse_figures(committed, bench.results, bench.measured)]


def _conclude(results: Results, worse: Sequence[str], path: Path) -> None:
    print(render([results]))
    for verdict in judge(results):
        if verdict.word == "missed":
            found = number(verdict.value or 0, verdict.goal.unit)
            print(f"missed: {verdict.goal.name}: {found}, at most {verdict.goal.words}")
    for line in worse:
        print(f"worse: {line}")
    print(f"written: {path} and {path.with_suffix('.html')}")


def _words(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        words = tuple(word for word in text.split(",") if word)
        unknown = [word for word in words if word not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {unknown[0]}; known: {', '.join(known)}")
        return words

    return parse


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)
