"""A display of a run's progress as lines of text, for the run's log and for pipes."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping

from atrium.base.metrics import CLIP_HIGH_FRAC, CLIP_LOW_FRAC, ENTROPY, LENGTH_MEAN, REWARD, part_means
from atrium.base.recorded import as_finite, as_interval
from atrium.base.records import BenchmarkResult
from atrium.document.formatting import counted, duration, number, printable, share, span
from atrium.runs.listener import Listener

_NUM_PLAIN_LINES = 20
_LONGEST_SILENCE_S = 60.0


class StandardOutput:
    """A callable that prints a line to stdout. It does nothing once stdout is closed."""

    def __init__(self) -> None:
        self._is_open = True

    def __call__(self, line: str) -> None:
        """Print one line and flush stdout."""
        if not self._is_open:
            return
        try:
            sys.stdout.write(printable(line) + "\n")
            sys.stdout.flush()
        except (OSError, ValueError, UnicodeEncodeError):
            self._is_open = False  # a closed pipe must not end the run


class Pace:
    """A timer for training steps, which predicts the remaining time from the latest 20 steps."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = self._previous = clock()
        self._durations: deque[float] = deque(maxlen=20)

    @property
    def elapsed_s(self) -> float:
        """The seconds since the timer was created."""
        return self._clock() - self._started

    @property
    def step_s(self) -> float | None:
        """Mean seconds per step over the latest 20 steps, including evaluations.

        None before the first finished step.
        """
        return sum(self._durations) / len(self._durations) if self._durations else None

    def tick(self) -> None:
        """Record a finished step."""
        now = self._clock()
        self._durations.append(now - self._previous)
        self._previous = now

    def left_s(self, num_steps_left: int) -> float | None:
        """Return the predicted seconds for the remaining steps, or None before the first finished step."""
        return None if self.step_s is None else self.step_s * num_steps_left


class LogDisplay(Listener):
    """A listener that reports progress as lines of text.

    It writes about four lines for each set-up phase, about 20 lines during training, and one line for each
    evaluation.
    """

    name = "the display"

    def __init__(self, write: Callable[[str], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._pace: Pace | None = None
        self._num_steps = 0
        self._phase, self._total, self._done = "", 0, 0
        self._phase_started = self._last_line = clock()

    def begin(self, *, step: int, num_steps: int, title: str = "") -> None:
        """Print a line about the start of training. `step` is the last finished step."""
        self._num_steps = num_steps
        self._pace = Pace(self._clock)
        after = f", after step {step}" if step else ""
        self._line(f"{title}: {counted(num_steps, 'step')}{after}")

    def phase(self, name: str, total: int | None = None) -> None:
        """Start a phase of `total` units of work. This prints nothing; `advance` prints the progress."""
        self._phase, self._total, self._done = name, total or 0, 0
        self._phase_started = self._clock()

    def advance(self, num: int = 1, detail: str = "") -> None:
        """Add `num` finished units to the current phase.

        During set-up, print the progress at every 25 %, and whenever there was no output for a minute.
        """
        before, self._done = self._done, self._done + num
        if self._pace is not None or not self._total:
            return
        is_silent = self._clock() - self._last_line > _LONGEST_SILENCE_S
        if is_silent or 4 * before // self._total != 4 * self._done // self._total:
            spent = duration(self._clock() - self._phase_started)
            parts = (f"{self._phase} {self._done}/{self._total}", detail, spent)
            self._line("  ".join(part for part in parts if part))

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print the first and the last step, about 20 in between, and any step after a minute of silence."""
        if self._pace is None:
            return
        self._pace.tick()
        every = max(self._num_steps // _NUM_PLAIN_LINES, 1)
        is_due = step % every == 0 or step in (1, self._num_steps)
        if is_due or self._clock() - self._last_line > _LONGEST_SILENCE_S:
            self._line(step_line(step, self._num_steps, metrics, self._pace))

    def evaluation(self, result: BenchmarkResult) -> None:
        """Print the main results of an evaluation.

        The line names the step unless the evaluation is at step 0 and `begin` has not been called.
        """
        step = "" if self._pace is None and result.step == 0 else f" at step {result.step}"
        self._line(f"evaluation{step}: {result.benchmark}  {evaluation_text(result.results)}")

    def message(self, text: str) -> None:
        """Print a message."""
        self._line(text)

    def _line(self, text: str) -> None:
        self._last_line = self._clock()
        self._write(text)


def step_line(step: int, num_steps: int, metrics: Mapping[str, float], pace: Pace) -> str:
    """Format a training step as a line: main metrics, seconds per step, and the remaining time."""
    left_s, step_s = pace.left_s(num_steps - step), pace.step_s
    high, low = (share(metrics.get(name)) for name in (CLIP_HIGH_FRAC.name, CLIP_LOW_FRAC.name))
    parts = [
        f"step {step:>{len(str(num_steps))}}/{num_steps}",
        f"reward {_aligned(metrics.get(REWARD.name), 6, 3)}",
        *(f"{name} {_aligned(metrics[mean.name], 6, 3)}" for name, mean in part_means(metrics).items()),
        f"entropy {_aligned(metrics.get(ENTROPY.name), 5, 3)}",
        f"length {_aligned(metrics.get(LENGTH_MEAN.name), 5, 1)}",
        f"clipped high {high:>6} low {low:>6}",
        f"{number(step_s)} s/step",
    ]
    if left_s is not None and step < num_steps:
        parts.append(f"{duration(left_s)} left")
    return "  ".join(parts)


def _aligned(value: float | None, width: int, digits: int) -> str:
    return f"{'–' if value is None else f'{value:.{digits}f}':>{width}}"


def evaluation_text(results: Mapping[str, object]) -> str:
    """Format an evaluation's main results in one line, with the interval over problems."""
    k = results.get("k", "k")
    mean, passed = (as_finite(results.get(name)) for name in ("mean_at_k", "pass_at_k"))
    text = f"Mean@{k} {share(mean)} {span(as_interval(results.get('interval_over_problems')))}".rstrip()
    text = f"{text}  Pass@{k} {share(passed)}"
    length, cut = (as_finite(results.get(name)) for name in ("completion_length", "truncated_frac"))
    if length is not None and cut is not None:
        text = f"{text}  length {number(length)}  truncated {share(cut)}"
    return text
