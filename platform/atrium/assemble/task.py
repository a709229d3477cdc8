"""From configuration to the task: problems and their splits, prompts, grader, reward, benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atrium.config.models import ModelConfig
from atrium.config.schema import RunConfig
from atrium.config.tasks import ArithmeticDatasetConfig, GraderConfig, RewardConfig
from atrium.data.arithmetic import ArithmeticSettings, Splits, arithmetic_splits
from atrium.data.prompts import ChatTokenizer, PromptTemplate, encode_prompt, find_prompt_template
from atrium.evaluation.evaluator import Benchmark
from atrium.grading.grader import Grader
from atrium.grading.pool import GraderPool
from atrium.grading.rewards import REWARDS, OverlongPenalty, RewardFunction
from atrium.records import Problem, TokenIds
from atrium.rollout.engine import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Task:
    """The problems of a run, how they are put to the policy, and what an answer is worth."""

    splits: Splits
    template: PromptTemplate
    reward: RewardFunction

    def encoder(self, tokenizer: ChatTokenizer) -> Callable[[Problem], TokenIds]:
        """A function from a problem to its prompt's tokens, which encodes each question once."""
        known: dict[str, TokenIds] = {}

        def encode(problem: Problem) -> TokenIds:
            if problem.question not in known:
                known[problem.question] = encode_prompt(tokenizer, problem, self.template)
            return known[problem.question]

        return encode


def build_task(config: RunConfig) -> Task:
    """The task that the configuration describes."""
    return Task(
        splits=arithmetic_splits(arithmetic_settings(config.dataset)),
        template=find_prompt_template(config.model.prompt),
        reward=build_reward(config.reward, config),
    )


def arithmetic_settings(dataset: ArithmeticDatasetConfig) -> ArithmeticSettings:
    """The built-in task's settings."""
    return ArithmeticSettings(**dataset.model_dump(exclude={"kind"}))


def build_grader(grader: GraderConfig, model: ModelConfig) -> Grader:
    """The pool of graders; its workers start when a text first needs one."""
    settings = grader.model_dump(exclude={"kind"})
    return GraderPool(**settings, kind=grader.kind, thinking=model.thinking)


def build_reward(reward: RewardConfig, config: RunConfig) -> RewardFunction:
    """The function from verdicts to rewards."""
    settings = reward.model_dump(exclude={"kind", "overlong"})
    if reward.kind == "correctness" and reward.overlong is not None:
        settings["overlong"] = OverlongPenalty(
            max_tokens=config.rollout.max_new_tokens,
            buffer_tokens=reward.overlong.buffer_tokens,
            factor=reward.overlong.factor,
        )
    if reward.kind == "random":
        settings["seed"] = config.seed
    return REWARDS[reward.kind](**settings)


def build_benchmarks(config: RunConfig, splits: Splits) -> tuple[Benchmark, Benchmark]:
    """The validation and the test benchmark of the task."""
    evaluation = config.evaluation
    sampling = SamplingParams(
        max_new_tokens=evaluation.max_new_tokens,
        temperature=evaluation.temperature,
        top_p=evaluation.top_p,
    )
    validation, test = (
        Benchmark(
            name=split.name,
            problems=split.problems,
            num_samples=evaluation.num_samples,
            sampling=sampling,
            require_stop=True,
        )
        for split in (splits.validation, splits.test)
    )
    return validation, test
