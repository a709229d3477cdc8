"""The page docs/methods.md, generated from the YAML files: every method, divergence and regularizer.

Papers, equations and deviations are those that a file's header comment names; nothing is added to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from atrium.catalog.axes import axes
from atrium.config.presets import Preset, names, own_overrides, read_divergence, read_part
from atrium.method.words import window_text
from atrium.peers.trainers import TRAINERS, WANTS

_ARXIV = re.compile(r"\b(\d{4}\.\d{5})\b")
_PLACE = re.compile(
    r"\b[Ee]q\. \d+(?:(?:, | and | to )\d+)*|\bTables? \d+(?: and \d+)?|\bAlgorithm \d+|\bAppendix [A-Z]\b"
    r"|\bsection \d+(?:\.\d+)*|\bTheorem \d+(?:\.\d+)?"
)
_DEVIATION = "Differs:"
_AS_OF = "As of:"
_INTRODUCTION = """\
# Methods

Generated from the files of `conf/` by `make docs`; do not edit. A method is a choice on a few axes, one
file of `conf/algorithm` each, and adds no code; [architecture.md](architecture.md) says what the axes are,
and [conf/algorithm/README.md](../conf/algorithm/README.md) which methods are left out and why.

`atrium objectives ALG ALG` shows methods side by side with every setting, and `atrium windows` which
windows are the same. The on-policy law says what the gradient is while the policy is still the one that
sampled, compared with A grad log pi: `exact` is equal, `scaled` equal up to a factor, `expectation` equal
on average, `differs` something else.
"""
_SHARED = (
    ("Group deviation", "over n - 1, plus 1e-6; `algorithm.advantage`", "TRL adds 1e-4"),
    ("Group of one", "refused where it is the baseline; its advantage is 0", "verl keeps the reward"),
    ("Statistics of rewards", "float64", "float32, or the input's"),
    ("Rows without tokens", "count nowhere", "TRL, and verl's geo_mean, count them in means over rows"),
    ("Nothing to train on", "loss and gradient 0", "verl NaN"),
    (
        "Rejected tokens",
        "stay in the denominators; `algorithm.reduction.counts=kept` takes out those of a correction",
        "verl takes those that a rollout correction rejects out of the mean",
    ),
    (
        "Log-ratios",
        "held within +-20 before they are exponentiated; `algorithm.log_ratio_limit`",
        "verl 20, at most 10 for gspo, none for clip_cov, kl_cov, geo_mean; TRL none, but for vespo",
    ),
    ("Clip", "no dual clip unless it is the surrogate", "verl always has one at 3; TRL where delta is set"),
    ("Value of a KL penalty", "not clamped", "verl's k3, and RPG's but FKL, within +-10"),
    (
        "Weight of k3",
        "none, or by `regularizer.kl.correction`",
        "TRL multiplies by the loss's ratio, which changes the gradient even at ratio 1",
    ),
    ("Cut token, score form", "value 0", "RPG's code a constant"),
    (
        "Corrections for the engine",
        "multiply the policy's term",
        "verl's losses of dro and kl_cov multiply the penalty too",
    ),
    (
        "Entropy bonus",
        "reduced as the loss; `regularizer.entropy.reduction=token_mean` for its mean per token",
        "verl as the loss, TRL the mean per token: 40 times less under sums over 40 tokens",
    ),
    (
        "Sequence ratios",
        "each token gets its own coefficient, as in GSPO-token",
        "TRL differentiates the ratio, so all get the row's mean",
    ),
    ("SAPO in float32", "sigmoid(-x)", "verl 1 - sigmoid(x), which cancels near 1"),
)
"""What all methods share, and what verl, TRL or a paper's authors do instead, as read in their code."""


_IN_TRAINERS = """\
[trainers.md](trainers.md) says how. A method *runs* where its trainer provides all inputs; otherwise
the table names the missing ones. Where a trainer's name has an asterisk, that is read from its documentation:
none of its code has run beside Atrium's."""


_OVERVIEW = """\
*As of* is the month of a paper's first arXiv version, and the version or commit of the code that the file
follows."""


