"""What is said when an evaluation ends: scores with both intervals, by level and subject, and places."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from atrium.tracking.end_summary import cell, name_to_type
from atrium.tracking.formatting import number, printable, share, span
from atrium.tracking.reader import EvaluationPoint, read_evaluations, read_object, setting
from atrium.tracking.run_folder import RunFolder

_NOT_ESTIMABLE = "not estimable"
_NOTES = (
    "95 % intervals. Over problems: what another exam of such problems would say.",
    "Sampling: what this exam would say, sampled again; of Pass@k and Pass^k it takes 2k samples to tell.",
)


def print_evaluation(folder: RunFolder, console: Console | None = None) -> None:
    """Print what came out of an evaluation, from what its folder holds."""
    console = console or Console(highlight=False, markup=False, emoji=False)
    evaluations = {name: points[-1] for name, points in read_evaluations(folder).items()}
    for point in evaluations.values():
        _print_scores(point, console)
        _print_breakdown(point, console)
    _print_macro(folder, console)
    for note in _NOTES:
        console.print(Text(f"  {note}", style="dim"), soft_wrap=True)
    console.print()
    samples = ", ".join(str(folder.evaluation_path(name, point.step)) for name, point in evaluations.items())
    for label, text in (("record", str(folder.path)), ("samples", samples), *_figures(folder)):
        console.print(Text.assemble((f"  {label:<10}", "cyan"), printable(text)), soft_wrap=True)
    console.print(
        Text.assemble(("  next      ", "cyan"), f"atrium show {printable(name_to_type(folder))}"),
        soft_wrap=True,
    )


def _print_scores(point: EvaluationPoint, console: Console) -> None:
    results, k = point.results, point.k
    num = "" if point.num_problems is None else f"{point.num_problems} problems, "
    console.print()
    console.print(Text(printable(f"{point.benchmark}: {num}{k} samples each"), style="bold"), soft_wrap=True)
    if described := _described(results):
        console.print(Text(printable(f"  {described}"), style="dim"), soft_wrap=True)
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    for title in ("", "score", "over problems", "sampling"):
        table.add_column(title, no_wrap=True)
    for row in _score_rows(point):
        table.add_row(*map(cell, row))
    console.print(Padding(table, (0, 0, 0, 2), expand=False))
    length, cut = _value(results, "completion_length"), _value(results, "truncated_frac")
    verdicts = setting(results, "verdicts")
    shares = verdicts.items() if isinstance(verdicts, Mapping) else ()
    line = f"  mean length {number(length)} tokens   truncated {share(cut)}   " + "   ".join(
        f"{str(name).replace('_', ' ')} {share(float(value))}" for name, value in shares if value
    )
    console.print(Text(printable(line.rstrip())), soft_wrap=True)


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
    if "maj_at_k" in results:
        rows.append(
            (
                f"Maj@{k}",
                share(_value(results, "maj_at_k")),
                span(_bounds(results, "maj_interval_over_problems")),
                "not estimated",
            )
        )
    for label, by_k in (("Pass@", "pass_at"), ("Pass^", "pass_hat")):
        values = setting(results, by_k)
        for at, value in values.items() if isinstance(values, Mapping) else ():
            # With one sample both are Mean@1, which stands above.
            if at != "1" and isinstance(value, int | float):
                intervals = f"{by_k}_intervals.{at}"
                sampling = span(_bounds(results, f"{intervals}.sampling"))
                over = span(_bounds(results, f"{intervals}.over_problems"))
                rows.append((f"{label}{at}", share(float(value)), over, sampling or _NOT_ESTIMABLE))
    return rows


def _described(results: Mapping[str, object]) -> str:
    """How the answers were sampled, in one line."""
    settings = setting(results, "settings")
    if not isinstance(settings, Mapping):
        return ""
    limit, engine = settings.get("max_new_tokens"), settings.get("engine")
    thinking = "thinking" if settings.get("thinking") else "no thinking"
    return (
        f"prompt {settings.get('prompt_template')} (hash {str(settings.get('prompt_template_hash'))[:8]}), "
        f"{thinking}, "
        f"temperature {settings.get('temperature')}, top_p {settings.get('top_p')}, up to {limit} tokens, "
        f"engine {engine}, seed {settings.get('seed')}"
    )


def _print_breakdown(point: EvaluationPoint, console: Console) -> None:
    breakdown = setting(point.results, "breakdown")
    for key, groups in breakdown.items() if isinstance(breakdown, Mapping) else ():
        table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
        k = point.k
        for title in (str(key), "problems", f"Mean@{k}", "over problems", f"Pass@{k}", "length", "truncated"):
            table.add_column(title, no_wrap=True)
        for value, scores in groups.items() if isinstance(groups, Mapping) else ():
            if isinstance(scores, Mapping):
                table.add_row(*map(cell, (str(value), *_group_row(scores))))
        console.print(Padding(table, (1, 0, 0, 2), expand=False))


def _group_row(scores: Mapping[str, object]) -> tuple[str, ...]:
    return (
        str(scores.get("num_problems")),
        share(_value(scores, "mean_at_k")),
        span(_bounds(scores, "interval_over_problems")),
        share(_value(scores, "pass_at_k")),
        number(_value(scores, "completion_length")),
        share(_value(scores, "truncated_frac")),
    )


def _print_macro(folder: RunFolder, console: Console) -> None:
    summary, _ = read_object(folder.summary_file)
    macro = setting(summary, "macro_average")
    console.print()
    if isinstance(macro, Mapping):
        mean = (
            f"{share(_value(macro, 'mean_at_k'))} {span(_bounds(macro, 'interval_over_problems'))}".rstrip()
        )
        passed = f"{share(_value(macro, 'pass_at_k'))} {span(_bounds(macro, 'pass_interval_over_problems'))}"
        text = f"macro average over {macro.get('num_benchmarks')} benchmarks: Mean@K {mean}, Pass@K {passed}"
        console.print(Text(text.rstrip(), style="bold"), soft_wrap=True)
        console.print()


def _figures(folder: RunFolder) -> list[tuple[str, str]]:
    drawn = sorted(folder.figures_dir.glob("pass_at_k-*.png")) if folder.figures_dir.is_dir() else []
    return [("figures", ", ".join(map(str, drawn)))] if drawn else []


def _value(results: Mapping[str, object], key: str) -> float | None:
    value = setting(results, key)
    return float(value) if isinstance(value, int | float) else None


def _bounds(results: Mapping[str, object], key: str) -> tuple[float, float] | None:
    value = setting(results, key)
    return (float(value[0]), float(value[1])) if isinstance(value, list | tuple) and len(value) == 2 else None
