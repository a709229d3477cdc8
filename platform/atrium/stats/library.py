"""The function `compare`, which compares methods from plain arrays as `atrium compare` compares runs.

Other programs use this module. It imports numpy and scipy, but no package of Atrium that handles models or
runs.

Axes: M methods, S seeds, P problems, K samples per problem.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atrium.stats.arm_pairs import Pair, ScoredArms
from atrium.stats.arrays import Floats
from atrium.stats.clusters import cluster_numbers
from atrium.stats.crossed import SHARES, CrossedMean, crossed_mean
from atrium.stats.simultaneous import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedMethods:
    """Methods with their mean scores, and every method compared with the baseline.

    `scores` are means over all seeds of a method. Each pair has a verdict, two intervals of the difference
    (`pair.new_seeds_and_problems` and, for the same problems, `pair.new_seeds`), a p value and
    `pair.comparison`. `best` is the method that is shown to be the best, or None if no method is. `notes` say
    how many seeds, problems and answers are missing. Scores and differences are fractions of 1; sentences
    state them in points.
    """

    baseline: str
    scores: Mapping[str, CrossedMean]
    pairs: tuple[Pair, ...]
    best: str | None
    num_problems: int
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """Return a sentence for each pair, the best method and the notes, one per line."""
        best = [] if self.best is None else [f"{self.best} is shown to be the best"]
        return "\n".join([*(pair.words for pair in self.pairs), *best, *self.notes])


def compare(
    scores: ArrayLike | Mapping[str, ArrayLike],
    *,
    names: Sequence[str] | None = None,
    seeds: Mapping[str, Sequence[int]] | None = None,
    baseline: str | None = None,
    paired: bool | None = None,
    clusters: Sequence[str | None] | None = None,
    diverged: Mapping[str, Collection[int]] | None = None,
) -> ComparedMethods:
    """Compare methods that answered the same problems, with the statistics of `atrium compare`.

    `scores` is an array [M, S, P, K] of answers (1 or True if correct, 0 if wrong), or an array [M, S, P] of
    each problem's share of correct answers in [0, 1] (Mean@K or Pass@k). It may also map each method's name
    to an array [S, P, K] or [S, P]; methods may then differ in S and K. NaN is a missing value. Seeds without
    any answer and problems that some seed did not answer are left out. A problem's share is computed from its
    answers that are not missing.

    `names` are the methods' names (default: `method 0`, `method 1`, ...), and `baseline` is one of them
    (default: the first). `seeds` lists the random seed of each row by method (default: 0, 1, ...). If
    `paired` is True, all methods must have the same seeds, which are paired however few they are; equal seeds
    must share problems, initialization and random draws. If `paired` is False, no seeds are paired. With
    None, seeds are paired if at least three are common and these are at least two thirds of each method's
    seeds. `clusters` names each problem's contest or source. `diverged` lists the seeds that diverged, by
    method. A verdict must then hold both if these seeds count with their scores and if they count as always
    wrong.

    Intervals are simultaneous over all pairs (Bonferroni). docs/statistics.md has the formulas. Raises
    `ValueError` for values outside [0, 1], wrong shapes, unknown names or seeds, seeds that differ although
    `paired` is True, and if no problem was answered by all seeds.
    """
    arms = _named(scores, names)
    if len(arms) < 2:
        raise ValueError(f"scores must contain at least two methods, got {len(arms)}")
    base = next(iter(arms)) if baseline is None else baseline
    for name in {base, *(seeds or {}), *(diverged or {})} - arms.keys():
        raise ValueError(f"unknown method {name!r}; use one of {', '.join(arms)}")
    shares, own_seeds, notes = _shares(arms, seeds or {})
    if paired and len(set(own_seeds.values())) > 1:
        raise ValueError("paired methods must have the same seeds; remove the others, or set paired=None")
    bad = {name: sorted((diverged or {}).get(name, ())) for name in arms}
    if unknown := [
        f"{name}: diverged has seed {one}" for name in arms for one in bad[name] if one not in own_seeds[name]
    ]:
        raise ValueError(f"{unknown[0]}, which has no answers; remove it from diverged")
    is_complete_P = _complete(shares, clusters, notes)
    kept = [one for one, is_kept in zip(clusters or (), is_complete_P, strict=False) if is_kept]
    scored = ScoredArms(
        values={name: [share_SP[:, is_complete_P]] for name, share_SP in shares.items()},
        seeds=own_seeds,
        family=Family(num_candidates=len(arms) - 1),
        clusters=[cluster_numbers(kept)] if kept else None,
        is_paired=paired,
    )
    return ComparedMethods(
        baseline=base,
        scores={
            name: crossed_mean(values, clusters=scored.clusters, limits=SHARES)
            for name, values in scored.values.items()
        },
        pairs=tuple(scored.pairs(base, bad)),
        best=scored.best(bad),
        num_problems=int(is_complete_P.sum()),
        notes=tuple(notes),
    )


def _complete(
    shares: Mapping[str, Floats], clusters: Sequence[str | None] | None, notes: list[str]
) -> NDArray[np.bool_]:
    """Return a mask [P] of the problems that all seeds answered, and add a note on the other problems."""
    is_complete_P: NDArray[np.bool_] = np.isfinite(np.concatenate(list(shares.values()))).all(axis=0)
    num = len(is_complete_P)
    if clusters is not None and len(clusters) != num:
        raise ValueError(f"clusters must have {num} names, one for each problem")
    if not is_complete_P.any():
        raise ValueError("at least one problem must have an answer from every seed of every method")
    if num_left := num - int(is_complete_P.sum()):
        notes.append(f"{num_left} of {num} problems are left out, since some seed has no answer")
    return is_complete_P


def _named(scores: ArrayLike | Mapping[str, ArrayLike], names: Sequence[str] | None) -> dict[str, Floats]:
    """Return the values of each method [S, P] or [S, P, K] by name."""
    if isinstance(scores, Mapping):
        if names is not None:
            raise ValueError(
                "names cannot be given if scores is a mapping, whose keys are the names; remove names"
            )
        arms = {name: np.asarray(value, dtype=np.float64) for name, value in scores.items()}
    else:
        values = np.atleast_1d(np.asarray(scores, dtype=np.float64))
        listed = [f"method {place}" for place in range(len(values))] if names is None else list(names)
        if len(set(listed)) < len(listed) or len(listed) != len(values):
            raise ValueError(f"names must be {len(values)} different names, one for each method")
        arms = dict(zip(listed, values, strict=True))
    for name, value in arms.items():
        if value.ndim not in (2, 3) or not value.size:
            raise ValueError(
                f"{name}: values must have the shape seeds x problems (x samples), got {value.shape}"
            )
        if not (np.isnan(value) | ((value >= 0.0) & (value <= 1.0))).all():
            raise ValueError(f"{name}: values must be between 0 and 1, or NaN if missing")
    if len({value.shape[1] for value in arms.values()}) > 1:
        raise ValueError("all methods must have the same problems in the same order")
    return arms


def _shares(
    arms: Mapping[str, Floats], seeds: Mapping[str, Sequence[int]]
) -> tuple[dict[str, Floats], dict[str, tuple[int, ...]], list[str]]:
    """Return each method's shares of correct answers [S, P], its seeds in ascending order, and notes.

    Seeds without any answer are left out. The notes say how many seeds and answers are missing.
    """
    shares, kept, notes = {}, {}, []
    for name, value in arms.items():
        numbers = list(seeds.get(name, range(len(value))))
        if len(set(numbers)) < len(numbers) or len(numbers) != len(value):
            raise ValueError(f"{name}: seeds must be {len(value)} different numbers, one for each row")
        value_SPK = value if value.ndim == 3 else value[:, :, None]
        is_known = np.isfinite(value_SPK)
        num_SP = is_known.sum(axis=2)
        with np.errstate(invalid="ignore"):
            share_SP = np.where(is_known, value_SPK, 0.0).sum(axis=2) / num_SP
        rows = [row for row in np.argsort(numbers) if num_SP[row].any()]
        if not rows:
            raise ValueError(f"{name}: all values are NaN; give at least one number")
        shares[name], kept[name] = share_SP[rows], tuple(int(numbers[row]) for row in rows)
        if len(rows) < len(value):
            notes.append(f"{name}: {len(value) - len(rows)} of {len(value)} seeds have no answers")
        num_SP = num_SP[rows]
        if num_missing := int((value_SPK.shape[2] - num_SP)[num_SP > 0].sum()):
            num_all = num_SP.size * value_SPK.shape[2]
            notes.append(f"{name}: {num_missing} of {num_all} answers are missing where others exist")
    return shares, kept, notes
