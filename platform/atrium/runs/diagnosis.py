"""Rules that detect problems in training, as pure functions of the recorded steps in order.

Summaries, notes during training, `atrium show`, the dashboard, mirrors and the pruning of sweeps use the
findings. `docs/collapse.md` lists each rule with its threshold and error rates.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from atrium.base.metrics import (
    CORRECT_FRAC,
    ENTROPY,
    GRAD_NORM,
    HEAVIEST_TOKEN_FRAC,
    KL_AFTER_UPDATE,
    LENGTH_MEAN,
    LOSS,
    MISMATCH_KL,
    NO_ANSWER_FRAC,
    NO_SIGNAL_FRAC,
    NUM_SKIPPED_UPDATES,
    NUM_UPDATES,
    RATIO_MAX,
    REWARD,
    TRUNCATED_FRAC,
    Quantity,
)
from atrium.document.formatting import number, share
from atrium.runs.listener import Listener
from atrium.runs.run_facts import RunFacts

Metrics = Mapping[str, float]
"""One step's metrics by name."""

Step = tuple[int, Metrics]
"""A step's number and its metrics."""

NUM_STEPS = 10
"""Number of steps that most rules use; a single step says little."""
NUM_FIRST_STEPS = 3
"""Number of steps that count as a run's start for comparisons; small, since learning is fast there."""
ALMOST_ALL = 0.98
MAX_TRUNCATED = 0.30
MIN_COMPLETION_ENTROPY = 0.05
"""Entropy of a whole completion, in nats, below which nearly all samples of a prompt are the same text."""
MAX_KL = 0.15
"""KL divergence of the policy after a step's updates from the sampling policy, in nats per token."""
MAX_HEAVIEST_TOKEN = 0.3
MAX_MISMATCH_KL = 5e-3
"""KL divergence between engine and trainer at equal weights, in nats per token."""
MAX_LENGTH_GROWTH = 2.0
MIN_CORRECT_PER_REWARD = 0.2
"""Minimum rise of the correct share per unit of risen reward; below it, the reward pays for form alone."""
NOISE = 5.0
"""Number of standard errors by which a mean must differ from the mean of the run's first steps."""

_DEFAULT = RunFacts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem that a rule found in the steps `first_step` to `last_step`; `text` describes it to the user.

    `evidence` contains, by name, the means of the rule's metrics over the newest steps that it judged.
    `start` contains those over the run's first steps if the rule compares the two; otherwise, it is empty.
    """

    rule: str
    first_step: int
    last_step: int
    evidence: Metrics
    text: str
    start: Metrics = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule that detects one kind of problem in the last `num_steps` steps of a run.

    `judge` receives the last and the first steps, and returns a description of the problem, or None. If
    `compares` is set, the rule waits until the two no longer overlap. `evidence` lists a finding's metrics.
    """

    name: str
    judge: Callable[[_Span, _Span], str | None]
    evidence: tuple[Quantity, ...]
    num_steps: int = NUM_STEPS
    compares: bool = False
    is_collapse: bool = False  # the run cannot recover from the problem, so a sweep may stop it


class _Span:
    """Consecutive steps of a run, and the run's facts. A missing quantity is NaN, which triggers no rule."""

    def __init__(self, steps: Sequence[Step], facts: RunFacts) -> None:
        self._steps = steps
        self.facts = facts

    def values(self, quantity: Quantity) -> list[float]:
        """Return the values of the steps that recorded the quantity."""
        return [metrics[quantity.name] for _, metrics in self._steps if quantity.name in metrics]

    def __getitem__(self, quantity: Quantity) -> float:
        """Return the mean of a quantity over the steps that recorded it, or NaN if none did."""
        values = self.values(quantity)
        return sum(values) / len(values) if values else math.nan

    def means(self, quantities: Sequence[Quantity]) -> dict[str, float]:
        """Return the means of `quantities` by name, without quantities that no step recorded."""
        return {one.name: self[one] for one in quantities if self.values(one)}


