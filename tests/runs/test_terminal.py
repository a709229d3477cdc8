from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest
from rich.console import Console

from atrium.base.records import BenchmarkResult
from atrium.runs.listener import Listeners
from atrium.runs.status import RunState
from atrium.views.live.log_display import LogDisplay, Pace, evaluation_text
from atrium.views.live.terminal_display import TerminalDisplay, displays


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def train(display, clock, metrics, results, num_steps=80, step_s=0.5):
    """Everything that a run tells its display."""
    display.phase("warm-up", 900)
    for _ in range(90):
        clock.now += 0.1
        display.advance(10, "loss 0.5")
    display.begin(step=0, num_steps=num_steps, title="atr, kl3 0.0231, seed 0")
    display.evaluation(BenchmarkResult(step=0, benchmark="test", samples=(), results=results(0.22)))
    for step in range(1, num_steps + 1):
        clock.now += step_s
        display.phase("sampling", 64)
        display.advance(64)
        display.step(step, metrics(step))
        if step % 20 == 0:
            display.evaluation(
                BenchmarkResult(step=step, benchmark="validation", samples=(), results=results(0.8))
            )
    display.message("figures are drawn")
    display.end(RunState.FINISHED)
    display.end(RunState.FINISHED)


@pytest.mark.parametrize(("step", "place"), [(0, ""), (40, " at step 40")])
def test_evaluation_outside_of_training_is_logged_with_the_step_of_its_checkpoint_only(results, step, place):
    lines = []
    LogDisplay(lines.append).evaluation(
        BenchmarkResult(step=step, benchmark="test", samples=(), results=results(0.22))
    )
    assert lines == [f"evaluation{place}: test  Mean@8 22.0 % [12.0, 32.0]  Pass@8 42.0 %"]


def test_a_log_has_a_line_per_quarter_of_set_up_and_about_twenty_of_training(metrics, results):
    lines, clock = [], Clock()
    train(LogDisplay(lines.append, clock), clock, metrics, results)
    assert lines[0] == "warm-up 230/900  loss 0.5  2 s"
    assert lines[3] == "warm-up 900/900  loss 0.5  9 s"
    assert lines[4] == "atr, kl3 0.0231, seed 0: 80 steps"
    assert lines[5] == "evaluation at step 0: test  Mean@8 22.0 % [12.0, 32.0]  Pass@8 42.0 %"
    steps = [line for line in lines if line.startswith("step ")]
    assert len(steps) == 21
    assert steps[0].startswith("step  1/80  reward  0.409  entropy 0.246  length  13.3  clipped high  0.1 %")
    assert steps[5].endswith("0.5 s/step  30 s left")
    assert "left" not in steps[-1]
    assert lines[-1] == "figures are drawn"


def test_slow_steps_are_each_told(metrics, results):
    lines, clock = [], Clock()
    train(LogDisplay(lines.append, clock), clock, metrics, results, num_steps=400, step_s=90.0)
    assert sum(line.startswith("step ") for line in lines) == 400


def test_a_resumed_run_says_after_which_step(metrics):
    lines, clock = [], Clock()
    display = LogDisplay(lines.append, clock)
    display.begin(step=40, num_steps=80, title="atr")
    clock.now += 2.0
    display.step(41, metrics(41))
    display.step(80, metrics(80))
    assert lines[0] == "atr: 80 steps, after step 40"
    assert lines[-1].startswith("step 80/80")


def test_a_step_without_any_metric_is_a_line_all_the_same():
    lines, clock = [], Clock()
    display = LogDisplay(lines.append, clock)
    display.step(1, {})
    display.begin(step=0, num_steps=1, title="x")
    display.step(1, {})
    assert lines[1].startswith("step 1/1  reward      –  entropy     –")


def test_the_time_left_follows_the_latest_steps():
    clock = Clock()
    pace = Pace(clock)
    assert pace.left_s(10) is None
    for _ in range(30):
        clock.now += 10.0
        pace.tick()
    for _ in range(20):
        clock.now += 1.0
        pace.tick()
    assert (pace.step_s, pace.left_s(10), pace.elapsed_s) == (1.0, 10.0, 320.0)


def test_results_of_any_form_make_a_line():
    assert evaluation_text({}) == "Mean@k –  Pass@k –"
    assert evaluation_text({"k": 8, "mean_at_k": 0.5, "pass_at_k": 1.0}) == "Mean@8 50.0 %  Pass@8 100.0 %"


def live(clock, width=100):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=width, color_system=None)
    return TerminalDisplay(console, clock), screen


