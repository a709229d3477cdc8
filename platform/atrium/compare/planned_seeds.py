"""A planned number of seeds, and the looks at which a verdict is given before all of them are in.

Testing after each new seed until a verdict appears finds differences between equal methods. A plan that was
recorded before the first run says when verdicts are given: once, at the planned number of seeds, or at J
looks at the level alpha / J each. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NOT_PLANNED = (
    "number of seeds not planned: if tested after every new seed, up to 16 % of equal methods are called "
    "different by ten seeds"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPlan:
    """A number of seeds per arm, and the numbers of seeds at which verdicts are given; the last is all."""

    num_seeds: int
    looks: tuple[int, ...] = ()

    @property
    def all_looks(self) -> tuple[int, ...]:
        """The looks, or the one at the end."""
        return self.looks or (self.num_seeds,)

    def look(self, num_in: int) -> int | None:
        """How many seeds per arm the latest look is over, with `num_in` in; None before the first."""
        return max((look for look in self.all_looks if look <= num_in), default=None)

    def words(self, num_in: int) -> str:
        """`3 of 5 planned seeds`."""
        return f"{min(num_in, self.num_seeds)} of {self.num_seeds} planned seeds"


def first_seeds(started: Sequence[tuple[float, int]], num: int) -> list[int]:
    """The first `num` seeds by when their runs began (seconds, seed), which no outcome can influence."""
    return sorted(seed for _, seed in sorted(started)[:num])
