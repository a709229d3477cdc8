"""The live view of training in a terminal: progress, curves, clipped shares and evaluations."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from atrium.base.metrics import CLIP_HIGH_FRAC, CLIP_LOW_FRAC, ENTROPY, LENGTH_MEAN, REWARD
from atrium.base.records import BenchmarkResult
from atrium.document.formatting import duration, number, printable, share, sparkline
from atrium.runs.listener import Listener
from atrium.runs.status import RunState
from atrium.views.live.log_display import LogDisplay, Pace, StandardOutput, evaluation_text

_CURVES = (("reward", REWARD), ("entropy", ENTROPY), ("length", LENGTH_MEAN))
_SHORTEST_REFRESH_S = 0.1
_GAP, _SHORTEST_BAR, _LONGEST_BAR = 2, 4, 36


def displays(mode: str, log: Callable[[str], object]) -> tuple[Listener, ...]:
    """Return the listeners that write lines to `log` and show progress to the user.

    If `mode` is `on`, progress is shown as a live view; if it is `off`, progress is not shown. If it is
    `auto`, progress is shown as a live view if stdout is a terminal, and as plain lines on stdout
    otherwise.
    """
    if mode == "off":
        return (LogDisplay(log),)
    if mode == "on" or sys.stdout.isatty():
        return LogDisplay(log), TerminalDisplay()
    print_line = StandardOutput()

    def write(line: str) -> None:
        print_line(line)
        log(line)

    return (LogDisplay(write),)


class TerminalDisplay(Listener):
    """A listener that shows progress as a live view in a terminal.

    Messages are printed above the view. The view is redrawn at most ten times per second.
    """

    name = "the display"

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._console = console or Console()
        self._title = ""
        self._pace: Pace | None = None
        self._step, self._num_steps = 0, 0
        self._phase, self._total, self._done, self._detail = "", 0, 0, ""
        self._phase_started = clock()
        self._curves: dict[str, list[float]] = {name: [] for name, _ in _CURVES}
        self._metrics: Mapping[str, float] = {}
        self._evaluations: dict[str, list[tuple[int, str]]] = {}
        self._drawn = -1.0
        # One redraw per second keeps the clock running during a long phase without events.
        self._live = Live(get_renderable=self.frame, console=self._console, refresh_per_second=1)

    def begin(self, *, step: int, num_steps: int, title: str = "") -> None:
        """Show the title and the number of steps. `step` is the last finished step."""
        self._title, self._step, self._num_steps = title, step, num_steps
        self._pace = Pace(self._clock)
        self.phase("")

    def phase(self, name: str, total: int | None = None) -> None:
        """Show the start of a phase of `total` units of work. The first phase starts the live view."""
        self._phase, self._total, self._done, self._detail = name, total or 0, 0, ""
        self._phase_started = self._clock()
        self._live.start()  # with the first phase; harmless when called twice
        self._refresh()

    def advance(self, num: int = 1, detail: str = "") -> None:
        """Add `num` finished units to the current phase, and show `detail` next to its progress."""
        self._done += num
        self._detail = detail or self._detail
        self._refresh()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics and curves up to a finished step."""
        self._step, self._metrics = step, metrics
        if self._pace is not None:
            self._pace.tick()
        for name, quantity in _CURVES:
            self._curves[name].append(metrics.get(quantity.name, float("nan")))
        self._refresh()

    def evaluation(self, result: BenchmarkResult) -> None:
        """Show an evaluation. The first and the latest evaluation of each benchmark stay visible."""
        shown = self._evaluations.setdefault(result.benchmark, [])
        shown[1:] = [(result.step, evaluation_text(result.results))]
        self._refresh()

    def message(self, text: str) -> None:
        """Print the text above the live view."""
        self._console.print(Text(printable(text)))

    def end(self, state: RunState, error: str | None = None, cause: str | None = None) -> None:
        """Draw the live view one last time and restore the cursor."""
        if self._live.is_started:
            self._phase = ""
            self._live.stop()

    def frame(self) -> RenderableType:
        """Return the content of the live view: title, progress, phase, curves and evaluations."""
        if self._pace is None:
            return self._phase_line() if self._phase else Text("")
        return Group(
            Text(printable(self._title), style="bold"),
            self._progress_line(self._pace),
            self._phase_line(),
            self._quantities(),
        )

    def _progress_line(self, pace: Pace) -> RenderableType:
        left_s = pace.left_s(self._num_steps - self._step)
        times = [f"{duration(pace.elapsed_s)} elapsed"]
        if left_s is not None and self._step < self._num_steps:
            times.append(f"{duration(left_s)} left")
        times.append(f"{number(pace.step_s)} s/step")
        label = f"step {self._step}/{self._num_steps}"
        return _bar_line(label, self._step, self._num_steps, times, self._console.width)

    def _phase_line(self) -> RenderableType:
        if not self._phase:
            return Text(" ")
        spent = duration(self._clock() - self._phase_started)
        notes = [note for note in (self._detail, spent) if note]
        label = f"{self._phase} {self._done}/{self._total}" if self._total else self._phase
        if self._pace is None and self._total:
            return _bar_line(label, self._done, self._total, notes, self._console.width)
        return Text(f"{printable(label)}  {printable('  '.join(notes))}", style="dim")

    def _quantities(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="cyan")
        table.add_column(justify="right")
        table.add_column(style="cyan")
        for name, quantity in _CURVES:
            values = self._curves[name]
            unit = f" {quantity.unit}" if quantity.unit else ""
            latest = f"{number(values[-1])}{unit}" if values else "–"
            table.add_row(name, latest, Text(sparkline(values)))
        high, low = (self._metrics.get(q.name) for q in (CLIP_HIGH_FRAC, CLIP_LOW_FRAC))
        table.add_row("clipped", "", Text(f"high {share(high)}  low {share(low)}", style="default"))
        for benchmark, shown in self._evaluations.items():
            for step, text in shown:
                table.add_row(Text(printable(benchmark)), f"step {step}", Text(text, style="default"))
        return table

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._drawn >= _SHORTEST_REFRESH_S and self._live.is_started:
            self._drawn = now
            self._live.refresh()


def _bar_line(label: str, done: int, total: int, notes: list[str], room: int) -> Table:
    """Return a line of at most `room` characters with the label, a progress bar, and notes.

    If space is short, the bar shrinks first; then notes are dropped, starting with the first.
    """
    percent = f"{100 * min(done, total) // max(total, 1)} %"
    fixed = cell_len(label) + cell_len(percent) + 3 * _GAP
    while notes and fixed + _SHORTEST_BAR + cell_len("  ".join(notes)) > room:
        notes = notes[1:]
    told = Text("  ".join(notes), style="dim")
    width = max(_SHORTEST_BAR, min(_LONGEST_BAR, room - fixed - told.cell_len))
    bar = ProgressBar(total=max(total, 1), completed=min(done, total), width=width)
    table = Table.grid(padding=(0, _GAP))
    table.add_row(Text(printable(label)), bar, percent, told)
    return table