def test_the_live_view_shows_progress_curves_and_evaluations(metrics, results):
    clock = Clock()
    display, screen = live(clock)
    train(display, clock, metrics, results)
    last_frame = screen.getvalue().rpartition("atr, kl3 0.0231, seed 0")[2]
    for text in (
        "step 80/80",
        "100 %",
        "0.5 s/step",
        "reward",
        "0.9",
        "entropy",
        "nats",
        "length",
        "28 tokens",
    ):
        assert text in last_frame
    assert "high 0.1 %  low 0.3 %" in last_frame
    assert "Mean@8 22.0 % [12.0, 32.0]" in last_frame
    assert "step 80  Mean@8 80.0 %" in last_frame
    assert "step 60  Mean@8" not in last_frame
    assert "▁" in last_frame
    assert "█" in last_frame
    assert screen.getvalue().endswith("\x1b[?25h")  # the cursor is back
    assert "figures are drawn" in screen.getvalue()


def test_the_live_view_shows_set_up_with_a_bar(results):
    clock = Clock()
    display, screen = live(clock)
    display.phase("warm-up", 900)
    clock.now = 3.0
    display.advance(450, "loss 0.25")
    display.end(RunState.FINISHED)
    assert "warm-up 450/900" in screen.getvalue()
    assert "50 %" in screen.getvalue()
    assert "loss 0.25  3 s" in screen.getvalue()


def test_text_in_the_live_view_is_text(metrics, results):
    clock = Clock()
    display, screen = live(clock)
    display.begin(step=0, num_steps=2, title="[red]bold\x1b[2J")
    display.phase("[blink]sampling")
    display.evaluation(
        BenchmarkResult(step=0, benchmark="[bold]b\x1b]0;x\x07", samples=(), results=results(0.5))
    )
    display.message("\x1b[2J[red]gone")
    clock.now = 1.0
    display.step(1, metrics(1))
    display.end(RunState.FINISHED)
    shown = screen.getvalue()
    for text in ("[red]bold\\x1b[2J", "[bold]b\\x1b]0;x\\x07", "\\x1b[2J[red]gone"):
        assert text in shown
    assert "\x1b[2J" not in shown
    assert "\x1b]0;" not in shown


@pytest.mark.parametrize("width", [20, 40, 300])
def test_the_live_view_fits_any_width(metrics, results, width):
    clock = Clock()
    display, screen = live(clock, width)
    train(display, clock, metrics, results, num_steps=3)
    assert "step 3/3"[: width // 4] in screen.getvalue()


def test_without_a_terminal_lines_are_printed_and_logged(capsys, metrics, results):
    logged = []
    display = Listeners(displays("auto", logged.append))
    train(display, Clock(), metrics, results)
    printed = capsys.readouterr().out.splitlines()
    assert printed == logged
    assert len(printed) > 20


def test_off_prints_nothing_and_still_logs(capsys, metrics, results):
    logged = []
    train(Listeners(displays("off", logged.append)), Clock(), metrics, results)
    assert capsys.readouterr().out == ""
    assert len(logged) > 20


TALK = """
import os, sys
from atrium.runs.listener import Listeners
from atrium.views.live.terminal_display import displays
logged = []
display = Listeners(displays("auto", logged.append))
sys.stdin.readline()
for index in range(1000):
    display.message("a line that nobody reads")
os._exit(0 if len(logged) == 1000 else 1)
"""


def test_a_closed_pipe_does_not_stop_training():
    process = subprocess.Popen(
        [sys.executable, "-c", TALK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    _, errors = process.communicate(b"go\n", timeout=60)
    assert process.returncode == 0, errors


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_progress_is_one_line_of_whole_words_in_narrow_terminals(columns, metrics, results):
    screen, clock = io.StringIO(), Clock()
    console = Console(file=screen, width=columns, force_terminal=True, color_system=None)
    display = TerminalDisplay(console, clock)
    display.begin(step=0, num_steps=100_000, title="atr, kl3 0.0231, seed 0")
    for step in range(1, 4):
        clock.now += 12_345.6
        display.step(step, metrics(step))
    display.end(RunState.INTERRUPTED)
    lines = [line.rstrip() for line in screen.getvalue().replace("\r", "\n").split("\n")]
    progress = [line for line in lines if "step 3/100000" in line]
    assert progress
    for line in progress:
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line)
        assert len(shown) <= columns
        assert re.search(
            r"step 3/100000 .* 0 %(  [\d:hd ]+ elapsed)?(  [\d:hd ]+ left)?(  \S+ s/step)?$", shown
        ), shown
