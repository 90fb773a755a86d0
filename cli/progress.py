"""Long work made visible on stderr: bars on a terminal, else one line a finished item and a sign of life."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TextIO

from precast.aot.progress import Progress
from precast.cache.sizes import format_size
from precast.cli.events import EventLog
from precast.cli.options import ProgressChoice
from precast.cli.terminal import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

__all__ = ["SILENCE_SECONDS", "Bars", "Fanout", "PlainLines", "Warnings", "shown_progress"]

SILENCE_SECONDS = 10.0
_TICK_SECONDS = 1.0


class PlainLines:
    """A progress for logs: one line a finished item, and `beat` for the silence between them.

    Args:
        say: Writes one line; called from the working thread and from the one that beats.
        clock: Seconds of a monotonic clock.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._lock = threading.Lock()
        self._stage = ""
        self._total = 0
        self._done = 0
        self._began = self._spoke = clock()

    def start(self, stage: str, total: int) -> None:
        """Open a stage; nothing is said until something took time."""
        with self._lock:
            self._stage, self._total, self._done = stage, total, 0
            self._began = self._spoke = self._clock()

    def advance(self, stage: str, label: str, seconds: float, size: int) -> None:
        """Say what was finished, how long it took and how big it is."""
        with self._lock:
            self._done += 1
            made = f"  {format_size(size)}" if size else ""
            self._speak(f"{stage} {self._count(self._done)}  {label}  {seconds:.1f} s{made}")

    def finish(self, stage: str) -> None:
        """Close a stage."""
        with self._lock:
            self._stage = "" if stage == self._stage else self._stage

    def note(self, text: str) -> None:
        """Say one line."""
        with self._lock:
            self._speak(text)

    def warning(self, code: str, message: str, hint: str = "") -> None:
        """Leave it to `Warnings`, which also puts it into the answer."""

    def beat(self) -> None:
        """Say that work goes on, if nothing was said for `SILENCE_SECONDS`."""
        with self._lock:
            now = self._clock()
            if self._stage and now - self._spoke >= SILENCE_SECONDS:
                count = f" {self._count(self._done + 1)}" if self._done < self._total else ""
                self._speak(f"still {self._stage}{count}, {now - self._began:.0f} s")

    def _count(self, number: int) -> str:
        return f"{number}/{self._total}" if self._total else str(number)

    def _speak(self, line: str) -> None:
        self._spoke = self._clock()
        self._say(line)


class Bars:
    """A progress for terminals, drawn by rich.

    Args:
        display: The running display.
    """

    def __init__(self, display: "RichProgress") -> None:
        self._display = display
        self._tasks: dict[str, TaskID] = {}

    def start(self, stage: str, total: int) -> None:
        """Draw a bar; one that only moves when the number of items is not known."""
        self._tasks[stage] = self._display.add_task(stage, total=total or None, label="")

    def advance(self, stage: str, label: str, seconds: float, size: int) -> None:
        """Move the bar and name the item beside it."""
        made = f"  {format_size(size)}" if size else ""
        self._display.update(self._tasks[stage], advance=1, label=f"{label}  {seconds:.1f} s{made}")

    def finish(self, stage: str) -> None:
        """Fill the bar."""
        task = self._tasks[stage]
        done = next(t.completed for t in self._display.tasks if t.id == task)
        self._display.update(task, total=max(done, 1), completed=max(done, 1))

    def note(self, text: str) -> None:
        """Print one line above the bars."""
        self._display.console.print(text, markup=False, highlight=False)

    def warning(self, code: str, message: str, hint: str = "") -> None:
        """Leave it to `Warnings`, which tells it when the bars are gone."""


class Warnings:
    """A progress that keeps warnings until the display is gone, and then gives them to the one sink.

    Args:
        tell: Takes the code, the message and the hint.
    """

    def __init__(self, tell: Callable[[str, str, str], None]) -> None:
        self._tell = tell
        self._kept: list[tuple[str, str, str]] = []

    def start(self, stage: str, total: int) -> None:
        """Ignore."""

    def advance(self, stage: str, label: str, seconds: float, size: int) -> None:
        """Ignore."""

    def finish(self, stage: str) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""

    def warning(self, code: str, message: str, hint: str = "") -> None:
        """Keep it."""
        self._kept.append((code, message, hint))

    def flush(self) -> None:
        """Tell what was kept."""
        kept, self._kept = self._kept, []
        for code, message, hint in kept:
            self._tell(code, message, hint)


class Fanout:
    """A progress that tells several others."""

    def __init__(self, parts: Sequence[Progress]) -> None:
        self._parts = tuple(parts)

    def start(self, stage: str, total: int) -> None:
        """Tell all."""
        for part in self._parts:
            part.start(stage, total)

    def advance(self, stage: str, label: str, seconds: float, size: int) -> None:
        """Tell all."""
        for part in self._parts:
            part.advance(stage, label, seconds, size)

    def finish(self, stage: str) -> None:
        """Tell all."""
        for part in self._parts:
            part.finish(stage)

    def note(self, text: str) -> None:
        """Tell all."""
        for part in self._parts:
            part.note(text)

    def warning(self, code: str, message: str, hint: str = "") -> None:
        """Tell all."""
        for part in self._parts:
            part.warning(code, message, hint)


@contextmanager
def shown_progress(
    choice: ProgressChoice,
    stream: TextIO,
    say: Callable[[str], None],
    *,
    color: bool,
    environ: Mapping[str, str],
    events: TextIO | None,
    warn: Callable[[str, str, str], None],
) -> Iterator[Progress]:
    """Show progress while the block runs.

    Args:
        choice: What the user asked for; `auto` takes bars where `stream` is a terminal that can draw.
        stream: The stream for bars.
        say: Writes one plain line.
        color: Whether bars may be colored.
        environ: The environment, for TERM.
        events: File for events, or None; the caller closes it.
        warn: Takes the code, the message and the hint of each warning, once bars and lines are done.
    """
    with ExitStack() as stack:
        warnings = Warnings(warn)
        stack.callback(warnings.flush)
        parts: list[Progress] = [warnings]
        if events is not None:
            parts.append(EventLog(events, time.monotonic))
        bars = choice is ProgressChoice.AUTO and is_terminal(stream) and environ.get("TERM") != "dumb"
        if bars:
            parts.append(stack.enter_context(_bars(stream, color=color)))
        elif choice is not ProgressChoice.NONE:
            parts.append(stack.enter_context(_beating(PlainLines(say))))
        yield Fanout(parts)


@contextmanager
def _beating(lines: PlainLines) -> Iterator[PlainLines]:
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(_TICK_SECONDS):
            lines.beat()

    thread = threading.Thread(target=watch, name="precast-progress", daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        stop.set()
        thread.join()


@contextmanager
def _bars(stream: TextIO, *, color: bool) -> Iterator[Bars]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[label]}", markup=False),
    )
    with Progress(*columns, console=Console(file=stream, no_color=not color)) as display:
        yield Bars(display)
