"""Log lines, early in a run, on the shares of truncated answers and of groups without signal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from atrium.base.metrics import NO_SIGNAL_FRAC, TRUNCATED_FRAC
from atrium.base.records import BenchmarkResult, FinishReason
from atrium.document.formatting import counted, share
from atrium.runs.listener import Listener


class FirstLines(Listener):
    """A listener that logs a line after the initial evaluation, and another after the first training step.

    `answer_tokens` and `rollout_tokens` are the maximum lengths of evaluated answers and of training
    completions, in tokens.
    """

    name = "the first lines"

    def __init__(self, log: Callable[[str], None], *, answer_tokens: int, rollout_tokens: int) -> None:
        self._log = log
        self._limits = answer_tokens, rollout_tokens
        self._is_due = False

    def begin(self, *, step: int, num_steps: int, title: str = "") -> None:
        """Expect an evaluation before training if training starts at step 0."""
        self._is_due = step == 0

    def evaluation(self, result: BenchmarkResult) -> None:
        """Log a line about the base model's answers to the first benchmark; other benchmarks add no line."""
        if not self._is_due or not result.samples:
            return
        self._is_due = False
        verdicts: dict[str, set[bool]] = defaultdict(set)
        for sample in result.samples:
            verdicts[sample.problem.problem_id].add(sample.is_correct)
        num_cut = sum(sample.finish_reason is FinishReason.LENGTH for sample in result.samples)
        num_silent = sum(len(found) == 1 for found in verdicts.values())
        has_groups = len(result.samples) > len(verdicts)
        self._log(
            f"before training: {num_cut} of {len(result.samples)} answers were cut off "
            f"(evaluation.max_new_tokens={self._limits[0]})"
            + has_groups
            * f", and {num_silent} of {counted(len(verdicts), 'problem')} have equal verdicts in all answers"
        )

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the shares of truncated completions and of silent groups, for step 1 only."""
        if step == 1 and NO_SIGNAL_FRAC.name in metrics and TRUNCATED_FRAC.name in metrics:
            self._log(
                f"first batch: {share(metrics[TRUNCATED_FRAC.name])} of the completions were cut off "
                f"(rollout.max_new_tokens={self._limits[1]}), and {share(metrics[NO_SIGNAL_FRAC.name])} of "
                "the groups are silent: all their rewards are equal"
            )
