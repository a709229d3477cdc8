"""The document of an evaluation, and the tables of a run's evaluations."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from atrium.base.nested import mapping_at, setting
from atrium.base.recorded import as_finite, as_integer, as_interval, read_object
from atrium.document.document import (
    Cell,
    Column,
    Document,
    Estimate,
    Passage,
    Row,
    Section,
    Sentence,
    Table,
    Value,
    plain_table,
)
from atrium.document.formatting import DASH, counted, number, share
from atrium.runs.find import name_to_type
from atrium.runs.reader import EvaluationPoint, read_evaluations
from atrium.runs.run_folder import RunFolder

_INTERVALS = "95 % intervals for new problems of the same kind"
_SCORE_COLUMNS = (Column(""), Column("score, % [over problems]"), Column("sampling"))
_NOTES = (
    "95 % intervals. Over problems: for new problems of the same kind.",
    "Sampling: for new samples of the same problems; for Pass@k and Pass^k this needs 2k samples.",
)


def evaluation_document(folder: RunFolder) -> Document:
    """Return a document with the results of an `atrium evaluate` run: scores, their average, and files.

    Raises `OSError` if `evaluations.jsonl` exists but cannot be read.
    """
    points = _last_points(folder)
    samples = ", ".join(str(folder.evaluation_path(name, point.step)) for name, point in points.items())
    drawn = sorted(folder.figures_dir.glob("pass_at_k-*.png")) if folder.figures_dir.is_dir() else []
    places = [
        f"record      {folder.path}",
        f"samples     {samples}",
        *([f"figures     {', '.join(map(str, drawn))}"] if drawn else []),
        f"next        atrium show {shlex.quote(name_to_type(folder))}",
    ]
    return Document(
        key=f"evaluation/{folder.name}",
        title=folder.name,
        sections=(
            *evaluation_sections(folder),
            Section(title="Files", passages=(Passage("\n".join(places)),)),
        ),
        notes=tuple(map(Sentence, _NOTES)),
    )


def evaluation_sections(folder: RunFolder) -> list[Section]:
    """Return one section per benchmark with its scores, and one section with the average over benchmarks."""
    benchmarks = [_benchmark_section(point) for point in _last_points(folder).values()]
    return [*benchmarks, Section(title="All benchmarks", tables=tuple(_macro_tables(folder)))]


def _last_points(folder: RunFolder) -> dict[str, EvaluationPoint]:
    return {name: points[-1] for name, points in read_evaluations(folder).items()}


def first_and_last_tables(folder: RunFolder) -> list[Table]:
    """Return a list with one table of the first and last evaluation of each benchmark.

    The list is empty if the run has no evaluations.
    """
    rows = []
    for benchmark, points in _test_problems_first(folder).items():
        k, num = _k(points[-1]), _num_problems(points[-1])
        both = (points[0], points[-1] if len(points) > 1 else None)
        rows += [
            (benchmark, f"Mean@{k}", *map(_mean, both)),
            (num, f"Pass@{k}", *map(_passed, both)),
            ("", "", *(f"step {point.step}" if point else "" for point in both)),
        ]
    titles = ("held-out problems", "", "before, %", "after, %")
    return [plain_table("", titles, rows, _INTERVALS, is_text=True)] if rows else []


def evaluation_tables(folder: RunFolder) -> list[Table]:
    """Return one table per benchmark with all evaluations in the run.

    Benchmarks of test problems come before those of validation problems.
    """
    return [_course_table(points) for points in _test_problems_first(folder).values()]


def _course_table(points: Sequence[EvaluationPoint]) -> Table:
    """Return a table with one row for each evaluation of a benchmark.

    The note below the table lists the first and last Mean@k of each group of problems.
    """
    first, last = points[0], points[-1]
    titles = ("step", f"Mean@{_k(last)}, %", "sampling noise", f"Pass@{_k(last)}, %")
    rows = [(str(one.step), _mean(one), _interval(one.interval_sampling), _passed(one)) for one in points]
    noise = "sampling noise: the same problems sampled again"
    return plain_table(
        f"evaluation: {_described_benchmark(last)}",
        titles,
        rows,
        "\n".join((*_breakdown_lines(first, last), f"{_INTERVALS}; {noise}")),
    )


def contest_note(results: Mapping[str, object]) -> str:
    """Return a note on whether the problems were published after the model, or "" if they have no date."""
    settings = mapping_at(results, "settings")
    published, released = settings.get("published"), settings.get("released")
    if not published:
        return ""
    if not released:
        return f"problems published {published}; set model.released=YYYY-MM-DD to compare"
    if str(published) > str(released):
        return f"problems published {published}, after the model's release ({released}): not seen in training"
    when = "before" if str(published) < str(released) else "on the day of"
    return f"problems published {published}, {when} the model's release ({released}): maybe seen in training"


def _test_problems_first(folder: RunFolder) -> dict[str, tuple[EvaluationPoint, ...]]:
    return dict(sorted(read_evaluations(folder).items(), key=lambda one: ("validation" in one[0], one[0])))


def _k(point: EvaluationPoint) -> int | str:
    return "k" if point.k is None else point.k


def _num_problems(point: EvaluationPoint) -> str:
    return "" if point.num_problems is None else counted(point.num_problems, "problem")


def _described_benchmark(point: EvaluationPoint) -> str:
    num = _num_problems(point)
    return f"{point.benchmark}{', ' if num else ''}{num}, {counted(_k(point), 'sample')} each"


def _mean(point: EvaluationPoint | None) -> Cell:
    return None if point is None else Estimate(point.mean_at_k, point.interval_over_problems, "share")


def _passed(point: EvaluationPoint | None) -> Cell:
    return None if point is None else Estimate(point.pass_at_k, point.pass_interval_over_problems, "share")


def _breakdown_lines(first: EvaluationPoint, last: EvaluationPoint) -> list[str]:
    """Return one line per breakdown field, such as `level`, with the first and last Mean@k of each value."""
    lines = []
    breakdown = mapping_at(last.results, "breakdown")
    points = (last,) if first.step == last.step else (first, last)
    for key in breakdown:
        parts = []
        for value in mapping_at(breakdown, key):
            means = [_mean_of(point, key, value) for point in points]
            parts.append(f"{value}: {' → '.join(means)}")
        lines.append(f"by {key}, in %:  {'   '.join(parts)}")
    return lines


def _mean_of(point: EvaluationPoint, key: str, value: str) -> str:
    """Return the Mean@k, in percent, of the problems whose field `key` equals `value`; a dash if missing."""
    group = mapping_at(point.results, f"breakdown.{key}").get(value)
    mean = as_finite(group.get("mean_at_k")) if isinstance(group, Mapping) else None
    return DASH if mean is None else f"{100 * mean:.0f}"


def _benchmark_section(point: EvaluationPoint) -> Section:
    """Return a section with the scores of one benchmark and of its groups of problems."""
    lines = (_described(point.results), contest_note(point.results), *_about_answers(point.results))
    breakdown = mapping_at(point.results, "breakdown")
    return Section(
        title=_described_benchmark(point),
        sentences=tuple(Sentence(line) for line in lines if line),
        tables=(
            Table(title="", columns=_SCORE_COLUMNS, rows=tuple(_score_rows(point))),
            *(_group_table(point, key, mapping_at(breakdown, key)) for key in breakdown),
        ),
    )


def _described(results: Mapping[str, object]) -> str:
    """Describe in one line how the answers were sampled; return "" if this is not recorded."""
    settings = mapping_at(results, "settings")
    if not settings:
        return ""
    limit, engine = settings.get("max_new_tokens"), settings.get("engine")
    thinking = "thinking" if settings.get("thinking") else "no thinking"
    return (
        f"prompt {settings.get('prompt_template')} (hash {str(settings.get('prompt_template_hash'))[:8]}), "
        f"{thinking}, "
        f"temperature {settings.get('temperature')}, top_p {settings.get('top_p')}, up to {limit} tokens, "
        f"engine {engine}, seed {settings.get('seed')}"
    )


def _about_answers(results: Mapping[str, object]) -> list[str]:
    """Return lines about the length, truncation and verdicts of answers, and about unfinished reasoning."""
    length, cut = as_finite(results.get("completion_length")), as_finite(results.get("truncated_frac"))
    verdicts = (
        f"{name.replace('_', ' ')} {share(as_finite(value))}"
        for name, value in mapping_at(results, "verdicts").items()
        if value
    )
    lines = ["   ".join((f"mean length {number(length)} tokens", f"truncated {share(cut)}", *verdicts))]
    if endless := as_integer(results.get("num_endless_thoughts")):
        limit = ", and evaluation.max_new_tokens (null: rollout.max_new_tokens)" if cut else ""
        lines.append(
            f"in {endless} of {results.get('num_samples')} answers the reasoning did not end: check "
            f"model.thinking{limit}"
        )
    return lines


def _score_rows(point: EvaluationPoint) -> list[Row]:
    """Return rows with Mean@k, Maj@k, Pass@k and Pass^k.

    For k=1, only Mean@k has a row, because the others equal it.
    """
    results = point.results
    rows = [Row((f"Mean@{_k(point)}", _mean(point), _sampling(point.interval_sampling)))]
    for at, value in mapping_at(results, "maj_at").items():
        if at != "1":
            score = _estimate(value, setting(results, f"maj_at_intervals.{at}"))
            rows.append(Row((f"Maj@{at}", score, "not estimated")))
    for label, by_k in (("Pass@", "pass_at"), ("Pass^", "pass_hat")):
        for at, value in mapping_at(results, by_k).items():
            if at != "1":
                found = mapping_at(results, f"{by_k}_intervals.{at}")
                score = _estimate(value, found.get("over_problems"))
                rows.append(Row((f"{label}{at}", score, _sampling(found.get("sampling")))))
    return rows


def _estimate(value: object, interval: object) -> Estimate:
    return Estimate(as_finite(value), as_interval(interval), "share")


def _interval(interval: object) -> Estimate:
    return Estimate(None, as_interval(interval), "share")


def _sampling(interval: object) -> Cell:
    found = _interval(interval)
    return "not estimable" if found.interval is None else found


def _group_table(point: EvaluationPoint, key: str, groups: Mapping[str, object]) -> Table:
    """Return a table with the scores of each group of problems; `key` is the field that defines groups."""
    titles = (key, "problems", f"Mean@{_k(point)}, %", f"Pass@{_k(point)}, %", "length", "truncated, %")
    return plain_table(
        "",
        titles,
        [
            (
                name,
                as_integer(scores.get("num_problems")),
                _estimate(scores.get("mean_at_k"), scores.get("interval_over_problems")),
                Value(as_finite(scores.get("pass_at_k")), "share"),
                Value(as_finite(scores.get("completion_length"))),
                Value(as_finite(scores.get("truncated_frac")), "share"),
            )
            for name, scores in groups.items()
            if isinstance(scores, Mapping)
        ],
    )


def _macro_tables(folder: RunFolder) -> list[Table]:
    """Return a list with one table of the macro average over benchmarks.

    The list is empty if the average is not recorded.
    """
    macro = mapping_at(read_object(folder.summary_file)[0], "macro_average")
    if not macro:
        return []
    rows = (
        Row(("Mean@K", _estimate(macro.get("mean_at_k"), macro.get("interval_over_problems")))),
        Row(("Pass@K", _estimate(macro.get("pass_at_k"), macro.get("pass_interval_over_problems")))),
    )
    title = f"macro average over {macro.get('num_benchmarks')} benchmarks"
    return [Table(title=title, columns=_SCORE_COLUMNS[:2], rows=rows)]
