"""Figures from stored rollouts: ratios and clipping of tokens, as recorded at each token's last update.

Axes: N tokens, S sequences.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atrium.base.records import Floats
from atrium.document.document import (
    Axis,
    Bars,
    Bounds,
    Cell,
    Document,
    Figure,
    Grid,
    Lines,
    Picture,
    Series,
    Value,
    plain_table,
    table_document,
)
from atrium.method.method import Method
from atrium.method.objective import Objective
from atrium.theory.gradients import coefficient_map

_MAX_POINTS = 1500
_NUM_TOKENS_NAMED = 10
_MAP_PROBABILITIES = tuple(np.geomspace(0.01, 0.99, 40))
_MAP_RATIOS = tuple(np.geomspace(2.0, 0.5, 17))
_PROBABILITY = "probability q when sampled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The tokens in a run's stored rollouts that were used in an update.

    `probability_N` is the sampling probability q, and `ratio_N` the ratio w that the trust region reads.
    `clipped_N` is 1 for a token clipped at a ratio above 1, -1 for a token clipped at any other ratio, and 0
    for a token that was not clipped. `position_N` counts from 1 within the completion. `effective_by_step`
    maps each step to the effective sample size of its sequences, divided by their number.
    """

    probability_N: Floats
    ratio_N: Floats
    clipped_N: NDArray[np.int64]
    position_N: NDArray[np.int64]
    token_id_N: NDArray[np.int64]
    effective_by_step: Mapping[int, float]

    @property
    def moved_N(self) -> Floats:
        """Change |p - q| of each token's probability. It is meaningful only if ratios are per token."""
        return np.abs(np.minimum(self.ratio_N * self.probability_N, 1.0) - self.probability_N)


def tokens_of(rows_by_step: Mapping[int, Sequence[Mapping[str, Any]]]) -> Tokens | None:
    """Return the usable tokens of stored rollouts, or None if there are none.

    Rows without log-probabilities or recorded ratios are left out, as are tokens with a log-probability or
    ratio that is not finite, and tokens with a ratio of 0.
    """
    columns: list[Floats] = []
    effective = {}
    for step, rows in rows_by_step.items():
        log_weight_S = []
        for row in rows:
            if not row.get("logprobs") or not row.get("ratio"):
                continue
            table_5T = np.array(
                [
                    row["logprobs"],
                    row["ratio"],
                    row["clipped"],
                    np.arange(1, len(row["ratio"]) + 1),
                    row["token_ids"],
                ],
                dtype=np.float64,
            )
            table_5T = table_5T[:, np.isfinite(table_5T[:2]).all(axis=0) & (table_5T[1] > 0.0)]
            columns.append(table_5T)
            log_weight_S.append(np.log(table_5T[1]).sum())
        if log_weight_S:
            weight_S = np.exp(np.array(log_weight_S) - max(log_weight_S))
            effective[step] = float(weight_S.sum() ** 2 / (weight_S**2).sum() / len(weight_S))
    if not any(table_5T.size for table_5T in columns):
        return None
    logprob_N, ratio_N, *whole = np.concatenate(columns, axis=1)
    clipped_N, position_N, token_id_N = (one.astype(np.int64) for one in whole)
    return Tokens(
        probability_N=np.exp(logprob_N),
        ratio_N=ratio_N,
        clipped_N=clipped_N,
        position_N=position_N,
        token_id_N=token_id_N,
        effective_by_step=effective,
    )


def rollout_picture(name: str, method: Method, tokens: Tokens, words: Mapping[int, str]) -> Picture:
    """Return a picture of a run's tokens with six panels; `words` maps known token ids to text."""
    figures: tuple[Figure, ...] = (
        _by_probability(method, tokens, is_ratio=False),
        _by_probability(method, tokens, is_ratio=True),
        _by_position(tokens),
        _effective(tokens),
        _most_clipped(tokens, words),
        _map(method),
    )
    return Picture(name=f"rollouts-{name}", figures=figures, title=name, num_columns=2)


def rollouts_document(found: Mapping[str, Tokens], words: Mapping[str, Mapping[int, str]]) -> Document:
    """Return a document with a table of clipping, ratios and effective sample sizes, one row per run.

    `words` maps the name of a run to the texts of its known token ids.
    """
    rows = []
    for name, tokens in found.items():
        cells: tuple[Cell, ...] = (
            name,
            len(tokens.ratio_N),
            *(Value(float((tokens.clipped_N == side).mean()), "share") for side in (1, -1)),
            Value(float(tokens.moved_N.mean()), "share"),
            Value(float(np.log(tokens.ratio_N).std())),
            Value(min(tokens.effective_by_step.values()), "share"),
            ", ".join(text for text, _ in _clipped_tokens(tokens, words[name])[:5]),
        )
        rows.append(cells)
    columns = (
        *("run", "tokens", "clipped above, %", "clipped below, %", "mean |p - q|, %", "SD of log w"),
        *("smallest effective sample, %", "most often clipped"),
    )
    table = plain_table("Stored rollouts", columns, rows)
    return table_document("rollouts", "Tokens of stored rollouts", table)


