"""Rules that find problems of training in recorded metrics: pure functions of steps, in their order.

The one place for rules of this kind. Notes while training, the last lines of a run, `summary.json` and
`atrium show` all say what is found here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from atrium.metrics import (
    CORRECT_FRAC,
    ENTROPY,
    GRAD_NORM,
    LOSS,
    NO_SIGNAL_FRAC,
    NUM_SKIPPED_UPDATES,
    NUM_UPDATES,
    REWARD,
    TRUNCATED_FRAC,
    Quantity,
)
from atrium.tracking.formatting import number, share
from atrium.tracking.listener import Listener

Metrics = Mapping[str, float]
"""One step's metrics by name."""

Step = tuple[int, Metrics]
"""A step's number and its metrics."""

NUM_STEPS = 10
"""Steps over which a share is judged; one step says little."""
ALMOST_ALL = 0.98
MAX_TRUNCATED = 0.30


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem in the steps `first_step` to `last_step`; `evidence` holds means over them by name."""

    rule: str
    first_step: int
    last_step: int
    evidence: Metrics
    text: str


@dataclass(frozen=True, slots=True)
class _Rule:
    """What the means of `evidence` over `num_steps` steps must be, and what is said about it then."""

    name: str
    num_steps: int
    evidence: tuple[Quantity, ...]
    holds: Callable[[Metrics], bool]
    says: Callable[[Metrics], str]


def diagnose(steps: Sequence[Step], *, is_over: bool = True) -> tuple[Finding, ...]:
    """The problems at the end of these steps, and since when there are.

    Until the run is over, a rule waits for as many steps as it wants to see.
    """
    found = []
    for rule in _RULES:
        first = max(len(steps) - rule.num_steps, 0)
        num_seen = len(steps) - first
        if num_seen < (1 if is_over else rule.num_steps) or not rule.holds(_means(rule, steps[first:])):
            continue
        while first > 0 and rule.holds(_means(rule, steps[first - 1 : first])):
            first -= 1
        found.append(_finding(rule, steps[first:]))
    return tuple(found)


class Notes(Listener):
    """Says to `log` what goes wrong while steps come in: each rule once."""

    name = "what judges the steps"

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._steps: deque[Step] = deque(maxlen=NUM_STEPS)
        self._told: set[str] = set()

    def step(self, step: int, metrics: Metrics) -> None:
        """Say what this step adds to what is known."""
        self._steps.append((step, metrics))
        for found in diagnose(tuple(self._steps), is_over=False):
            if found.rule not in self._told:
                self._told.add(found.rule)
                self._log(f"note: {found.text}")


def is_solved(step: Metrics) -> bool:
    """Whether every sampled answer of a step was right."""
    return step.get(CORRECT_FRAC.name, 0.0) >= 1.0


def is_stuck(step: Metrics) -> bool:
    """Whether in every group of a step all rewards were equal, and not because all answers were right."""
    return step.get(NO_SIGNAL_FRAC.name, 0.0) >= 1.0 and not is_solved(step)


def collapsed(steps: Sequence[Metrics], num_steps: int = NUM_STEPS) -> str | None:
    """Why a run counts as collapsed by its last steps: all of them stuck. None where it does not."""
    last = steps[-num_steps:]
    if len(last) < num_steps or not all(is_stuck(step) for step in last):
        return None
    return f"in its last {num_steps} steps all rewards of every group were equal, and not all answers right"


def _finding(rule: _Rule, steps: Sequence[Step]) -> Finding:
    (first, _), (last, _) = steps[0], steps[-1]
    evidence = _means(rule, steps)
    where = f"step {first}" if first == last else f"steps {first} to {last}"
    text = f"{rule.name}, {where}: {rule.says(evidence)}"
    return Finding(rule=rule.name, first_step=first, last_step=last, evidence=evidence, text=text)


def _means(rule: _Rule, steps: Sequence[Step]) -> dict[str, float]:
    """Of what a rule looks at, over the steps that recorded it; what none recorded is left out."""
    columns = {
        quantity.name: [metrics[quantity.name] for _, metrics in steps if quantity.name in metrics]
        for quantity in rule.evidence
    }
    return {name: sum(values) / len(values) for name, values in columns.items() if values}


def _lacks_signal(means: Metrics) -> bool:
    return means.get(NO_SIGNAL_FRAC.name, 0.0) >= ALMOST_ALL


def _is_solved(means: Metrics) -> bool:
    return _lacks_signal(means) and means.get(CORRECT_FRAC.name, 0.0) >= ALMOST_ALL


def _is_truncated(means: Metrics) -> bool:
    return means.get(TRUNCATED_FRAC.name, 0.0) > MAX_TRUNCATED


def _unfinite(means: Metrics) -> list[str]:
    return [name for name, value in means.items() if not math.isfinite(value)]


def _diverges(means: Metrics) -> bool:
    num_skipped = means.get(NUM_SKIPPED_UPDATES.name, 0.0)
    return bool(_unfinite(means)) or (num_skipped > 0 and num_skipped >= means.get(NUM_UPDATES.name, 0.0))


def _of_divergence(means: Metrics) -> str:
    if names := _unfinite(means):
        what = f"{', '.join(names)} is not a finite number"
    else:
        skipped, made = means[NUM_SKIPPED_UPDATES.name], means.get(NUM_UPDATES.name, 0.0)
        what = f"{number(skipped)} of {number(skipped + made)} updates of a step had no finite gradient"
    return f"{what}; lower optimizer.learning_rate"


def _of_no_signal(means: Metrics) -> str:
    reward, correct = number(means.get(REWARD.name)), share(means.get(CORRECT_FRAC.name))
    return (
        f"in {share(means[NO_SIGNAL_FRAC.name])} of the groups all rewards were equal (mean reward {reward}, "
        f"{correct} correct), so there was nothing to learn from; choose problems that the model solves "
        "sometimes, larger groups, or more tokens for an answer"
    )


def _of_truncation(means: Metrics) -> str:
    return (
        f"{share(means[TRUNCATED_FRAC.name])} of the completions were cut off by the length limit, before "
        "they could answer; raise rollout.max_new_tokens"
    )


def _of_solved(means: Metrics) -> str:
    return (
        f"{share(means[CORRECT_FRAC.name])} of the completions were correct, so little was left to learn; "
        "choose harder problems"
    )


_RULES = (
    _Rule(
        "divergence",
        1,
        (NUM_UPDATES, NUM_SKIPPED_UPDATES, LOSS, GRAD_NORM, ENTROPY, REWARD),
        _diverges,
        _of_divergence,
    ),
    _Rule(
        "no signal",
        NUM_STEPS,
        (NO_SIGNAL_FRAC, CORRECT_FRAC, REWARD),
        lambda means: _lacks_signal(means) and not _is_solved(means),
        _of_no_signal,
    ),
    _Rule("truncation", NUM_STEPS, (TRUNCATED_FRAC,), _is_truncated, _of_truncation),
    _Rule("all solved", NUM_STEPS, (NO_SIGNAL_FRAC, CORRECT_FRAC), _is_solved, _of_solved),
)
