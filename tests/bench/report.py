"""The report: one HTML file with tables and plots, that loads nothing."""

import re
from collections.abc import Sequence
from html import escape

from tests.bench.peers import PEERS
from tests.bench.plots import Bar, Line, lines, stacked_bars
from tests.bench.quoted import QUOTED
from tests.bench.results import Results
from tests.bench.table import origin
from tests.bench.tables import Table, all_tables, floor_row, step_ways
from tests.bench.wording import titles

__all__ = ["render_report"]

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 0.5em 0 } td, th { padding: 3px 9px; border-bottom: 1px solid #ddd }
td:not(:first-child), th:not(:first-child) { text-align: right; white-space: nowrap }
p.note { color: #555; margin: 2px 0 }
td.missed { color: #b00020; font-weight: 600 } td.reached { color: #1a7f37 }
svg text { font: 12px system-ui, sans-serif }
"""
_PHASES = ("import torch", "load", "first call", "capture FULL")


def render_report(results: Results, worse: Sequence[str] = ()) -> str:
    """Return the report of one kind of machine.

    Args:
        results: The results.
        worse: Figures that got worse against the committed results, one a line.
    """
    title = f"precast benchmark, {results.where}"
    body = [f"<h1>{title}</h1>", f"<p>{_inline(origin(results))}</p>"]
    if worse:
        body.append("<h2>Worse than the committed results</h2><ul>")
        body += [f"<li>{escape(line)}</li>" for line in worse]
        body.append("</ul>")
    plots = {"Start-up": _start_plot, "A decode step, by requests": _step_plot, "Depth": _depth_plot}
    for table in all_tables(results):
        body.append(f"<h2>{escape(table.title)}</h2>")
        if table.title in plots:
            body.append(plots[table.title](results))
        body.append(_html(table))
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return "\n".join((f"{head}</head><body>", *body, "</body></html>")) + "\n"


def _start_plot(results: Results) -> str:
    names = {"import torch": "import", "load": "load", "first call": "first call", "capture FULL": "capture full"}
    bars = []
    for peer in PEERS:
        parts = {phase: results.value("peers", peer.name, name) for phase, name in names.items()}
        known = {phase: value for phase, value in parts.items() if value is not None}
        if known:
            bars.append(Bar(peer.title, known))
    if results.where == "gpu":
        bars += [Bar(q.title, {"first call": q.first_call, "capture FULL": q.capture}) for q in QUOTED]
    return stacked_bars(bars, _PHASES, "s")


def _step_plot(results: Results) -> str:
    found = []
    for subject, name, title in step_ways(results):
        found.append(Line(title, {at: f.value for at, f in results.row("peers", subject, name).items()}))
    if results.where == "gpu":
        found.append(Line("vLLM, FULL graphs (quoted)", QUOTED[0].full))
    found.append(Line("to read the weights once", floor_row(results), dashed=True))
    return lines(found, "requests", "ms a step", log_y=True)


def _depth_plot(results: Results) -> str:
    found = []
    for subject in dict.fromkeys(f.subject for f in results.figures.values() if f.part == "scaling"):
        row = results.row("scaling", subject, "compile")
        found.append(Line(titles().get(subject, subject), {at: f.value for at, f in row.items()}))
    return lines(found, "layers", "seconds of a cold compile")


def _html(table: Table) -> str:
    head = "".join(f"<th>{_inline(cell)}</th>" for cell in table.head)
    rows = "\n".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in table.rows)
    notes = "".join(f'<p class="note">{_inline(note)}</p>' for note in table.notes)
    return f"<table><tr>{head}</tr>\n{rows}</table>{notes}"


def _cell(text: str) -> str:
    kind = f' class="{text}"' if text in ("missed", "reached") else ""
    return f"<td{kind}>{_inline(text)}</td>"


def _inline(text: str) -> str:
    """Escape, and show what stands between backticks as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))
