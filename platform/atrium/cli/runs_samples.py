"""Sampled answers side by side: the same problems before and after training, or rollouts of two steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from atrium.errors import RunFolderError
from atrium.tracking.formatting import printable, shortened
from atrium.tracking.layout import steps_in
from atrium.tracking.run_folder import RunFolder
from atrium.tracking.sample_files import Row, read_samples

_COLUMNS = ("problem_id", "question", "gold", "sample_index", "text", "verdict", "finish_reason")
_MAX_TEXT = 400
_STYLES = {"correct": "green", "incorrect": "red", "no_answer": "yellow"}


def print_samples(folder: RunFolder, *, num_problems: int, console: Console) -> None:
    """Print the first sample of a few problems, before and after.

    The problems are spread evenly over the benchmark and not chosen by outcome. Where no benchmark was
    evaluated twice, rollouts of the first and the last recorded step stand in.
    """
    what, files = before_and_after(folder)
    if not files:
        return
    console.print()
    console.print(Text(f"samples: {printable(what)}", style="bold"), soft_wrap=True)
    try:
        samples = {f"step {step}": _first_samples(path) for step, path in files}
    except RunFolderError as error:
        console.print(Text(f"  {printable(str(error))}", "yellow"), soft_wrap=True)
        return
    first, *_, last = [*samples.values()] * 2
    if shared := [problem_id for problem_id in first if problem_id in last]:
        for problem_id in spread(shared, num_problems):
            _print_problem(first[problem_id], console)
            for when, rows in samples.items():
                _print_answer(when, rows[problem_id], console)
        return
    for when, rows in samples.items():
        for problem_id in spread(list(rows), num_problems):
            _print_problem(rows[problem_id], console)
            _print_answer(when, rows[problem_id], console)


def before_and_after(folder: RunFolder) -> tuple[str, list[tuple[int, Path]]]:
    """What is recorded at a first and a last step, in words, and the files; test problems before others."""
    names = (
        [path.name for path in folder.evaluations_dir.iterdir()] if folder.evaluations_dir.is_dir() else []
    )
    for benchmark in sorted(names, key=lambda name: ("validation" in name, name)):
        files = steps_in(folder.evaluations_dir / benchmark)
        if len(files) > 1:
            return f"the same {benchmark} problems before and after", [files[0], files[-1]]
    files = steps_in(folder.rollouts_dir)
    return "training rollouts", [files[0], files[-1]] if len(files) > 1 else files


def spread(items: Sequence[str], num: int) -> list[str]:
    """`num` of the items, evenly spread over all; all of them where there are fewer."""
    num = min(num, len(items))
    return [items[(2 * index + 1) * len(items) // (2 * num)] for index in range(num)]


def _first_samples(path: Path) -> dict[str, Row]:
    """The first sample of each problem, by problem."""
    found: dict[str, Row] = {}
    for row in read_samples(path, _COLUMNS):
        found.setdefault(str(row.get("problem_id")), row)
    return found


def _print_problem(row: Row, console: Console) -> None:
    question = shortened(str(row.get("question")), _MAX_TEXT)
    line = Text.assemble(
        "  ", (printable(question), "bold"), (f"   gold: {printable(str(row.get('gold')))}", "dim")
    )
    console.print(line, soft_wrap=True)


def _print_answer(when: str, row: Row, console: Console) -> None:
    verdict = printable(str(row.get("verdict")))
    text = printable(shortened(str(row.get("text")), _MAX_TEXT)).replace("\n", "\n" + " " * 28)
    line = Text.assemble((f"    {when:<10}", "dim"), (f"{verdict:<14}", _STYLES.get(verdict, "yellow")), text)
    if row.get("finish_reason") == "length":
        line.append("  (cut off)", "dim")
    console.print(line, soft_wrap=True)
