"""Generator of docs/methods.md from the YAML files of methods, divergences and regularizers.

Papers, equations and deviations are taken from the header comments of these files.
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

Generated from the files of `conf/` by `make docs`; do not edit. A method is one file of
`conf/algorithm`, which makes a choice on each of a few axes and needs no code of its own.
[architecture.md](architecture.md) describes the axes, and
[conf/algorithm/README.md](../conf/algorithm/README.md) lists the methods that are left out, with
reasons.

`atrium objectives ALG ALG` compares all settings of methods, and `atrium windows` lists equal
windows. The axis "on policy" compares the gradient with A grad log pi while the policy is still the
one that sampled: `exact` means equal, `scaled` equal up to a factor, `expectation` equal on average,
and `differs` none of these.
"""
_SHARED = (
    ("Standard deviation in a group", "divisor n - 1, plus 1e-6; `algorithm.advantage`", "TRL adds 1e-4"),
    ("Group of one row", "advantage 0; an error for group baselines", "verl: the reward is the advantage"),
    ("Precision of reward statistics", "float64", "float32, or that of the input"),
    ("Rows without tokens", "excluded from means", "TRL, verl's geo_mean: included in means over rows"),
    ("Batch without trained tokens", "loss and gradient are 0", "verl: NaN"),
    (
        "Rejected tokens",
        "included in denominators; `algorithm.reduction.counts=kept` excludes those rejected by a correction",
        "verl excludes those rejected by a rollout correction",
    ),
    (
        "Log-ratios before exp",
        "clamped to +-20; see `algorithm.log_ratio_limit`",
        "verl: +-20, at most 10 for gspo, none for clip_cov, kl_cov and geo_mean; TRL: only for vespo",
    ),
    ("Dual clip", "only if chosen as the surrogate", "verl: always, at 3; TRL: if delta is set"),
    ("Value of a KL penalty", "not clamped", "clamped to +-10 in verl's k3 and in RPG, except its FKL"),
    (
        "Weight of k3",
        "none, or set by `regularizer.kl.correction`",
        "TRL multiplies by the loss's ratio, which changes the gradient even at ratio 1",
    ),
    ("Recorded loss of a clipped token in score-function form", "0", "a constant in RPG's code"),
    (
        "Corrections for the engine's log-probabilities",
        "multiply only the policy's term",
        "verl's losses dro and kl_cov also multiply the penalty",
    ),
    (
        "Reduction of the entropy bonus",
        "that of the loss; `regularizer.entropy.reduction=token_mean` averages over tokens",
        "verl: that of the loss; TRL: mean over tokens, so 1/40 of a sum over 40 tokens",
    ),
    (
        "Sequence ratios",
        "each token has its own coefficient, as in GSPO-token",
        "TRL differentiates the ratio, so all tokens of a row have their mean coefficient",
    ),
    ("SAPO's gate in float32", "sigmoid(-x)", "verl: 1 - sigmoid(x), with cancellation near 1"),
)
"""Numerical choices shared by all methods, and those of verl, TRL or a paper's authors in their code."""


_IN_TRAINERS = """\
[trainers.md](trainers.md) describes the setup. A method *runs* in a trainer that provides all of its
inputs; otherwise the table lists the missing inputs. Entries for trainers with an asterisk follow from
their documentation and are not tested with their code."""


_OVERVIEW = """\
*As of* is the month of the paper's first arXiv version, and the version or commit of the code that the
file follows."""


def methods_page(presets: Sequence[Preset]) -> str:
    """Return the content of docs/methods.md."""
    lines = [_INTRODUCTION, "## What all methods share", ""]
    lines += ["Versions of other trainers: verl 0.9.1 and TRL 1.16.0.", ""]
    lines += [*_table(("quantity", "Atrium", "others"), _SHARED), ""]
    lines += ["## In other trainers", "", _IN_TRAINERS, "", *_in_trainers(presets), ""]
    lines += [*(f"- {_wish(key)}: {meaning}." for key, meaning in WANTS.items()), ""]
    lines += ["## All methods", "", _OVERVIEW, "", *_overview(presets), ""]
    for preset in presets:
        lines += _section(preset)
    for group, title in (("divergence", "Divergences"), ("regularizer", "Regularizers")):
        lines += [f"## {title}", "", *_parts(group), ""]
    return "\n".join(lines).rstrip() + "\n"


def papers(header: str) -> list[str]:
    """Return the distinct arXiv ids in the header comment of a file, in order."""
    return list(dict.fromkeys(_ARXIV.findall(header)))


def places(header: str) -> list[str]:
    """Return the distinct equations, tables, algorithms, appendices and sections that a header names."""
    found = _PLACE.findall(" ".join(header.split()))
    return list(dict.fromkeys(place.replace("Eq.", "eq.") for place in found))


def deviation(header: str) -> tuple[str, str]:
    """Return a header's text before and after `Differs:`, without the line `As of:`.

    The second text is empty if nothing differs.
    """
    lines = (line for line in header.splitlines() if not line.startswith(_AS_OF))
    text = " ".join(" ".join(lines).split())
    before, _, after = text.partition(_DEVIATION)
    return before.strip(), after.strip()


def as_of(header: str) -> str:
    """Return the source's date, version or commit from the header's line `As of:`.

    The result is empty if the header has no such line.
    """
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
        facts.append(f"- **Cited parts**: {', '.join(cited)}")
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
    titles = ("file", "description", "window [l, u]")
    return _table(titles[: len(rows[0])], rows)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    escaped = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}", *(f"| {row} |" for row in escaped)]


def _linked(text: str) -> str:
    return _ARXIV.sub(lambda match: _link(match[1]), text)


def _link(identifier: str) -> str:
    return f"[{identifier}](https://arxiv.org/abs/{identifier})"
