"""A comparison as one self-contained HTML page: verdicts, figures, tables, notes. No script, no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from atrium.compare.confounds import confound_lines, environment_lines
from atrium.compare.figures.reports import (
    differences_svg,
    grid_svg,
    pass_at_k_svg,
    plane_svg,
    rewards_svg,
    scores_svg,
    without_point,
)
from atrium.compare.paper_sentences import paper_sentences
from atrium.compare.report_markup import results_latex
from atrium.compare.report_tables import (
    EQUAL_WINDOWS,
    ReportTable,
    best_line,
    headline_pair,
    note_lines,
    plan_line,
    reading_lines,
)
from atrium.compare.report_training import Training
from atrium.compare.run_comparison import RunsComparison

_MOST_NAMED = 4
"""Arms that a title names."""
_STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --dim: #5f6773; --paper: #ffffff; --card: #f6f7f9;
  --line: #dfe3e8; --accent: #0b6bb5; --better: #17794a; --worse: #b3381e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --dim: #9aa4b2; --paper: #14171c;
  --card: #1c2027; --line: #303742; --accent: #62b0ee;
  --better: #5cc78f; --worse: #f08a6c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 36px 24px 72px; }
h1 { font-size: 25px; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 16px; margin: 36px 0 10px; }
.sub { color: var(--dim); margin: 0 0 22px; overflow-wrap: anywhere; }
.verdict { background: var(--card); border-left: 4px solid var(--dim); border-radius: 6px;
  padding: 11px 16px; margin: 9px 0; overflow-wrap: anywhere; }
.verdict.better { border-color: var(--better); } .verdict.worse { border-color: var(--worse); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; width: 100%; }
th { text-align: right; color: var(--dim); font-weight: 500; vertical-align: bottom; }
td { text-align: right; white-space: nowrap; }
td.words { white-space: normal; }
th, td { padding: 6px 10px; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: 0; font-weight: 600; }
td.words, th.words { text-align: left; min-width: 240px; }
svg { width: 100%; height: auto; background: var(--card); border-radius: 8px; }
svg text { fill: var(--ink); font-family: system-ui, sans-serif !important; }
.caption, .notes { color: var(--dim); font-size: 13.5px; } .notes { padding-left: 18px; }
blockquote { margin: 9px 0; padding: 2px 16px; border-left: 4px solid var(--accent); font-size: 16px; }
details { margin: 12px 0; } summary { cursor: pointer; color: var(--dim); font-size: 13.5px; }
pre { overflow-x: auto; background: var(--card); border-radius: 8px; padding: 12px 16px; font-size: 12.5px; }
@media print { main { max-width: none; padding: 0; } }
"""


def html_page(
    comparison: RunsComparison,
    tables: Sequence[ReportTable],
    *,
    made: str,
    training: Training | None = None,
    said: Sequence[str] = (),
) -> str:
    """The whole page; `made` says where and when it was made, and `said` is what claims come to."""
    names = [arm.arm.name for arm in comparison.arms]
    candidates = ", ".join(names[1:]) if len(names) <= _MOST_NAMED else f"{len(names) - 1} methods"
    title = f"{candidates} against {names[0]}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="sub">{escape(made)}</p>',
        *_top(comparison),
        *(_same_method(names) for names in comparison.same_methods),
        *(_verdict(comparison, index) for index in range(1, len(comparison.arms))),
        *_below(comparison),
        *_to_write(comparison),
        *(f'<div class="verdict">{escape(line)}</div>' for line in said),
        "<h2>Differences</h2>",
        differences_svg(comparison),
        *_caption(comparison, "Thin: interval for another exam. Thick: for this exam, over seeds."),
        "<h2>Scores</h2>",
        scores_svg(comparison),
        _scores_caption(comparison),
        *_rewards(comparison, training),
        *_pass_at_k(comparison),
        *_plane(comparison),
        *_grids(comparison),
        *(_table(table) for table in (*tables, *(training.tables if training else ()))),
        "<h2>Notes</h2>",
        '<ul class="notes">',
        *(f"<li>{escape(line)}</li>" for line in (*note_lines(comparison), *reading_lines(comparison))),
        "</ul>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _top(comparison: RunsComparison) -> list[str]:
    """Confounds as boxes, then other versions and machines in small print."""
    boxes = "".join(
        f'<div class="verdict worse">{escape(line)}</div>' for line in confound_lines(comparison.confounds)
    )
    small = "".join(f"<li>{escape(line)}</li>" for line in environment_lines(comparison.environment))
    return [boxes, f'<ul class="notes">{small}</ul>' if small else ""]


