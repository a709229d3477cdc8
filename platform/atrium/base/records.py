"""Frozen records shared by all layers: problems, completions, verdicts and rollouts.

The records have only small derived properties, and this module imports nothing else of Atrium. Token ids are
int32 arrays and log-probabilities float32 arrays in nats, because a batch of long completions holds tens of
millions of them.
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
NamedRewards = Mapping[str, tuple[float | None, float]]
"""The named rewards of a completion: each one's value (None if it abstained) and weight."""
OwnTokens = NDArray[np.bool_]

STORED_VERSION = -1
"""Weight version of completions read from disk, which no weights of this run sampled."""

REASONING_MARKERS = ("<think>", "</think>")
"""Markers around a completion's reasoning, which is not graded: start and end."""


class VerdictKind(StrEnum):
    """The grader's finding about one completion."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    NO_ANSWER = "no_answer"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"


class FinishReason(StrEnum):
    """Reason why generation ended: the model emitted its stop token, or the length limit was reached."""

    STOP = "stop"
    LENGTH = "length"


CLUSTER = "cluster"
"""Metadata key that names a problem's contest, source, template or paraphrase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question with a verifiable answer.

    `problem_id` is unique within its dataset and stable between loads. `answer` is the reference answer as
    text, without a box. `metadata` holds the keys used in breakdowns, such as `level`, `subject` and
    `cluster`. `turns` are the earlier turns of a conversation, each a role (system, user, assistant) and a
    text. `verifier` holds JSON values that only the verifier reads.
    """

    problem_id: str
    question: str
    answer: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    turns: tuple[tuple[str, str], ...] = ()
    verifier: Mapping[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> str:
        """The text of the earlier turns and of the question."""
        return "\n".join((*(text for _, text in self.turns), self.question))

    @property
    def judged_by(self) -> Mapping[str, Any]:
        """The metadata and the verifier's own values, which a verifier may use to judge."""
        return {**self.metadata, **self.verifier}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The grader's judgment of one completion, and its reason.

    A verdict ignores truncation; the reward decides whether a truncated completion counts. `score` is between
    0 and 1 if the verifier gives partial scores, else None.
    """

    kind: VerdictKind
    reason: str
    extracted: str | None = None
    score: float | None = None

    @property
    def is_correct(self) -> bool:
        """Whether the extracted answer equals the reference answer."""
        return self.kind is VerdictKind.CORRECT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """A completion that an engine sampled for one prompt.

    `token_ids` [T] include the stop token if one was emitted. `logprobs` [T] belong to the distribution that
    was sampled from (including temperature). `text` is the decoded completion without the stop token.
    `weight_version` counts the updates of the weights that sampled it.

    If the weights changed during the completion, `spans` hold the version, first token and end (exclusive) of
    each part, in order, and `weight_version` is the oldest version.

    `own` [T] is True at tokens that the policy sampled, and None if it sampled all of them. Other tokens,
    such as a tool's output, are context only: they are not trained on, and their log-probabilities may be
    anything, including NaN. A stored completion has version `STORED_VERSION`, NaN log-probabilities if none
    were stored, and its stored reward, if any.
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
        """Whether it was read from disk rather than sampled by this run."""
        return self.weight_version == STORED_VERSION

    @property
    def num_tokens(self) -> int:
        """The number of sampled tokens, including the stop token; tokens of others are not counted."""
        return len(self.token_ids) if self.own is None else int(self.own.sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollout:
    """A completion with its verdict and reward. `sample_index` is its position in the group.

    `reward` is None if the reward abstained; groups used for training contain no such rollout. `parts` are
    the named rewards whose weighted sum it is; empty for a single reward. `behavior_logprobs` [T] are the
    trainer's log-probabilities under the weights that sampled the completion; None if they were not computed
    at sampling time.
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
    Two answers to one problem, of which one is right:

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
    """The objective's inputs and effects at each token of one rollout; lists of T values.

    At tokens that the policy did not sample, values are NaN and `clipped` is 0.

    `ratio` is the gate ratio after the step's last update that used the token, `clipped` is +1 where that
    update clipped its gradient on the high side, -1 on the low side, else 0.

    Examples
    --------
    A right answer of three tokens; the second is above a window that ends at 1.2, and is clipped:

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
    """The distribution of one step's gate ratios over N bins, by the sign of the token's advantage.

    `edges` are the bounds of the bins, N + 1 increasing ratios; the outermost bins include everything beyond
    them. The other fields count tokens per bin.
    """

    edges: tuple[float, ...]
    positive: tuple[int, ...]
    negative: tuple[int, ...]
    zero: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedSample:
    """A sampled answer to a benchmark problem: one row of an evaluation's Parquet file."""

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
    """An evaluation: one sample per problem and index, and summary numbers by name."""

    step: int
    benchmark: str
    samples: Sequence[EvaluatedSample]
    results: Mapping[str, object]


class Phase(StrEnum):
    """Phases of a run with different memory use."""

    START = "start"
    SAMPLING = "sampling"
    UPDATE = "update"
    OPTIMIZER = "optimizer step"
    EVALUATION = "evaluation"
    SAVING = "saving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """How many completions one engine decodes at once.

    At most `num_rows`, and those that a cache of `cache_tokens` tokens holds. Reading a token of it takes
    `token_bytes` on each of the engine's `num_devices`.
    """

    num_rows: int
    cache_tokens: int
    token_bytes: int
    num_devices: int = 1


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One use of a device's memory: its size in bytes, its phases, and the settings that reduce it."""

    name: str
    num_bytes: int
    phases: tuple[Phase, ...]
    lowered_by: str
