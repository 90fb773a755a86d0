"""The README's tables: Markdown from the committed results, with the command that made them and the date."""

from collections.abc import Sequence

from tests.bench.results import Results
from tests.bench.tables import Table, all_tables

__all__ = ["origin", "render"]


def render(found: Sequence[Results], titles: Sequence[str] = ()) -> str:
    """Return all tables as Markdown.

    Args:
        found: Results, one for each kind of machine.
        titles: Titles of the tables to show; empty for all.
    """
    blocks = []
    for results in found:
        blocks.append(f"{origin(results)}\n")
        blocks += [_markdown(table) for table in all_tables(results) if not titles or table.title in titles]
    return "\n".join(blocks)


def origin(results: Results) -> str:
    """Return one line that says where, when and how results were made."""
    machine = results.machine
    gpu = f"{machine['gpu']}, " if machine.get("gpu") else ""
    cores = f"{machine.get('cores')} cores of {machine.get('cpu')}"
    versions = f"torch {machine.get('torch')}, Python {machine.get('python')}"
    dates = results.dates
    day = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "never"
    quick = " Small models stand in for the real ones." if results.quick else ""
    return f"`{results.command}` on {gpu}{cores}, {versions}, {day}.{quick}"


def _markdown(table: Table) -> str:
    lines = [f"**{table.title}**", "", _row(table.head), _row(["---"] * len(table.head))]
    lines += [_row(row) for row in table.rows]
    lines += [line for note in table.notes for line in ("", note)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