class Course:
    """The first and the newest steps of a run in progress. Others are dropped to limit memory."""

    def __init__(self, steps: Sequence[Step] = (), *, num_newest: int = NUM_STEPS) -> None:
        self._first: list[Step] = []
        self._newest: deque[Step] = deque(maxlen=num_newest)
        for step in steps:
            self.add(*step)

    def add(self, step: int, metrics: Metrics) -> None:
        """Add the next step with its metrics; a step that the rules no longer read is dropped."""
        if step <= NUM_FIRST_STEPS:
            self._first.append((step, metrics))
        else:
            self._newest.append((step, metrics))

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps in order, possibly with a gap after the first `NUM_FIRST_STEPS`."""
        return (*self._first, *self._newest)


class Notes(Listener):
    """A listener that logs each rule's first finding; `steps` were recorded before training was resumed."""

    name = "the diagnosis of steps"

    def __init__(
        self, log: Callable[[str], None], steps: Sequence[Step] = (), facts: RunFacts = _DEFAULT
    ) -> None:
        self._log = log
        self._course = Course(steps)
        self._facts = facts
        self._told: set[str] = set()

    def step(self, step: int, metrics: Metrics) -> None:
        """Add a step, and log the findings of those rules that have not logged one before."""
        self._course.add(step, metrics)
        for found in diagnose(self._course.steps, is_over=False, facts=self._facts):
            if found.rule not in self._told:
                self._told.add(found.rule)
                self._log(f"note: {found.text}")


def diagnose(
    steps: Sequence[Step], *, is_over: bool = True, facts: RunFacts = _DEFAULT
) -> tuple[Finding, ...]:
    """Return the problems that rules find in the newest of `steps`, each with the step at which it began.

    While the run is in progress, a rule waits until it has its full number of steps. If `is_over` is set,
    fewer steps suffice, except for rules that compare with the start of the run.
    """
    found = (_found(rule, steps, facts, is_over=is_over) for rule in _RULES)
    return tuple(finding for finding in found if finding is not None)


def find_collapse(
    steps: Sequence[Step], num_steps: int = NUM_STEPS, *, facts: RunFacts = _DEFAULT
) -> Finding | None:
    """Return the finding of the first rule to detect a collapse in the last `num_steps` steps, or None."""
    for rule in _RULES:
        if rule.is_collapse:
            judged = replace(rule, num_steps=min(rule.num_steps, num_steps))
            if found := _found(judged, steps, facts, is_over=False):
                return found
    return None


def _found(rule: _Rule, steps: Sequence[Step], facts: RunFacts, *, is_over: bool) -> Finding | None:
    first = max(len(steps) - rule.num_steps, 0)
    start = _Span(steps[:NUM_FIRST_STEPS], facts)
    if rule.compares:
        is_ready = first >= NUM_FIRST_STEPS and steps[NUM_FIRST_STEPS - 1][0] <= NUM_FIRST_STEPS
    else:
        is_ready = len(steps) - first >= (1 if is_over else rule.num_steps)
    now = _Span(steps[first:], facts)
    if not is_ready or (said := rule.judge(now, start)) is None:
        return None
    earliest = NUM_FIRST_STEPS if rule.compares else 0
    while first > earliest and _follows(steps, first) and rule.judge(_Span([steps[first - 1]], facts), start):
        first -= 1
    (first_step, _), (last_step, _) = steps[first], steps[-1]
    where = f"step {last_step}" if first_step == last_step else f"steps {first_step} to {last_step}"
    return Finding(
        rule=rule.name,
        first_step=first_step,
        last_step=last_step,
        evidence=now.means(rule.evidence),
        start=start.means(rule.evidence) if rule.compares else {},
        text=f"{rule.name}, {where}: {said.partition('; ')[0] if facts.is_imported else said}",
    )


def _follows(steps: Sequence[Step], place: int) -> bool:
    return steps[place][0] == steps[place - 1][0] + 1


def _change(now: _Span, start: _Span, quantity: Quantity) -> float:
    """Return the change of a quantity's mean from `start` to `now`, in standard errors of the difference.

    Returns 0 if a span has no values, or if the two spans together have fewer than three values.
    """
    spans = [now.values(quantity), start.values(quantity)]
    num = [len(values) for values in spans]
    change = now[quantity] - start[quantity]
    if not all(num) or sum(num) <= 2 or change == 0.0:
        return 0.0
    squares = sum(
        (value - span[quantity]) ** 2
        for span, values in zip((now, start), spans, strict=True)
        for value in values
    )
    error = math.sqrt(squares / (sum(num) - 2) * (1 / num[0] + 1 / num[1]))
    return change / error if error else math.copysign(math.inf, change)