def methods_page(presets: Sequence[Preset]) -> str:
    """The whole page as Markdown."""
    lines = [_INTRODUCTION, "## What all methods share", ""]
    lines += ["The other trainers are verl 0.9.1 and TRL 1.16.0.", ""]
    lines += [*_table(("point", "here", "elsewhere"), _SHARED), ""]
    lines += ["## In other trainers", "", _IN_TRAINERS, "", *_in_trainers(presets), ""]
    lines += [*(f"- {_wish(key)}: {meaning}." for key, meaning in WANTS.items()), ""]
    lines += ["## All methods", "", _OVERVIEW, "", *_overview(presets), ""]
    for preset in presets:
        lines += _section(preset)
    for group, title in (("divergence", "Divergences"), ("regularizer", "Regularizers")):
        lines += [f"## {title}", "", *_parts(group), ""]
    return "\n".join(lines).rstrip() + "\n"


def papers(header: str) -> list[str]:
    """The arXiv ids that a header names, each once."""
    return list(dict.fromkeys(_ARXIV.findall(header)))


def places(header: str) -> list[str]:
    """The equations, tables, algorithms and sections that a header names, each once."""
    found = _PLACE.findall(" ".join(header.split()))
    return list(dict.fromkeys(place.replace("Eq.", "eq.") for place in found))


def deviation(header: str) -> tuple[str, str]:
    """A header's text before its `Differs:`, and what comes after it (empty where there is none)."""
    lines = (line for line in header.splitlines() if not line.startswith(_AS_OF))
    text = " ".join(" ".join(lines).split())
    before, _, after = text.partition(_DEVIATION)
    return before.strip(), after.strip()


def as_of(header: str) -> str:
    """The date, version or commit of the source, from the header's line `As of:`; empty without one."""
    lines = (line.removeprefix(_AS_OF) for line in header.splitlines() if line.startswith(_AS_OF))
    return next(lines, "").strip().removesuffix(".")


def _overview(presets: Sequence[Preset]) -> list[str]:
    rows = []
    for preset in presets:
        chosen = axes(preset)
        link = f"[{preset.name}](#{preset.name})"
        cited = ", ".join(map(_link, papers(preset.file.header)))
        source = (cited, as_of(preset.file.header))
        rows.append((link, *source, chosen["surrogate"], chosen["divergence"], chosen["window [l, u]"]))
    return _table(("method", "paper", "as of", "surrogate", "divergence", "window [l, u]"), rows)


def _in_trainers(presets: Sequence[Preset]) -> list[str]:
    rows = []
    for preset in presets:
        lacking = (trainer.lacks(preset.method) for trainer in TRAINERS)
        cells = (", ".join(map(_wish, keys)) or "runs" for keys in lacking)
        rows.append((f"[{preset.name}](#{preset.name})", *cells))
    titles = (trainer.name if trainer.is_tested else f"{trainer.name}*" for trainer in TRAINERS)
    return _table(("method", *titles), rows)


def _wish(key: str) -> str:
    return key.replace("_", " ")


def _section(preset: Preset) -> list[str]:
    header = preset.file.header
    text, differs = deviation(header)
    lines = [f"### {preset.name}", "", _linked(text), ""]
    facts = []
    if differs:
        facts.append(f"- **Differs**: {_linked(differs)}")
    if found := papers(header):
        facts.append(f"- **Paper**: {', '.join(f'arXiv {_link(identifier)}' for identifier in found)}")
    if cited := places(header):
        facts.append(f"- **Where in the paper**: {', '.join(cited)}")
    if source := as_of(header):
        facts.append(f"- **As of**: {source}")
    own = [f"`{group}={option}`" for group, option in own_overrides(preset.file).items()]
    built = f"`{preset.parent}`" if preset.parent else "nothing"
    chosen = f", with {', '.join(own)}" if own else ""
    facts.append(f"- **Builds on**: {built}{chosen}; run it with `atrium train algorithm={preset.name}`")
    rows = [(title, f"`{value}`") for title, value in axes(preset).items() if value]
    return [*lines, *facts, "", *_table(("axis", "choice"), rows), ""]


def _parts(group: str) -> list[str]:
    rows = []
    for name in names(group):
        cells = [f"`{name}`", _linked(" ".join(read_part(group, name).header.split()))]
        rows.append([*cells, window_text(read_divergence(name))] if group == "divergence" else cells)
    titles = ("file", "what it is", "window [l, u]")
    return _table(titles[: len(rows[0])], rows)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    escaped = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}", *(f"| {row} |" for row in escaped)]


def _linked(text: str) -> str:
    return _ARXIV.sub(lambda match: _link(match[1]), text)


def _link(identifier: str) -> str:
    return f"[{identifier}](https://arxiv.org/abs/{identifier})"
