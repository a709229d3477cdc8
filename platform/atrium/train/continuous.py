"""Continuous sampling (`rollout.continuous`): servers sample during updates, and steps use finished groups.

At any time, problems for `rollout.lag` steps are in progress, or finished but not yet used. Servers are idle
once all of these problems are finished. New weights may arrive in the middle of a completion, which then
records the weight version of each of its parts. A group is as old as the oldest weights that sampled it, and
a group older than `lag` steps is dropped. The order in which groups finish depends on timing, so a repeated
run differs. A resumed run skips problems that were requested but not trained on.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from atrium.base import metrics
from atrium.base.records import Problem, RolloutGroup
from atrium.engines.engine import GenerationRequest
from atrium.train.checkpoint.checkpoint import TrainingState
from atrium.train.checkpoint.group_records import bytes_of_groups, groups_of_bytes
from atrium.train.collect import Collected, Graded, measure_groups
from atrium.train.measure.measurements import Measurements
from atrium.train.step import Steps, Training

if TYPE_CHECKING:
    from atrium.engines.server.engine import ServerEngine


class ContinuousSteps(Steps):
    """Steps whose batches come from servers that sample continuously, also during updates.

    Checkpoints contain no samples: a resumed run samples again.
    """

    def __init__(self, run: Training, servers: ServerEngine, cursor: int) -> None:
        super().__init__(run)
        self._stream = servers.stream(run.collector.sampling)
        self._position = cursor
        self._num_open = 0
        self._problems: dict[int, tuple[Problem, GenerationRequest]] = {}
        self._finished: queue.SimpleQueue[tuple[int, Graded] | BaseException] = queue.SimpleQueue()
        self._steps: dict[int, int] = {}
        self._taken_at = time.perf_counter()
        self._thread = threading.Thread(target=self._grade, name="sampling-continuously", daemon=True)
        self._thread.start()

    def collect(self, state: TrainingState) -> Collected:
        """Return the batch of the next step: the first finished groups that are not too old."""
        collector, measurements = self.run.collector, Measurements()
        self.run.enter(state.step + 1, "rollout")
        self._steps[state.weight_version] = state.step
        ranks, started = collector.ranks, time.perf_counter()
        num_wanted = len(ranks.share(range(collector.num_prompts)))
        replaces = collector.group_filter.kind == "resample"
        limit = num_wanted * (collector.group_filter.max_num_rounds if replaces else 1)
        groups: list[RolloutGroup] = []
        ages: list[int] = []
        num_kept = num_dropped = 0
        self._request(state)
        while len(groups) < limit and num_kept < num_wanted:
            group = self._next_group(state.step + 1)
            age = state.step - self._step_of(group)
            if age > self.run.settings.lag:
                num_dropped += 1
            else:
                groups.append(group)
                ages.append(age)
                num_kept += not replaces or collector.keeps(group)
            self._request(state)
        measurements.add(metrics.BATCH_WAIT_S, time.perf_counter() - started)
        shared = ranks.gather_bytes(bytes_of_groups(groups))
        groups = [group for found in shared for group in groups_of_bytes(found)]
        ages = [age for found in ranks.gather(ages) for age in found]
        measurements.add(metrics.NUM_GROUPS_DROPPED, sum(ranks.gather(num_dropped)))
        measurements.add(metrics.STALENESS_STEPS, sum(ages), len(ages))
        self._measure(groups, measurements)
        return collector.collected(groups, max(ranks.gather(self._position)), measurements)

    def close(self) -> None:
        """Cancel sampling, and wait until the sampling thread has ended."""
        self._stream.close()
        self._thread.join()

    def _request(self, state: TrainingState) -> None:
        """Request further problems, until as many are unused as `lag` steps need.

        Unused problems are in progress, or finished but not yet taken by a step. With more unused problems,
        some groups would be too old when a step takes them.
        """
        collector, ranks = self.run.collector, self.run.collector.ranks
        num_allowed = self.run.settings.lag * len(ranks.share(range(collector.num_prompts)))
        first = max(self._position, state.cursor)
        while self._num_open < num_allowed:
            position = first + ranks.rank
            (problem,) = collector.stream.take(position, 1)
            request = collector.request(problem, position)
            self._problems[position] = (problem, request)
            self._num_open += 1
            self._stream.add(position, request)
            first += ranks.size
        self._position = first

    def _grade(self) -> None:
        """Submit completions for grading as soon as they arrive."""
        try:
            while True:
                found = self._stream.next()
                problem, _ = self._problems[found.request_index]
                graded = self.run.collector.submit(problem, found.completions)
                self._finished.put((found.request_index, graded))
        except BaseException as error:  # raised again when the next group is awaited
            self._finished.put(error)

    def _next_group(self, step: int) -> RolloutGroup:
        """Wait for the next finished group, and return it with its rewards, computed for `step`."""
        found = self._finished.get()
        if isinstance(found, BaseException):
            raise found
        position, graded = found
        problem, request = self._problems.pop(position)
        self._num_open -= 1
        return self.run.collector.group(step, problem, request.prompt_token_ids, graded)

    def _step_of(self, group: RolloutGroup) -> int:
        """Return the training step that produced the oldest weights that sampled the group."""
        return self._steps[min(rollout.completion.weight_version for rollout in group.rollouts)]

    def _measure(self, groups: Sequence[RolloutGroup], measurements: Measurements) -> None:
        now = time.perf_counter()
        per_reward = self.run.collector.per_reward
        measure_groups(groups, now - self._taken_at, measurements, per_reward=per_reward)
        self._taken_at = now
        mixed = [bool(rollout.completion.spans) for group in groups for rollout in group.rollouts]
        measurements.add(metrics.MIXED_WEIGHTS_FRAC, sum(mixed), len(mixed))