def _correct(now: _Span, words: str) -> str:
    """Return `words` formatted with the share of correct answers, or "" if the share is not recorded."""
    return "" if math.isnan(now[CORRECT_FRAC]) else words.format(share(now[CORRECT_FRAC]))


def _of_divergence(now: _Span, _start: _Span) -> str | None:
    names = [
        one.name
        for one in (LOSS, GRAD_NORM, ENTROPY, REWARD)
        if any(not math.isfinite(value) for value in now.values(one))
    ]
    skipped, made = now[NUM_SKIPPED_UPDATES], now[NUM_UPDATES]
    if names:
        what = f"{', '.join(names)} is not a finite number"
    elif skipped > 0 and not made > skipped:
        what = f"{number(skipped)} of {number(skipped + made)} updates of a step had no finite gradient"
    else:
        return None
    return f"{what}; lower optimizer.learning_rate"


def _of_no_signal(now: _Span, _start: _Span) -> str | None:
    if not now[NO_SIGNAL_FRAC] >= ALMOST_ALL or now[CORRECT_FRAC] >= ALMOST_ALL:
        return None
    found = (
        f"in {share(now[NO_SIGNAL_FRAC])} of the groups all rewards were equal (mean reward "
        f"{number(now[REWARD])}{_correct(now, ', {} correct')}), so there was nothing to learn from"
    )
    more = ", or raise rollout.max_new_tokens" if now[TRUNCATED_FRAC] > MAX_TRUNCATED else ""
    if now[NO_ANSWER_FRAC] >= ALMOST_ALL and now.facts.reward != "random":
        return f"{now.facts.missing_answers(share(1.0 - now[NO_ANSWER_FRAC]))}{more}; {found}"
    if now.facts.reward != "correctness":
        return f"{found}; check what reward.kind={now.facts.reward} rewards"
    choice = "larger groups" if more else "or larger groups"
    return f"{found}; choose problems that the model solves sometimes, {choice}{more}"


def _of_truncation(now: _Span, _start: _Span) -> str | None:
    if not now[TRUNCATED_FRAC] > MAX_TRUNCATED:
        return None
    cut = f"{share(now[TRUNCATED_FRAC])} of the completions were cut off by the length limit"
    if now.facts.is_imported:
        return cut
    if not now.facts.pays_for_answers:
        return (
            f"{cut}, and reward.kind={now.facts.reward} decides their reward; read some of them (atrium "
            "samples), and check the stop tokens and model.prompt.stop"
        )
    if now.facts.counts_truncated and not now[NO_ANSWER_FRAC] > MAX_TRUNCATED:
        return (
            f"{cut}, and their answers count (the reward requires no stop); check what follows the answers "
            "(atrium samples), and check the stop tokens and model.prompt.stop"
        )
    return f"{cut}, before they could answer; raise rollout.max_new_tokens"


def _of_solved(now: _Span, _start: _Span) -> str | None:
    if not (now[NO_SIGNAL_FRAC] >= ALMOST_ALL and now[CORRECT_FRAC] >= ALMOST_ALL):
        return None
    return (
        f"{share(now[CORRECT_FRAC])} of the completions were correct, so little was left to learn; "
        "choose harder problems"
    )


def _of_entropy(now: _Span, _start: _Span) -> str | None:
    entropy = now[ENTROPY] * now[LENGTH_MEAN]
    if not entropy < MIN_COMPLETION_ENTROPY or now[CORRECT_FRAC] >= ALMOST_ALL:
        return None
    return (
        f"a completion has {number(entropy)} nats of entropy ({number(now[ENTROPY])} a token), so nearly "
        f"all samples of a prompt are one text{_correct(now, ', and {} are correct')}; "
        f"{'widen the upper bound of the trust region, ' * now.facts.has_trust_region}lower "
        f"optimizer.learning_rate, or {'raise' if now.facts.has_entropy_bonus else 'add'} the entropy "
        "bonus (regularizer.entropy)"
    )


def _of_ratios(now: _Span, _start: _Span) -> str | None:
    if not now[KL_AFTER_UPDATE] > MAX_KL:
        return None
    largest = max(now.values(RATIO_MAX), default=math.nan)
    # A ratio that is always 1 by definition does not show how far the policy moved.
    ratios = f", with ratios up to {number(largest)}" if largest > 1.0 else ""
    return (
        f"each step's updates moved the policy {number(now[KL_AFTER_UPDATE])} nats per token away from the "
        f"one that sampled{ratios}; {'narrow the trust region, or ' * now.facts.has_trust_region}make "
        "fewer or smaller updates per batch"
    )


