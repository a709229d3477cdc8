"""The frozen records that cross layers: what a problem, a completion, a verdict and a rollout are.

No behaviour beyond small derived properties lives here, and nothing of the rest of Atrium is imported.
Token ids are int32 arrays and log-probabilities float32 arrays in nats, because a batch of long
completions holds tens of millions of them.
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
"""A completion's rewards by name: each one's value, None where it abstained, and its weight."""
OwnTokens = NDArray[np.bool_]

STORED_VERSION = -1
"""The weight version of completions read from disk: none of this run's weights sampled them."""

REASONING_MARKERS = ("<think>", "</think>")
"""The marks around a completion's reasoning, which is not graded: where it begins, and where it ends."""


class VerdictKind(StrEnum):
    """What the grader found out about one completion."""

    CORRECT = "correct"
    INCORRECT = "incorrect"
    NO_ANSWER = "no_answer"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"


class FinishReason(StrEnum):
    """Why generation ended: the model emitted its stop token, or the length limit was reached."""

    STOP = "stop"
    LENGTH = "length"


CLUSTER = "cluster"
"""The key of a problem's metadata that names its contest, source, template or paraphrase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One question with a verifiable answer.

    `problem_id` is unique within its dataset and stable between loads. `answer` is the gold answer as
    text, without a box. `metadata` holds what breakdowns use, such as `level` and `subject`, and `cluster`.
    `turns` are the turns of a conversation before the question, each a role (system, user, assistant) and
    a text. `verifier` holds values for the verifier alone, as JSON has them.
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
        """What a verifier may judge by: the metadata and the values for the verifier."""
        return {**self.metadata, **self.verifier}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the grader says about one completion, and why.

    A verdict ignores truncation; whether a truncated completion may count is the reward's decision.
    `score` is between 0 and 1 where the verifier gives partial scores, and None elsewhere.
    """

    kind: VerdictKind
    reason: str
    extracted: str | None = None
    score: float | None = None

    @property
    def is_correct(self) -> bool:
        """Whether the extracted answer equals the gold answer."""
        return self.kind is VerdictKind.CORRECT


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """What an engine sampled for one prompt.

    `token_ids` [T] include the stop token when one was emitted; `logprobs` [T] are those of the
    distribution that was sampled from (temperature included). `text` is the decoded completion
    without the stop token. `weight_version` counts the updates of the weights that sampled it.
    `spans` are there where weights changed in its middle: version, first token and the token behind the last
    one of each part, in order; `weight_version` is then the oldest.
    `own` [T] is True at tokens that the policy sampled, and None where it sampled all of them. Others, such
    as a tool's answer, stand between its own: what follows is conditioned on them, they are not trained on,
    and their log-probabilities may be anything, NaN included.
    A stored completion has version `STORED_VERSION`, NaN log-probabilities where none were stored, and the
    reward that was stored with it, if one was.
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
        """The number of sampled tokens, the stop token included; tokens of others are not counted."""
        return len(self.token_ids) if self.own is None else int(self.own.sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollout:
    """A completion with its verdict and its reward. `sample_index` is its place in the group.

    `reward` is None where the reward abstained; groups that train hold no such rollout. `parts` are the named
    rewards of which it is the weighted sum; empty for a single one.
    `behavior_logprobs` [T] are those of the weights that sampled it, by the trainer's numerics; None where
    they were not computed when it was sampled.
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
    """What the objective saw and did at each token of one rollout; lists of T values.

    At tokens that the policy did not write they are NaN, and `clipped` is 0.

    `ratio` is the gate ratio after the step's last update that used the token, `clipped` is +1 where
    that update cut its gradient on the high side, -1 on the low side, 0 where it did not.

    Examples
    --------
    A right answer of three tokens; the second has left a window that ends at 1.2, and is cut there:

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
    """How the gate ratios of one step are distributed over N bins, by the sign of the token's advantage.

    `edges` are the bins' bounds, N + 1 increasing ratios; the outermost ones hold what lies beyond them
    too. Each of the others counts tokens per bin.
    """

    edges: tuple[float, ...]
    positive: tuple[int, ...]
    negative: tuple[int, ...]
    zero: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedSample:
    """One sampled answer to one benchmark problem: a row of an evaluation's Parquet file."""

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
    """One evaluation: a sample per problem and index, and its summary numbers by name."""

    step: int
    benchmark: str
    samples: Sequence[EvaluatedSample]
    results: Mapping[str, object]


class Phase(StrEnum):
    """The phases of a run whose memory differs."""

    START = "start"
    SAMPLING = "sampling"
    UPDATE = "update"
    OPTIMIZER = "optimiser step"
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
    """One use of a device's memory: its bytes, when it is there, and the settings that lower it."""

    name: str
    num_bytes: int
    phases: tuple[Phase, ...]
    lowered_by: str
