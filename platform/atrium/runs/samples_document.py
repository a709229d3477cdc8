"""Documents of evaluations' samples by problem, and passages with samples before and after training."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from atrium.base.errors import RunFolderError
from atrium.document.document import (
    Column,
    Document,
    Passage,
    Row,
    Section,
    Sentence,
    Table,
    Unit,
    Value,
    plain_table,
)
from atrium.document.formatting import counted, shortened
from atrium.runs.layout import steps_in
from atrium.runs.run_folder import RunFolder
from atrium.runs.sample_files import Row as Sample
from atrium.runs.sample_files import read_samples

_SHOWN = ("problem_id", "question", "gold", "sample_index", "text", "verdict", "finish_reason")
_MAX_TEXT = 400
_MAX_CELL = 60


def samples_document(evaluations: Mapping[str, Sequence[Sample]], problem_id: str | None = None) -> Document:
    """Return a document with one row per problem of each evaluation.

    `evaluations` maps benchmarks to their samples. If `problem_id` is given, the document instead has all
    answers to this problem, from every benchmark that contains it. Raises `RunFolderError` if no benchmark
    contains it.
    """
    sections = [
        _problems(name, own) if problem_id is None else _answers(name, own, problem_id)
        for name, rows in evaluations.items()
        if (own := [row for row in rows if problem_id in (None, row["problem_id"])])
    ]
    if not sections and problem_id is not None:
        raise RunFolderError(
            f"the evaluation of {', '.join(evaluations)} has no problem {problem_id!r}; `atrium samples` "
            "lists the problems"
        )
    return Document(key="samples", title="Samples", sections=tuple(sections))


def _mean(values: Sequence[float | None], unit: Unit) -> Value:
    """Return the mean of the values. The mean is unknown if any value is None, as in some imported rows."""
    known = [value for value in values if value is not None]
    return Value(sum(known) / len(known) if len(known) == len(values) else None, unit)


def _problems(name: str, samples: Sequence[Sample]) -> Section:
    """Return a section with one row per problem.

    The columns are the problem id, the number of correct answers, the reference answer, the most frequent
    answer, the mean length in tokens and the share of truncated answers.
    """
    by_problem: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_problem[sample["problem_id"]].append(sample)
    rows = []
    for problem_id, own in by_problem.items():
        answers = [sample["extracted"] for sample in own if sample["extracted"] is not None]
        most = max(answers, key=answers.count, default="")
        cells = (
            problem_id,
            f"{sum(sample['is_correct'] for sample in own)}/{len(own)}",
            shortened(own[0]["gold"], _MAX_CELL),
            shortened(f"{most} ({answers.count(most)})", _MAX_CELL) if answers else "none",
            _mean([sample["num_tokens"] for sample in own], "count"),
            _mean(
                [one and float(one == "length") for one in (sample["finish_reason"] for sample in own)],
                "share",
            ),
        )
        rows.append(Row(cells))
    columns = (
        Column("problem", is_text=True),
        Column("correct"),
        Column("gold", is_text=True),
        Column("most frequent answer", is_text=True),
        Column("length"),
        Column("truncated, %"),
    )
    title = f"{name}: {counted(len(by_problem), 'problem')}"
    return Section(title=name, tables=(Table(title=title, columns=columns, rows=tuple(rows)),))


def _answers(name: str, own: Sequence[Sample], problem_id: str) -> Section:
    """Return a section with one problem, all of its answers, and the reason for each answer's verdict."""
    turns = [Sentence(f"{role}: {text}", "muted") for role, text in json.loads(own[0].get("turns") or "[]")]
    rows = [
        (
            str(sample["sample_index"]),
            "yes" if sample["is_correct"] else "no",
            "none" if sample["extracted"] is None else sample["extracted"],
            sample["verdict"].replace("_", " "),
            sample["reason"],
            sample["finish_reason"],
        )
        for sample in own
    ]
    titles = ("sample", "counts", "extracted", "verdict", "reason", "ended by")
    return Section(
        title=f"{name} {problem_id}",
        sentences=(*turns, Sentence(own[0]["question"]), Sentence(f"gold: {own[0]['gold']}")),
        tables=(plain_table("", titles, rows, is_text=True),),
    )


def before_and_after(folder: RunFolder, num_problems: int) -> list[Passage]:
    """Return a list with one passage: a sample of each of `num_problems` problems before and after training.

    The problems are spread evenly over the benchmark and not chosen by outcome. If no benchmark was evaluated
    twice, rollouts of the first and the last recorded step are shown instead. If a file cannot be read, the
    passage contains the error message. The list is empty if the run has no such samples or `num_problems` is
    0.
    """
    what, files = _first_and_last_files(folder)
    if not files or not num_problems:
        return []
    try:
        samples = {f"step {step}": _first_samples(path) for step, path in files}
    except RunFolderError as error:
        return [Passage(str(error), f"samples: {what}")]
    first, *_, last = [*samples.values()] * 2
    if shared := [problem_id for problem_id in first if problem_id in last]:
        chosen = [(samples, problem_id) for problem_id in spread(shared, num_problems)]
    else:
        chosen = [
            ({when: rows}, problem_id)
            for when, rows in samples.items()
            for problem_id in spread(list(rows), num_problems)
        ]
    lines = [line for shown, problem_id in chosen for line in _problem_lines(shown, problem_id)]
    return [Passage("\n".join(lines), f"samples: {what}")]


def _first_and_last_files(folder: RunFolder) -> tuple[str, list[tuple[int, Path]]]:
    """Return a description of the samples to compare, and the steps and files of these samples.

    The files are those of a benchmark's first and last evaluation. Test problems take precedence over
    validation problems. If no benchmark was evaluated twice, the files are those of the first and last
    recorded rollouts.
    """
    names = [path.name for path in folder.evaluations_dir.glob("*")]
    for benchmark in sorted(names, key=lambda name: ("validation" in name, name)):
        files = steps_in(folder.evaluations_dir / benchmark)
        if len(files) > 1:
            return f"the same {benchmark} problems before and after", [files[0], files[-1]]
    files = steps_in(folder.rollouts_dir)
    return "training rollouts", [files[0], files[-1]] if len(files) > 1 else files


def spread(items: Sequence[str], num: int) -> list[str]:
    """Return `num` evenly spread items, or all items if there are fewer."""
    num = min(num, len(items))
    return [items[(2 * index + 1) * len(items) // (2 * num)] for index in range(num)]


def _first_samples(path: Path) -> dict[str, Sample]:
    """Return the first sample of each problem in a Parquet file, by problem id."""
    found: dict[str, Sample] = {}
    for row in read_samples(path, _SHOWN):
        found.setdefault(str(row.get("problem_id")), row)
    return found


def _problem_lines(samples: Mapping[str, Mapping[str, Sample]], problem_id: str) -> list[str]:
    """Return text lines with a problem and its answer at each step.

    `samples` maps a label of each step, such as `step 40`, to the step's samples by problem id.
    """
    answers = {when: rows[problem_id] for when, rows in samples.items()}
    problem = next(iter(answers.values()))
    lines = [f"{shortened(str(problem.get('question')), _MAX_TEXT)}   gold: {problem.get('gold')}"]
    for when, row in answers.items():
        text = shortened(str(row.get("text")), _MAX_TEXT).replace("\n", "\n" + " " * 26)
        cut = "  (cut off)" if row.get("finish_reason") == "length" else ""
        lines.append(f"  {when:<10}{row.get('verdict')!s:<14}{text}{cut}")
    return lines
