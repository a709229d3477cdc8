"""Pairing of two arms' seeds, which depends on the seed numbers alone and never on outcomes.

Equal seeds share problems, initialization and random draws. They are paired if at least three seeds are
common and these are at least two thirds of each arm's seeds. Otherwise all runs of both arms are used and
seeds are not paired, so that renumbering the seeds of an arm changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

MIN_COMMON_SEEDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPairing:
    """The seeds used in the difference of two arms, ascending; paired arms have equal seeds.

    `num_left_out` is the number of runs of both arms that are left out of a pairing because the other arm
    lacks their seeds.
    """

    is_paired: bool
    baseline: tuple[int, ...]
    candidate: tuple[int, ...]
    num_left_out: int = 0

    @property
    def num_seeds(self) -> tuple[int, int]:
        """The numbers of runs of the baseline and of the candidate."""
        return len(self.baseline), len(self.candidate)

    @property
    def words(self) -> str:
        """The pairing as text: `paired seeds 0–4`, or `unpaired: seeds 10–12 against 0–7`.

        The candidate's seeds come first.
        """
        if self.is_paired:
            return f"paired seeds {ranges_text(self.baseline)}"
        seeds = "seed" if len(self.candidate) == len(self.baseline) == 1 else "seeds"
        return f"unpaired: {seeds} {ranges_text(self.candidate)} against {ranges_text(self.baseline)}"


def pair_seeds(baseline: Collection[int], candidate: Collection[int]) -> SeedPairing:
    """Return the seeds to compare: the arms' common seeds if they are paired, or else all seeds.

    The arms are paired if they share at least `MIN_COMMON_SEEDS` seeds and at least two thirds of the seeds
    of the larger arm.
    """
    common = tuple(sorted(set(baseline) & set(candidate)))
    sizes = len(set(baseline)), len(set(candidate))
    if len(common) >= MIN_COMMON_SEEDS and 3 * len(common) >= 2 * max(sizes):
        num_left_out = sum(sizes) - 2 * len(common)
        return SeedPairing(is_paired=True, baseline=common, candidate=common, num_left_out=num_left_out)
    return SeedPairing(
        is_paired=False, baseline=tuple(sorted(set(baseline))), candidate=tuple(sorted(set(candidate)))
    )


def ranges_text(numbers: Sequence[int]) -> str:
    """Format ascending numbers, with three or more consecutive ones as a range: `0, 4–7`."""
    runs: list[list[int]] = []
    for one in numbers:
        if runs and one == runs[-1][-1] + 1:
            runs[-1].append(one)
        else:
            runs.append([one])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
