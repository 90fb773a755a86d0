"""Long work is seen: lines, a sign of life, bars and events."""

import io
import json

import pytest

from precast.aot.progress import Progress, Silent
from precast.cli.events import EventLog
from precast.cli.options import ProgressChoice
from precast.cli.progress import SILENCE_SECONDS, Bars, Fanout, PlainLines, shown_progress


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _nobody(code: str, message: str, hint: str) -> None:
    raise AssertionError(f"nothing was to be warned of, but {code}: {message}")


def _work(progress: Progress) -> None:
    progress.start("piece", 2)
    progress.advance("piece", "layer 0", 6.25, 900_000)
    progress.advance("piece", "layer 1", 1.0, 0)
    progress.finish("piece")
    progress.note("all done")


def test_a_line_is_said_for_every_finished_item() -> None:
    said: list[str] = []
    _work(PlainLines(said.append))
    assert said == ["piece 1/2  layer 0  6.2 s  900.0 kB", "piece 2/2  layer 1  1.0 s", "all done"]


def test_work_of_unknown_length_is_counted_without_a_total() -> None:
    said: list[str] = []
    lines = PlainLines(said.append)
    lines.start("trace", 0)
    lines.advance("trace", "graph", 2.0, 0)
    assert said == ["trace 1  graph  2.0 s"]


def test_silence_is_broken_every_ten_seconds_while_work_goes_on() -> None:
    clock, said = _Clock(), []  # type: ignore[var-annotated]
    lines = PlainLines(said.append, clock)
    lines.start("compiling piece", 33)
    clock.now += SILENCE_SECONDS - 1
    lines.beat()
    assert said == []
    clock.now += 1
    lines.beat()
    lines.beat()
    assert said == ["still compiling piece 1/33, 10 s"]
    clock.now += SILENCE_SECONDS
    lines.beat()
    assert said[1:] == ["still compiling piece 1/33, 20 s"]


def test_a_finished_item_starts_the_silence_anew() -> None:
    clock, said = _Clock(), []  # type: ignore[var-annotated]
    lines = PlainLines(said.append, clock)
    lines.start("piece", 2)
    clock.now += 9
    lines.advance("piece", "a", 9.0, 0)
    clock.now += 9
    lines.beat()
    assert len(said) == 1


def test_no_sign_of_life_between_stages() -> None:
    clock, said = _Clock(), []  # type: ignore[var-annotated]
    lines = PlainLines(said.append, clock)
    lines.start("piece", 1)
    lines.finish("piece")
    clock.now += 60
    lines.beat()
    assert said == []


def test_events_are_one_object_a_line() -> None:
    clock, file = _Clock(), io.StringIO()
    log = EventLog(file, clock)
    clock.now += 1.5
    _work(log)
    assert [json.loads(line) for line in file.getvalue().splitlines()] == [
        {"event": "stage_started", "at": 1.5, "stage": "piece", "total": 2},
        {"event": "item_finished", "at": 1.5, "stage": "piece", "label": "layer 0", "seconds": 6.25, "bytes": 900_000},
        {"event": "item_finished", "at": 1.5, "stage": "piece", "label": "layer 1", "seconds": 1.0, "bytes": 0},
        {"event": "stage_finished", "at": 1.5, "stage": "piece"},
        {"event": "note", "at": 1.5, "text": "all done"},
    ]


def test_a_fanout_tells_all_in_the_same_words() -> None:
    one, two = io.StringIO(), io.StringIO()
    clock = _Clock()
    _work(Fanout([EventLog(one, clock), EventLog(two, clock)]))
    assert one.getvalue() == two.getvalue() != ""


def test_a_terminal_gets_bars() -> None:
    stream, said = _Terminal(), []  # type: ignore[var-annotated]
    with shown_progress(
        ProgressChoice.AUTO, stream, said.append, color=False, environ={"TERM": "xterm"}, events=None, warn=_nobody
    ) as progress:
        _work(progress)
    assert "2/2" in stream.getvalue()
    assert "all done" in stream.getvalue()
    assert said == []


@pytest.mark.parametrize(
    ("choice", "stream", "term", "lines"),
    [
        (ProgressChoice.AUTO, io.StringIO(), "xterm", 3),
        (ProgressChoice.AUTO, _Terminal(), "dumb", 3),
        (ProgressChoice.PLAIN, _Terminal(), "xterm", 3),
        (ProgressChoice.NONE, _Terminal(), "xterm", 0),
    ],
)
def test_elsewhere_there_are_lines_or_nothing(
    choice: ProgressChoice, stream: io.StringIO, term: str, lines: int
) -> None:
    said: list[str] = []
    with shown_progress(
        choice, stream, said.append, color=False, environ={"TERM": term}, events=None, warn=_nobody
    ) as progress:
        _work(progress)
    assert len(said) == lines
    assert stream.getvalue() == ""


def test_events_are_written_whatever_is_shown() -> None:
    said: list[str] = []
    file = io.StringIO()
    with shown_progress(
        ProgressChoice.NONE, io.StringIO(), said.append, color=False, environ={}, events=file, warn=_nobody
    ) as progress:
        _work(progress)
    assert len(file.getvalue().splitlines()) == 5
    assert said == []


@pytest.mark.parametrize(
    ("choice", "stream"), [(ProgressChoice.NONE, io.StringIO()), (ProgressChoice.AUTO, _Terminal())]
)
def test_a_warning_is_told_once_when_the_display_is_gone_and_written_as_an_event_at_once(
    choice: ProgressChoice, stream: io.StringIO
) -> None:
    told: list[tuple[str, str, str]] = []
    file = io.StringIO()

    def warn(code: str, message: str, hint: str) -> None:
        told.append((code, message, hint))

    with shown_progress(
        choice, stream, lambda _: None, color=False, environ={"TERM": "xterm"}, events=file, warn=warn
    ) as progress:
        progress.warning("remote.unreachable", "no answer", "try again")
        assert [json.loads(line)["event"] for line in file.getvalue().splitlines()] == ["warning"]
        assert told == []
    assert told == [("remote.unreachable", "no answer", "try again")]


def test_a_warning_is_told_although_the_work_fails() -> None:
    told: list[str] = []

    def work() -> None:
        with shown_progress(
            ProgressChoice.NONE,
            io.StringIO(),
            told.append,
            color=False,
            environ={},
            events=None,
            warn=lambda code, *_: told.append(code),
        ) as progress:
            progress.warning("remote.corrupt", "damaged")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert told == ["remote.corrupt"]


def test_a_warning_that_nobody_watches_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    Silent().warning("remote.unreachable", "no answer")
    assert caplog.messages == ["remote.unreachable: no answer"]


def test_a_bar_of_unknown_length_ends_full() -> None:
    from rich.console import Console
    from rich.progress import Progress as Display

    display = Display(console=Console(file=io.StringIO()))
    bars = Bars(display)
    bars.start("trace", 0)
    bars.finish("trace")
    assert display.finished