def _of_heaviest_token(now: _Span, _start: _Span) -> str | None:
    if not now[HEAVIEST_TOKEN_FRAC] > MAX_HEAVIEST_TOKEN:
        return None
    return (
        f"one token had {share(now[HEAVIEST_TOKEN_FRAC])} of the squared gradients by log-probabilities of "
        "a whole step; bound the ratio on both sides (a dual clip, truncated weights)"
    )


def _of_length(now: _Span, start: _Span) -> str | None:
    growth = now[LENGTH_MEAN] / start[LENGTH_MEAN] if start[LENGTH_MEAN] else math.nan
    if not growth > MAX_LENGTH_GROWTH or _change(now, start, REWARD) > NOISE:
        return None
    return (
        f"completions grew from {number(start[LENGTH_MEAN])} to {number(now[LENGTH_MEAN])} tokens, but "
        f"reward did not rise (from {number(start[REWARD])} to {number(now[REWARD])}); read some of them "
        "(atrium samples), and check whether the reduction favors length"
    )


def _of_mismatch(now: _Span, _start: _Span) -> str | None:
    if not now[MISMATCH_KL] > MAX_MISMATCH_KL:
        return None
    return (
        f"the engine's probabilities are {number(now[MISMATCH_KL])} nats per token away from the trainer's "
        "at equal weights; compare compute.dtype and the engine's settings (rollout)"
        f"{'' if now.facts.has_correction else ', or choose a correction'}"
    )


def _of_format(now: _Span, start: _Span) -> str | None:
    rise, right = (now[one] - start[one] for one in (REWARD, CORRECT_FRAC))
    if not _change(now, start, REWARD) > NOISE or not right < MIN_CORRECT_PER_REWARD * rise:
        return None
    return (
        f"reward rose from {number(start[REWARD])} to {number(now[REWARD])}, but correct answers only from "
        f"{share(start[CORRECT_FRAC])} to {share(now[CORRECT_FRAC])}: the reward does not measure "
        "correctness; check what reward.kind rewards"
    )


def _of_fall(now: _Span, start: _Span) -> str | None:
    if not _change(now, start, REWARD) < -NOISE:
        return None
    return (
        f"mean reward fell from {number(start[REWARD])} at the start to {number(now[REWARD])}; start again "
        "from an earlier checkpoint with --resume RUN@STEP, and a lower "
        f"optimizer.learning_rate{' or a narrower trust region' * now.facts.has_trust_region}"
    )


_RULES = (
    _Rule(
        "divergence",
        _of_divergence,
        (NUM_UPDATES, NUM_SKIPPED_UPDATES, LOSS, GRAD_NORM, ENTROPY, REWARD),
        num_steps=1,
        is_collapse=True,
    ),
    _Rule(
        "no signal",
        _of_no_signal,
        (NO_SIGNAL_FRAC, CORRECT_FRAC, NO_ANSWER_FRAC, TRUNCATED_FRAC, REWARD),
        is_collapse=True,
    ),
    _Rule("entropy gone", _of_entropy, (ENTROPY, LENGTH_MEAN, CORRECT_FRAC), is_collapse=True),
    _Rule("reward below its start", _of_fall, (REWARD, CORRECT_FRAC), compares=True, is_collapse=True),
    _Rule("ratios running away", _of_ratios, (KL_AFTER_UPDATE, RATIO_MAX)),
    _Rule("one token carries the gradient", _of_heaviest_token, (HEAVIEST_TOKEN_FRAC,)),
    _Rule("length without reward", _of_length, (LENGTH_MEAN, TRUNCATED_FRAC, REWARD), compares=True),
    _Rule("sampler and trainer apart", _of_mismatch, (MISMATCH_KL,)),
    _Rule("reward by form alone", _of_format, (REWARD, CORRECT_FRAC, NO_ANSWER_FRAC), compares=True),
    _Rule("truncation", _of_truncation, (TRUNCATED_FRAC, NO_ANSWER_FRAC)),
    _Rule("all solved", _of_solved, (NO_SIGNAL_FRAC, CORRECT_FRAC)),
)
COLLAPSES = frozenset(rule.name for rule in _RULES if rule.is_collapse)
"""The names of the rules whose findings count as a collapse."""
