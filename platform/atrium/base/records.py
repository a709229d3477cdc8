"""Frozen records shared by all packages: problems, completions, verdicts and rollouts.

This module imports no other module of Atrium. Log-probabilities are in nats. They are stored in float32
arrays and token ids in int32 arrays, because a batch of long completions contains tens of millions of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]
Logprobs = NDArray[np.float32]
Floats = NDArray[np.float64]
NamedRewards = Mapping[str, tuple[float | None, float]]
"""The named rewards of a completion: the value (None if the reward abstained) and the weight of each."""
OwnTokens = NDArray[np.bool_]

STORED_VERSION = -1
"""Weight version of stored completions, which were not sampled by this run."""

REASONING_MARKERS = ("<think>", "</think>")
"""Start and end markers of a completion's reasoning, which is not graded."""


class VerdictKind(StrEnum):
    """The possible verdicts of a grader on a completion."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    NO_ANSWER = "no_answer"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"


class FinishReason(StrEnum):
    """The reasons why a completion ended.

    `STOP` means that the model sampled a stop token or completed a stop string, and `LENGTH` that it reached
    the length limit.
    """

    STOP = "stop"
    LENGTH = "length"


CLUSTER = "cluster"
"""Metadata key of a problem's cluster: its contest, source or template, which related problems share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question with a verifiable answer.

    `problem_id` is unique within its dataset and stable between loads. `answer` is the text of the reference
    answer, without LaTeX's `boxed` command. `metadata` contains the keys used in breakdowns, such as `level`,
    `subject` and `cluster`. `turns` are the earlier turns of a conversation, each with a role (system, user,
    assistant) and a text. `verifier` contains JSON values that only the verifier uses, such as unit tests.
    """

    problem_id: str
    question: str
    answer: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    turns: tuple[tuple[str, str], ...] = ()
    verifier: Mapping[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> str:
        """The texts of the earlier turns and the question, joined by line breaks."""
        return "\n".join((*(text for _, text in self.turns), self.question))

    @property
    def judged_by(self) -> Mapping[str, Any]:
        """All values that a verifier may use to grade an answer: `metadata` and `verifier` merged."""
        return {**self.metadata, **self.verifier}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The grader's verdict on one completion.

    `reason` explains the verdict. `extracted` is the answer found in the completion, or None if none was
    found. `score` is a partial score between 0 and 1, or None if the verifier gives no partial scores. A
    verdict ignores truncation; the reward decides whether a truncated completion counts.
    """

    kind: VerdictKind
    reason: str
    extracted: str | None = None
    score: float | None = None

    @property
    def is_correct(self) -> bool:
        """Whether the verdict is CORRECT."""
        return self.kind is VerdictKind.CORRECT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """A completion that an engine sampled for one prompt.

    `token_ids` [T] include the stop token if it was sampled. `logprobs` [T] are log-probabilities under the
    sampling distribution (including temperature). `text` is the decoded completion without the stop token.
    `weight_version` is the number of weight updates before sampling.

    If the weights changed during sampling, `spans` lists the weight version, first token and end token
    (exclusive) of each part in order, and `weight_version` is the oldest version.

    `own` [T] is True at tokens that the policy sampled; None means that it sampled all tokens. Other tokens,
    such as a tool's output, are context only: they are not trained on, and their log-probabilities are
    undefined and may be NaN. A stored completion has the version `STORED_VERSION`, NaN log-probabilities if
    none are stored, and `stored_reward` (None if no reward is stored).
    """

    token_ids: TokenIds
    logprobs: Logprobs
    text: str
    finish_reason: FinishReason
    weight_version: int
    stored_reward: float | None = None
    own: OwnTokens | None = None
    spans: tuple[tuple[int, int, int], ...] = ()

    @property
    def is_stored(self) -> bool:
        """Whether the completion was read from stored rollouts instead of being sampled by this run."""
        return self.weight_version == STORED_VERSION

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the policy sampled, including the stop token."""
        return len(self.token_ids) if self.own is None else int(self.own.sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollout:
    """A completion with its verdict and reward. `sample_index` is its position in the group.

    `reward` is None if the reward function abstained; groups used for training contain no such rollout. If
    the reward is a weighted sum of named rewards, `parts` contains the named rewards. Otherwise, `parts` is
    empty. `behavior_logprobs` [T] are the trainer's log-probabilities under the weights that sampled the
    completion, or None if they were not computed at sampling time.
    """

    sample_index: int
    completion: Completion
    verdict: Verdict
    reward: float | None
    behavior_logprobs: Logprobs | None = None
    parts: NamedRewards = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutGroup:
    """All rollouts of one problem, sampled from one prompt.

    Examples
    --------
    Two answers to one problem, one correct and one incorrect:

    >>> def answered(text: str, kind: VerdictKind, place: int) -> Rollout:
    ...     completion = Completion(
    ...         token_ids=np.array([5, 2]),
    ...         logprobs=np.array([-0.4, -0.1], dtype=np.float32),
    ...         text=text,
    ...         finish_reason=FinishReason.STOP,
    ...         weight_version=0,
    ...     )
    ...     verdict = Verdict(kind=kind, reason="compared as numbers", extracted=text)
    ...     return Rollout(
    ...         sample_index=place, completion=completion, verdict=verdict, reward=float(verdict.is_correct)
    ...     )
    >>> group = RolloutGroup(
    ...     problem=Problem(problem_id="sum-1", question="2+3=", answer="5"),
    ...     prompt_token_ids=np.array([1, 7, 8]),
    ...     rollouts=(answered("5", VerdictKind.CORRECT, 0), answered("6", VerdictKind.INCORRECT, 1)),
    ... )
    >>> [rollout.reward for rollout in group.rollouts]
    [1.0, 0.0]
    """

    problem: Problem
    prompt_token_ids: TokenIds
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTrace:
    """Quantities of the objective at each of the T tokens of one rollout.

    `ratio` is the importance ratio that the trust region bounds, in the step's last update that used the
    token. `clipped` is 0 if that update did not clip the token's gradient; otherwise, it is +1 for a ratio
    above 1 and -1 for any other ratio. At tokens that the policy did not sample, `clipped` is 0 and the other
    values are NaN.

    Examples
    --------
    A correct answer of three tokens; the second ratio is above the upper bound 1.2 and is clipped:

    >>> trace = TokenTrace(
    ...     advantage=(0.7, 0.7, 0.7), ratio=(1.0, 1.25, 0.98), entropy=(0.1, 1.3, 0.0), clipped=(0, 1, 0)
    ... )
    >>> sum(trace.clipped)
    1
    """

    advantage: tuple[float, ...]
    ratio: tuple[float, ...]
    entropy: tuple[float, ...]
    clipped: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioHistogram:
    """Histograms of one step's importance ratios in N bins, with one histogram per sign of the advantage.

    The ratios are those that the trust region bounds. `edges` are the N + 1 bounds of the bins, in increasing
    order. Ratios below or above all bounds count in the first or last bin. The other fields are numbers of
    tokens per bin.
    """

    edges: tuple[float, ...]
    positive: tuple[int, ...]
    negative: tuple[int, ...]
    zero: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedSample:
    """A sampled answer to a benchmark problem: one row of an evaluation's Parquet file.

    `is_correct` says whether the answer counts as correct; the evaluation may count truncated answers as
    wrong, whatever their `verdict`. `logprob_sum` is the sum of the tokens' log-probabilities under the
    sampling distribution, in nats.
    """

    problem: Problem
    sample_index: int
    text: str
    verdict: VerdictKind
    reason: str
    extracted: str | None
    is_correct: bool
    num_tokens: int
    finish_reason: FinishReason
    logprob_sum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkResult:
    """The result of an evaluation on one benchmark: all samples, and summary values by name."""

    step: int
    benchmark: str
    samples: Sequence[EvaluatedSample]
    results: Mapping[str, Any]


class Phase(StrEnum):
    """The phases of a run that differ in memory use."""

    START = "start"
    SAMPLING = "sampling"
    UPDATE = "update"
    OPTIMIZER = "optimizer step"
    EVALUATION = "evaluation"
    SAVING = "saving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """The limits on the completions that one engine decodes at once.

    At most `num_rows` completions share a cache of `cache_tokens` tokens. Reading a cached token transfers
    `token_bytes` bytes on each of the engine's `num_devices` devices.
    """

    num_rows: int
    cache_tokens: int
    token_bytes: int
    num_devices: int = 1


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One item of a device's memory use: its size, the phases that need it, and settings that reduce it."""

    name: str
    num_bytes: int
    phases: tuple[Phase, ...]
    lowered_by: str
