"""`atrium evaluate`: a model or a run's checkpoint on benchmarks, all checked before torch is loaded.

Settings are written as for `atrium train`. What is typed is composed and validated in `config.evaluation`;
the evaluation itself is `assemble.evaluation`. At its end scores are printed with both intervals, by level
and subject, and the places of files.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from atrium.assemble.evaluation_choice import interrupted_evaluation, new_evaluation
from atrium.base.loading import loading
from atrium.base.nested import mapping_at, setting
from atrium.base.recorded import as_finite, as_integer, as_interval, read_object
from atrium.cli.parser import CommandParser, files_explained
from atrium.config.earlier import placement_note
from atrium.config.evaluation import (
    EvaluationSettings,
)
from atrium.document.formatting import counted, number, printable, share, span
from atrium.runs.reader import EvaluationPoint, read_evaluations
from atrium.runs.run_folder import RunFolder
from atrium.views.end_summary import name_to_type
from atrium.views.terminal import print_cells, print_json, say, tell

_DESCRIPTION = """\
Evaluate a model on benchmarks: Mean@K, Pass@k, Maj@K and Pass^k with their intervals.

Settings are key=value, as for `atrium train`: model, benchmark, evaluation (sampled, literature, greedy),
evaluation.num_samples for K, grader, rollout, compute. Every finished problem is recorded at once, so an
interrupted evaluation goes on with --resume and repeats nothing."""
_EXAMPLES = """\
examples:
  atrium evaluate model=hub model.source=Qwen/Qwen2.5-Math-1.5B benchmark=aime24 evaluation.num_samples=32
  atrium evaluate --run last                          a run's last checkpoint, as the run evaluates it
  atrium evaluate --run last --best benchmark=math500 evaluation=greedy
  atrium evaluate --resume last                       go on with the latest evaluation
  atrium evaluate --regrade last grader=math_tolerance
