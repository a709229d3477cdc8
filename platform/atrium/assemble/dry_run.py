"""Trial calls of a run's reward and grader on synthetic completions, before sampling starts."""

from __future__ import annotations

import numpy as np

from atrium.base.errors import ConfigError, PluginError
from atrium.base.records import Completion, FinishReason, Problem, Verdict, VerdictKind
from atrium.config.schema import RunConfig
from atrium.data.arithmetic import solution
from atrium.grading.extraction import answer_text
from atrium.grading.rewards import GradedGroup, checked_rewards
from atrium.models.settings import TinyModelSettings

_NUM_TOKENS = 4


def try_reward(config: RunConfig, problem: Problem) -> None:
    """Call the reward with groups of right, wrong, missing and truncated answers to the problem.

    Raises `PluginError` for invalid rewards, and for rewards that differ between two calls with the same
    group. Exceptions of the reward propagate.
    """
    right = Verdict(kind=VerdictKind.CORRECT, reason="a dry run", extracted=problem.answer)
    wrong = Verdict(kind=VerdictKind.INCORRECT, reason="a dry run", extracted="")
    missing = Verdict(kind=VerdictKind.NO_ANSWER, reason="a dry run")
    for verdicts in ([right], [wrong, missing], [right, wrong, missing]):
        num = config.rollout.group_size
        given = tuple(verdicts[place % len(verdicts)] for place in range(num))
        group = GradedGroup(
            problem=problem,
            completions=tuple(_completion(config, place, one) for place, one in enumerate(given)),
            verdicts=given,
            step=1,
            seed=config.seed,
            max_new_tokens=config.rollout.max_new_tokens,
        )
        if checked_rewards(config.reward, group) != checked_rewards(config.reward, group):
            raise PluginError(
                f"the reward {type(config.reward).__name__} returned different rewards for the same "
                "group, so a resumed run would not be reproducible; derive its random numbers from "
                "group.seed, group.step and the problem"
            )


def try_grader(config: RunConfig, problem: Problem) -> None:
    """Raise `ConfigError` if the grader finds no answer in the text that the built-in model writes.

    The text is the worked solution of `problem`, which must be a problem of the built-in task; the model
    learns to write such solutions in its warm-up. Other models, and a built-in model without warm-up, are not
    checked.
    """
    model = config.model
    if not isinstance(model, TinyModelSettings) or model.warmup.num_steps == 0:
        return
    written = solution(problem.question)
    visible = answer_text(written, thinking=model.thinking)
    if visible is None:
        cause, remedy = "model.thinking=true", "set model.thinking=false, because it writes no </think>"
    elif config.grader.extract(visible) is None:
        place = getattr(config.grader, "answer", None)
        cause = f"grader.kind={config.grader.kind}" if place is None else f"grader.answer={place!r}"
        remedy = "set grader=math" if place is None else "set grader.answer=box"
    else:
        return
    raise ConfigError(
        f"{cause}: the grader finds no answer in the built-in model's output {written!r}; {remedy}"
    )


def _completion(config: RunConfig, place: int, verdict: Verdict) -> Completion:
    """Return a synthetic completion with the given verdict.

    `place` is the completion's position in the group. The completion is truncated if `place` is odd.
    """
    num = min(_NUM_TOKENS + place, config.rollout.max_new_tokens)
    text = "" if verdict.extracted is None else config.grader.write(verdict.extracted)
    return Completion(
        token_ids=np.zeros(num, dtype=np.int32),
        logprobs=np.zeros(num, dtype=np.float32),
        text=text,
        finish_reason=FinishReason.LENGTH if place % 2 else FinishReason.STOP,
        weight_version=0,
    )
