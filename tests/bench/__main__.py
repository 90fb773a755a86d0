"""Measure: side by side with what users have otherwise, and figures with bounds of their own.

    python -m tests.bench cpu [OPTIONS]              peers, depth and commands on this CPU; --help lists the options
    python -m tests.bench gpu [OPTIONS]              the same on this GPU, for at most --budget seconds (450)
    python -m tests.bench table [TITLE...]           the README's tables in Markdown, from the committed results
    python -m tests.bench report [FILE.json]         the HTML report of results, beside them; by default of those here
    python -m tests.bench [start-up] [load] [depth]  figures with bounds of their own, all three by default

`cpu` and `gpu` write tests/bench/results/cpu.json and gpu.json, each with an HTML report, and print every figure that
got worse against the committed JSON by more than the spread. See also tests.bench.store, inspect_scale and prune_scale.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Run what is asked for; 2 when nothing has that name."""
    from tests.bench.figures import GROUPS, run_groups

    words = list(argv)
    if words and words[0] in ("cpu", "gpu"):
        from tests.bench.suite import run_suite

        return run_suite(words[0], words[1:])
    if words and words[0] in ("table", "report"):
        return _show(words[0], words[1:])
    unknown = [word for word in words if word not in GROUPS]
    if unknown:
        print(__doc__, file=sys.stderr)
        return 0 if unknown[0] in ("-h", "--help") else 2
    return run_groups(words)


def _show(what: str, words: Sequence[str]) -> int:
    from tests.bench.report import render_report
    from tests.bench.results import read_results, results_path
    from tests.bench.table import render

    paths = [results_path(where, quick=False) for where in ("gpu", "cpu")]
    if what == "report" and words:
        paths = [Path(word) for word in words]
    found = {path: results for path in paths if (results := read_results(path)) is not None}
    if not found:
        print(f"error: no results at {', '.join(map(str, paths))}", file=sys.stderr)
        return 2
    if what == "table":
        print(render(list(found.values()), words))
        return 0
    for path, results in found.items():
        path.with_suffix(".html").write_text(render_report(results))
        print(path.with_suffix(".html"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
