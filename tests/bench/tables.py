"""Tables of results: rows of text, which the report and the README put into their own forms."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.goals import judge
from tests.bench.peers import PEERS
from tests.bench.quoted import QUOTED, SOURCE, Quote
from tests.bench.results import Figure, Results
from tests.bench.wording import NONE, absence, number, sample_text, titles

__all__ = ["Table", "all_tables", "floor_row", "step_ways"]


@dataclass(frozen=True, slots=True)
class Table:
    """One table.

    Attributes:
        title: What it shows.
        head: Titles of the columns.
        rows: Cells, as many as there are titles.
        notes: Lines that belong below it.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def all_tables(results: Results) -> list[Table]:
    """Return the tables that have rows."""
    made = (_goals, _starts, _steps, _costs, _scaling, _commands)
    return [table for table in (make(results) for make in made) if table.rows]


def step_ways(results: Results) -> list[tuple[str, str, str]]:
    """Return the subject, the figure's name and the title of each way to run decode steps that was measured."""
    found = []
    for peer in PEERS:
        for way, words in (("full", "FULL graphs"), ("piecewise", "PIECEWISE"), ("none", "no graphs")):
            if results.row("peers", peer.name, f"step {way}"):
                title = peer.title if results.where == "cpu" else f"{peer.title}, {words}"
                found.append((peer.name, f"step {way}", title))
    return found


def floor_row(results: Results) -> dict[int, float]:
    """Return the milliseconds in which the weights of a step can be read once, by batch size."""
    read = results.value("peers", "machine", "weight bytes")
    bandwidth = results.value("peers", "machine", "copy bandwidth")
    batches = {f.at for f in results.figures.values() if f.name.startswith("step ") and f.at is not None}
    return dict.fromkeys(sorted(batches), read / bandwidth * 1e3) if read and bandwidth else {}


def _goals(results: Results) -> Table:
    rows = []
    for verdict in judge(results):
        value = NONE if verdict.value is None else number(verdict.value, verdict.goal.unit)
        word = f"({verdict.word})" if verdict.goal.extra else verdict.word
        rows.append((verdict.goal.name, verdict.goal.words, value, word))
    return Table("Numbers to reach", ("what", "at most", "found", ""), tuple(rows))


def _starts(results: Results) -> Table:
    columns = {"cold compile": "compile", "load": "load", "first call": "first call"}
    if results.where == "gpu":
        columns |= {"capture FULL": "capture full"}
    columns |= {"ready": "ready"}
    if results.where == "gpu":
        columns |= {"capture PIECEWISE": "capture piecewise"}
    columns |= {"`import torch`": "import", "on disk": "bytes"}
    peers = _peers(results)
    rows = [(title, *(_cell(results, name, figure) for figure in columns.values())) for name, title in peers]
    notes = ["Ready is load, first call and the capture of FULL graphs; imports beyond torch count in it."]
    notes += _absences(results, "peers")
    if rows and results.where == "gpu":
        rows += [_quoted_start(quote) for quote in QUOTED]
        notes.append(f"{SOURCE}; its first call holds the load, and its import of 12 s is left out.")
    return Table("Start-up", ("", *columns), tuple(rows), tuple(notes))


def _quoted_start(quote: Quote) -> tuple[str, ...]:
    ready = quote.first_call + quote.capture
    first, capture, piecewise = (number(s, "s") for s in (quote.first_call, quote.capture, quote.piecewise))
    shown = number(quote.compile, "s"), NONE, first, capture, number(ready, "s"), piecewise
    return (quote.title, *shown, NONE, number(quote.stored, "B"))


def _steps(results: Results) -> Table:
    ways = step_ways(results)
    batches = sorted({at for subject, name, _ in ways for at in results.row("peers", subject, name)})
    rows = []
    for subject, name, title in ways:
        row = results.row("peers", subject, name)
        rows.append((title, *(sample_text(row.get(batch)) for batch in batches)))
    floor = floor_row(results)
    if rows and floor:
        rows.append(("to read the weights once", *(number(floor[batch], "ms") for batch in batches)))
    if rows and results.where == "gpu":
        for quote in QUOTED[:1]:
            cells = (number(quote.full[b], "ms") if b in quote.full else NONE for b in batches)
            rows.append(("vLLM, FULL graphs (quoted)", *cells))
    return Table("A decode step, by requests", ("", *map(str, batches)), tuple(rows))


def _costs(results: Results) -> Table:
    names = ["host bytes", "host bytes compile"]
    head = ["", "host memory of a start", "of the compile"]
    if results.where == "gpu":
        names += ["graphs full bytes", "graphs piecewise bytes", "cpu full", "cpu piecewise", "cpu none"]
        head += ["FULL graphs", "PIECEWISE graphs", "CPU of a step, FULL", "PIECEWISE", "no graphs"]
    rows = [(title, *(_cell(results, name, figure) for figure in names)) for name, title in _peers(results)]
    notes = (
        "Host memory is the peak of the largest process. CPU is the time until a step of 8 requests was launched.",
    )
    return Table("Memory and CPU", tuple(head), tuple(rows), notes if results.where == "gpu" else ())


def _scaling(results: Results) -> Table:
    columns = {"cold compile": "compile", "pieces": "pieces", "distinct": "unique", "on disk": "bytes"}
    columns |= {"load": "load", "first call": "first call"}
    if results.where == "gpu":
        columns |= {"capture FULL": "capture full"}
    rows: list[tuple[str, ...]] = []
    for subject in dict.fromkeys(f.subject for f in results.figures.values() if f.part == "scaling"):
        by_name = {name: results.row("scaling", subject, name) for name in columns.values()}
        for layers in sorted({at for row in by_name.values() for at in row}):
            cells = (sample_text(by_name[name].get(layers)) for name in columns.values())
            rows.append((titles().get(subject, subject), str(layers), *cells))
    return Table("Depth", ("", "layers", *columns), tuple(rows), tuple(_absences(results, "scaling")))


def _commands(results: Results) -> Table:
    found = [f for f in results.figures.values() if f.part == "commands"]
    counts: list[int | None] = [None, *sorted({f.at for f in found if f.at is not None})]
    rows = []
    for subject in dict.fromkeys(f.subject for f in found):
        row: dict[int | None, Figure | None] = {at: results.find("commands", subject, "wall", at) for at in counts}
        rows.append((f"`{subject}`", *(sample_text(row[at]) for at in counts)))
    head = ("", *("empty cache" if at is None else f"{at:,} entries" for at in counts))
    return Table("Commands, each in a fresh process", head, tuple(rows))


def _peers(results: Results) -> list[tuple[str, str]]:
    known = {f.subject for f in results.figures.values() if f.part == "peers"}
    known |= {a.subject for a in results.absent.values() if a.part == "peers"}
    return [(peer.name, peer.title) for peer in PEERS if peer.name in known]


def _cell(results: Results, subject: str, name: str) -> str:
    return sample_text(results.find("peers", subject, name))


def _absences(results: Results, part: str) -> Sequence[str]:
    subjects = dict.fromkeys(a.subject for a in results.absent.values() if a.part == part)
    return [f"{titles().get(s, s)}: {absence(results, part, s)}." for s in subjects]