"""
_NOT_ESTIMABLE = "not estimable"
_NOTES = (
    "95 % intervals. Over problems: what another exam of such problems would say.",
    "Sampling: what this exam would say, sampled again; of Pass@k and Pass^k it takes 2k samples to tell.",
)


def main(argv: Sequence[str]) -> int:
    """Evaluate as `argv` says and print what came out; the exit code, or an `AtriumError`."""
    parser = _parser()
    arguments = parser.parse(argv)
    overrides: list[str] = arguments.overrides
    resume: Path | None = None
    if arguments.regrade is not None:
        from atrium.cli.regrade import regrade_stored

        if arguments.resume is not None or arguments.run is not None:
            parser.error("--regrade judges what is stored; leave out --run and --resume")
        regrade_stored(arguments.regrade, arguments.runs_dir, overrides, arguments.csv)
        return 0
    if arguments.csv is not None:
        parser.error("--csv belongs to --regrade; `atrium samples --csv` writes an evaluation's rows")
    with files_explained():
        if arguments.resume is not None:
            if overrides or arguments.run is not None:
                parser.error("--resume goes on with the settings there are; leave out the others")
            settings, resume = interrupted_evaluation(arguments.resume, arguments.runs_dir)
        else:
            settings = new_evaluation(
                overrides,
                run=arguments.run,
                best=arguments.best,
                step=arguments.step,
                runs_dir=arguments.runs_dir,
            )
    if arguments.cfg:
        print_json(settings.as_record())
    else:
        _evaluate(settings, overrides, resume)
    return 0


def _parser() -> CommandParser:
    parser = CommandParser("evaluate", _DESCRIPTION, _EXAMPLES)
    parser.add_overrides()
    parser.add_argument(
        "--run", metavar="RUN", help="evaluate a checkpoint of this run: `last`, its name, or its folder"
    )
    parser.add_checkpoint()
    parser.add_argument(
        "--resume", metavar="EVALUATION", help="go on with an evaluation: `last`, its name, or its folder"
    )
    parser.add_argument(
        "--regrade",
        metavar="STORED",
        help="grade stored answers again and say what changed: an evaluation, a run, or a file with gold and "
        "completion (.jsonl, .csv, .parquet), of lm-eval's samples or of lighteval's details",
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="with --regrade: write every answer there")
    parser.add_argument("--cfg", action="store_true", help="show the settings instead of evaluating")
    parser.add_runs_dir()
    return parser


def _evaluate(settings: EvaluationSettings, overrides: Sequence[str], resume: Path | None) -> None:
    from atrium.assemble.beginning import print_notes, set_threads
    from atrium.assemble.checks import check_before_run

    check_before_run(settings.config)
    if resume is None and settings.checkpoint is None:
        print_notes(settings.config, overrides)
    if resume is not None and (note := placement_note(read_object(RunFolder(resume).config_file)[0])):
        sys.stdout.write(f"note: {note}\n")
        RunFolder(resume).append_log(f"note: {note}")
    set_threads(settings.config)
    with loading():  # torch; most mistakes have been found without it
        from atrium.assemble.evaluation import run_evaluation

    folder = run_evaluation(settings, overrides, resume=resume)
    with files_explained():
        print_evaluation(RunFolder(folder))


def print_evaluation(folder: RunFolder, console: Console | None = None) -> None:
    """Print what came out of an evaluation, from what its folder holds."""
    console = console or Console(highlight=False, markup=False, emoji=False)
    evaluations = {name: points[-1] for name, points in read_evaluations(folder).items()}
    for point in evaluations.values():
        _print_scores(point, console)
        _print_breakdown(point, console)
    _print_macro(folder, console)
    for note in _NOTES:
        tell(console, note, "dim", indent=2)
    console.print()
    samples = ", ".join(str(folder.evaluation_path(name, point.step)) for name, point in evaluations.items())
    places = (("record", str(folder.path)), ("samples", samples), *_figures(folder))
    for label, text in (*places, ("next", f"atrium show {name_to_type(folder)}")):
        console.print(Text.assemble((f"  {label:<10}", "cyan"), printable(text)), soft_wrap=True)


def _print_scores(point: EvaluationPoint, console: Console) -> None:
    results, k = point.results, point.k
    num = "" if point.num_problems is None else f"{counted(point.num_problems, 'problem')}, "
    console.print()
    say(console, f"{point.benchmark}: {num}{counted(k, 'sample')} each", "bold")
    if described := _described(results):
        say(console, f"  {described}", "dim")
    print_cells(console, ("", "score", "over problems", "sampling"), _score_rows(point))
    if contest := contest_note(results):
        say(console, f"  {contest}")
    length, cut = as_finite(results.get("completion_length")), as_finite(results.get("truncated_frac"))
    line = f"  mean length {number(length)} tokens   truncated {share(cut)}   " + "   ".join(
        f"{name.replace('_', ' ')} {share(as_finite(value))}"
        for name, value in mapping_at(results, "verdicts").items()
        if value
    )
    say(console, line.rstrip())
    if endless := as_integer(results.get("num_endless_thoughts")):
        cause = "check model.thinking" + (
            ", and evaluation.max_new_tokens (null: rollout.max_new_tokens)" if cut else ""
        )
        say(
            console,
            f"  in {endless} of {results.get('num_samples')} answers the reasoning did not end: {cause}",
        )


def _score_rows(point: EvaluationPoint) -> list[tuple[str, str, str, str]]:
    results, k = point.results, point.k
    rows = [
        (
            f"Mean@{k}",
            share(point.mean_at_k),
            span(point.interval_over_problems),
            span(point.interval_sampling) or _NOT_ESTIMABLE,
        )
    ]
    for at, value in mapping_at(results, "maj_at").items():
        if at != "1":
            over = span(as_interval(setting(results, f"maj_at_intervals.{at}")))
            rows.append((f"Maj@{at}", share(as_finite(value)), over, "not estimated"))
    for label, by_k in (("Pass@", "pass_at"), ("Pass^", "pass_hat")):
        for at, value in mapping_at(results, by_k).items():
            # With one sample both are Mean@1, which stands above.
            if at != "1":
                intervals = f"{by_k}_intervals.{at}"
                sampling = span(as_interval(setting(results, f"{intervals}.sampling")))
                over = span(as_interval(setting(results, f"{intervals}.over_problems")))
                rows.append((f"{label}{at}", share(as_finite(value)), over, sampling or _NOT_ESTIMABLE))
    return rows


def _described(results: Mapping[str, object]) -> str:
    """How the answers were sampled, in one line."""
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


def contest_note(results: Mapping[str, object]) -> str:
    """Whether the model is older than the problems, which is the simplest check for contamination."""
    settings = mapping_at(results, "settings")
    published, released = settings.get("published"), settings.get("released")
    if not published:
        return ""
    if not released:
        return f"problems published {published}; set model.released=YYYY-MM-DD to compare the model's date"
    if str(published) > str(released):
        return f"problems published {published}, after the model's release ({released}): it cannot know them"
    return f"problems published {published}, before the model's release ({released}): it may have seen them"


def _print_breakdown(point: EvaluationPoint, console: Console) -> None:
    breakdown = mapping_at(point.results, "breakdown")
    for key in breakdown:
        k = point.k
        titles = (key, "problems", f"Mean@{k}", "over problems", f"Pass@{k}", "length", "truncated")
        groups = mapping_at(breakdown, key).items()
        rows = [(name, *_group_row(scores)) for name, scores in groups if isinstance(scores, Mapping)]
        print_cells(console, titles, rows, margins=(1, 0))


def _group_row(scores: Mapping[str, object]) -> tuple[str, ...]:
    return (
        str(scores.get("num_problems")),
        share(as_finite(scores.get("mean_at_k"))),
        span(as_interval(setting(scores, "interval_over_problems"))),
        share(as_finite(scores.get("pass_at_k"))),
        number(as_finite(scores.get("completion_length"))),
        share(as_finite(scores.get("truncated_frac"))),
    )


def _print_macro(folder: RunFolder, console: Console) -> None:
    summary, _ = read_object(folder.summary_file)
    console.print()
    if macro := mapping_at(summary, "macro_average"):
        mean, passed = (
            f"{share(as_finite(macro.get(score)))} {span(as_interval(macro.get(interval)))}".rstrip()
            for score, interval in (
                ("mean_at_k", "interval_over_problems"),
                ("pass_at_k", "pass_interval_over_problems"),
            )
        )
        text = f"macro average over {macro.get('num_benchmarks')} benchmarks: Mean@K {mean}, Pass@K {passed}"
        say(console, text, "bold")
        console.print()


def _figures(folder: RunFolder) -> list[tuple[str, str]]:
    drawn = sorted(folder.figures_dir.glob("pass_at_k-*.png")) if folder.figures_dir.is_dir() else []
    return [("figures", ", ".join(map(str, drawn)))] if drawn else []