def _by_probability(method: Method, tokens: Tokens, *, is_ratio: bool) -> Lines:
    """Return a scatter plot of w (`is_ratio`) or |p - q| against q, with the window's bounds.

    Clipped tokens and all other tokens are separate series.
    """
    y_N = tokens.ratio_N if is_ratio else tokens.moved_N
    kept_N = tokens.clipped_N == 0
    series = [
        _points(name, tokens.probability_N[chosen_N], y_N[chosen_N], place)
        for place, (name, chosen_N) in enumerate((("not clipped", kept_N), ("clipped", ~kept_N)))
    ]
    q_K = np.geomspace(1e-4, 0.999, 80)
    windows = [method.divergence.window_at(float(q)) or method.divergence.window() for q in q_K]
    for side in ("lower", "upper"):
        bounds = [None if one is None else getattr(one, side) for one in windows]
        ends = [
            bound if is_ratio or bound is None else abs(bound - 1.0) * q
            for bound, q in zip(bounds, q_K, strict=True)
        ]
        curve = tuple(end if end is not None and math.isfinite(end) and end > 0.0 else None for end in ends)
        dash: Literal["dashed", "solid"] = "dashed" if side == "lower" else "solid"
        series.append(Series(name=f"{side} bound", x=tuple(map(float, q_K)), y=curve, place=2, dash=dash))
    y = Axis(title="ratio w", scale="log") if is_ratio else Axis(title="change |p - q| (0 to 1)", low=0.0)
    return Lines(
        key=f"rollouts/{'ratio' if is_ratio else 'moved'}",
        title="Ratio" if is_ratio else "Change of a token's probability",
        x=Axis(title=_PROBABILITY, scale="log"),
        y=y,
        series=tuple(series),
    )


def _points(name: str, x_N: Floats, y_N: Floats, place: int) -> Series:
    every = max(1, len(x_N) // _MAX_POINTS)
    x, y = (tuple(map(float, one[::every])) for one in (x_N, y_N))
    return Series(name=name, x=x, y=y, place=place, is_line=False, is_faint=True)


def _by_position(tokens: Tokens) -> Lines:
    """Return curves of the shares of clipped tokens and the mean |p - q|, by position in the completion."""
    edges = np.unique(np.quantile(tokens.position_N, np.linspace(0.0, 1.0, 21)).astype(int))
    bin_N = np.clip(np.searchsorted(edges, tokens.position_N, side="right") - 1, 0, len(edges) - 1)
    known = [number for number in range(len(edges)) if (bin_N == number).any()]

    def curve(name: str, value_N: Floats, place: int) -> Series:
        y = tuple(float(value_N[bin_N == number].mean()) for number in known)
        x = tuple(float(tokens.position_N[bin_N == number].mean()) for number in known)
        return Series(name=name, x=x, y=y, place=place)

    return Lines(
        key="rollouts/position",
        title="By position in the completion",
        x=Axis(title="position of the token", unit="count"),
        y=Axis(title="tokens clipped, %; |p - q|, points", unit="share", low=0.0),
        series=(
            curve("mean |p - q|", tokens.moved_N, 0),
            curve("clipped above", (tokens.clipped_N == 1).astype(float), 1),
            curve("clipped below", (tokens.clipped_N == -1).astype(float), 2),
        ),
    )


def _effective(tokens: Tokens) -> Lines:
    steps, shares = zip(*sorted(tokens.effective_by_step.items()), strict=True)
    series = Series(name="", x=tuple(map(float, steps)), y=shares, has_points=True)
    return Lines(
        key="rollouts/effective",
        title="Effective sample size of sequences",
        caption="(sum w)^2 / sum w^2, divided by the number of sequences; w: product of a sequence's ratios.",
        x=Axis(title="training step", unit="count"),
        y=Axis(title="share of the sequences, %", unit="share", low=0.0, high=1.0),
        series=(series,),
    )


def _clipped_tokens(tokens: Tokens, words: Mapping[int, str]) -> list[tuple[str, float]]:
    """Return the most often clipped tokens as text, and their shares of all clipped tokens."""
    counts = Counter(tokens.token_id_N[tokens.clipped_N != 0].tolist())
    return [
        (_quoted(words[number]) if number in words else f"token {number}", count / counts.total())
        for number, count in counts.most_common(_NUM_TOKENS_NAMED)
    ]


def _quoted(text: str) -> str:
    return "'" + text.replace("\n", "\\n") + "'"


def _most_clipped(tokens: Tokens, words: Mapping[int, str]) -> Bars:
    rows = [Bounds(name=text, inner=(0.0, share)) for text, share in _clipped_tokens(tokens, words)]
    return Bars(
        key="rollouts/clipped",
        title="Tokens most often clipped" if rows else "No token was clipped",
        x=Axis(title="share of all clipped tokens, %", unit="share", low=0.0),
        rows=tuple(rows),
    )


def _map(method: Method) -> Grid:
    """Return a heat map of a token's gradient coefficient by ratio w and behavior probability.

    The advantage moves the token away from w = 1. A value is the absolute coefficient relative to that at w
    = 1, limited to 1.
    """
    found = coefficient_map(Objective(method), _MAP_RATIOS, _MAP_PROBABILITIES)
    return Grid(
        key="rollouts/map",
        title="Coefficient of a token that moves away from w = 1",
        caption=f"Columns: {_PROBABILITY}, 1 to 99 % (log). Dark: at least the coefficient at w = 1. "
        "Pale: 0, or p above 1.",
        x=Axis(),
        rows=tuple(f"w = {ratio:.2f}" for ratio in _MAP_RATIOS),
        values=tuple(tuple(min(abs(value), 1.0) for value in row) for row in found),
        ends=("none", "as at w = 1"),
    )
