"""Differences between ranks in waiting time, sampling time and memory, and warnings about slow ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from atrium.base import metrics
from atrium.base.plain_files import append_plain
from atrium.train.measure.measurements import Measurements
from atrium.train.ranks.ranks import Ranks

_SLOW = 1.5
"""Multiple of the median rank's time from which a rank is slow."""
_NUM_SLOW_STEPS = 5
"""Number of consecutive slow steps after which a rank is a straggler."""


@dataclass
class RankReport:
    """A report that adds differences between ranks to a step's measurements if there are several ranks.

    `file` receives a line per step with this rank's own values. `log` receives a line when a rank becomes
    slow; a rank that stays slow is not reported again.
    """

    ranks: Ranks = Ranks()
    file: Path | None = None
    log: Callable[[str], None] = lambda _: None
    _waited_s: float = field(default=0.0, init=False)
    _num_slow: dict[int, int] = field(default_factory=dict, init=False)

    def add(self, step: int, measurements: Measurements) -> None:
        """Gather the ranks' values of a step. Times and memory peaks become the maximum over ranks.

        The measurements must contain the peak memory. Sampling times are reported if all ranks measured them.
        """
        if self.ranks.is_alone:
            return
        waited_s = self.ranks.waited_s
        record = measurements.as_record()
        own = {
            "wait_s": waited_s - self._waited_s,
            "peak_mb": record[metrics.PEAK_MEMORY_MB.name][0],
        }
        if metrics.ROLLOUT_S.name in record:  # on all ranks or, with continuous sampling, on none
            own["rollout_s"] = record[metrics.ROLLOUT_S.name][0]
        self._waited_s = waited_s
        self._write({"step": step, **own})
        everyone = self.ranks.gather(own)
        measurements.agree(self.ranks)
        values = {key: [one[key] for one in everyone] for key in own}
        measurements.add(metrics.RANK_WAIT_MIN_S, min(values["wait_s"]))
        measurements.add(metrics.RANK_WAIT_MAX_S, max(values["wait_s"]))
        measurements.add(metrics.RANK_PEAK_MIN_MB, min(values["peak_mb"]))
        if "rollout_s" in own:
            measurements.add(metrics.RANK_ROLLOUT_MIN_S, min(values["rollout_s"]))
            self._warn(step, values["rollout_s"])

    def _warn(self, step: int, rollout_s: list[float]) -> None:
        usual = median(rollout_s)
        for rank, taken_s in enumerate(rollout_s):
            self._num_slow[rank] = self._num_slow.get(rank, 0) + 1 if taken_s > _SLOW * usual else 0
            if self._num_slow[rank] == _NUM_SLOW_STEPS:
                self.log(
                    f"rank {rank} is slow: in each of the last {_NUM_SLOW_STEPS} steps it sampled more "
                    f"than {_SLOW:g} times as long as the median rank (step {step}: {taken_s:.1f} s "
                    f"against {usual:.1f} s); check for other processes on its machine, and its GPU's clock"
                )

    def _write(self, record: dict[str, float]) -> None:
        if self.file is None:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with append_plain(self.file) as file:
                file.write(json.dumps(record).encode() + b"\n")
        except OSError:
            self.file = None  # a full disk is reported by metrics and checkpoints