def _below(comparison: RunsComparison) -> list[str]:
    """The lines below the verdicts: the best arm, and how the number of seeds was planned."""
    lines = best_line(comparison), plan_line(comparison)
    return [f'<div class="verdict">{escape(line)}.</div>' for line in lines if line]


def _scores_caption(comparison: RunsComparison) -> str:
    lines = "; the line is the interval for another exam" if comparison.has_intervals else ""
    return f'<p class="caption">Every dot is a seed (Mean@K filled, Pass@K open){lines}.</p>'


def _caption(comparison: RunsComparison, text: str) -> list[str]:
    """What lines mean; nothing where no interval is drawn."""
    return [f'<p class="caption">{text}</p>'] if comparison.has_intervals else []


def _to_write(comparison: RunsComparison) -> list[str]:
    """The sentences that may be written, and the table for a paper, folded."""
    sentences = "".join(f"<blockquote>{escape(line)}</blockquote>" for line in paper_sentences(comparison))
    table = escape(results_latex(comparison))
    return [
        f"<h2>What may be written</h2>{sentences}",
        f"<details><summary>The table in LaTeX</summary><pre>{table}</pre></details>",
    ]


def _rewards(comparison: RunsComparison, training: Training | None) -> list[str]:
    if training is None or not any(training.rewards.values()):
        return []
    return [
        "<h2>Training reward</h2>",
        rewards_svg(training.rewards, comparison.places),
        '<p class="caption">Means over seeds by step; shaded from the least to the greatest seed.</p>',
    ]


def _pass_at_k(comparison: RunsComparison) -> list[str]:
    figure = pass_at_k_svg(comparison)
    if not figure:
        return []
    return [
        f"<h2>Pass@k against k, {escape(comparison.headline)}</h2>",
        figure,
        '<p class="caption">Means over seeds, unbiased for every k. Dotted: Mean@K.</p>',
    ]


def _plane(comparison: RunsComparison) -> list[str]:
    figure, rest = plane_svg(comparison), without_point(comparison)
    if not figure:
        return []
    left_out = f" Without a constant window of two sides: {escape(', '.join(rest))}." if rest else ""
    return [
        "<h2>Arms on the (l, u) plane</h2>",
        figure,
        '<p class="caption">A token keeps its gradient while its ratio lies in [l, u]. Equal points cut the '
        f"same tokens, whatever the divergence is called.{left_out}</p>",
    ]


def _grids(comparison: RunsComparison) -> list[str]:
    return [
        part
        for benchmark in comparison.benchmarks
        for part in (
            f"<h2>Who solves what, {escape(benchmark)}</h2>",
            grid_svg(comparison, benchmark),
            '<p class="caption">The stronger the colour, the more answers are correct, over seeds and '
            "samples.</p>",
        )
    ]


def _same_method(names: Sequence[str]) -> str:
    return (
        f'<div class="verdict"><strong>{escape(" and ".join(names))} are the same method</strong>: '
        f"{EQUAL_WINDOWS}; what differs between them is chance.</div>"
    )


def _verdict(comparison: RunsComparison, index: int) -> str:
    arm = comparison.arms[index]
    pair = headline_pair(comparison, arm)
    judged = pair.verdict
    where = f"{comparison.title('mean')}, {comparison.headline}; {pair.design}"
    return (
        f'<div class="verdict {judged.kind}"><strong>{escape(arm.arm.name)}</strong> against '
        f"{escape(comparison.arms[0].arm.name)} ({escape(where)}): {escape(judged.words)}.</div>"
    )


def _table(table: ReportTable) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        inner = "".join(
            f"<{tag}{_words(name)}>{escape(cell)}</{tag}>"
            for name, cell in zip(table.columns, cells, strict=True)
        )
        return f"<tr>{inner}</tr>"

    rows = "".join(row(cells, "td") for cells in table.rows)
    head = row(table.columns, "th")
    return (
        f'<h2>{escape(table.title)}</h2>\n<div class="wide"><table><thead>{head}</thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _words(column: str) -> str:
    return ' class="words"' if column == "verdict" else ""
