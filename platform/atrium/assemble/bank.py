"""Functions that find stored rollouts, check them, and pass them to the rollout collector for training."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from atrium.base.errors import DataError, RunFolderError
from atrium.base.plain_files import MAX_LINES_BYTES, read_plain
from atrium.base.records import Problem
from atrium.config.schema import RunConfig
from atrium.data.problems import ProblemStream
from atrium.data.prompts import PromptEncoder
from atrium.engines.bank_engine import BankEngine
from atrium.engines.completion_bank import Vocabulary, build_bank
from atrium.engines.engine import Sampler
from atrium.engines.settings import BankSettings
from atrium.engines.stored_rollouts import StoredCompletion, read_stored, stored_files
from atrium.grading.rewards import GradedGroup, RewardFunction
from atrium.models.policy import Policy
from atrium.models.texts import TextDecoder
from atrium.runs.find import WITH_ROLLOUTS, find_run
from atrium.train.collect import RolloutCollector


@dataclass(frozen=True)
class StoredReward:
    """A reward function that returns stored rewards.

    For a completion without a stored reward, it returns the reward that the function `sampled` computes.
    """

    sampled: RewardFunction

    def __call__(self, group: GradedGroup) -> list[float | None]:
        """Return the stored reward of each completion, or that of `sampled` for a completion without one."""
        pairs = zip(group.completions, self.sampled(group), strict=True)
        return [reward if one.stored_reward is None else one.stored_reward for one, reward in pairs]


def read_bank(
    config: RunConfig, problems: Sequence[Problem], log: Callable[[str], None]
) -> list[StoredCompletion] | None:
    """Return the stored completions that a run trains on, or None if the run's engine is not a bank.

    The model need not be loaded yet. Raises `DataError` or `RunFolderError` if the source is missing or
    damaged, if any completion is for a problem outside `problems`, or if required rewards are missing.
    """
    rollout = config.rollout
    if not isinstance(rollout, BankSettings):
        return None
    files = stored_files(_source(rollout.source, config.runs_dir))
    stored = read_stored(files, problems)
    num_unrewarded = sum(one.reward is None for one in stored)
    if rollout.rewards == "stored" and num_unrewarded:
        raise DataError(
            f"{num_unrewarded} of {len(stored)} completions in {rollout.source} have no reward, but "
            "rollout.rewards=stored requires one for each; add a `reward` column, or choose "
            "rollout.rewards=regrade"
        )
    num_covered = len({one.problem.problem_id for one in stored})
    log(
        f"stored: {len(stored):,} completions of {num_covered:,} of {len(problems):,} training problems, on "
        f"which the run trains; {_anchored(config, stored)}; SHA-256 of the files {_digest(files)}"
    )
    return stored


def collected_from_bank(
    collector: RolloutCollector,
    stored: Sequence[StoredCompletion],
    config: RunConfig,
    policy: Policy,
    problems: Sequence[Problem],
) -> RolloutCollector:
    """Return a copy of the collector whose groups contain stored completions.

    Problems without stored completions are left out. The collector's engine samples the completions that are
    missing in a group. Raises `DataError` if stored completions contain tokens unknown to the policy or are
    too long, if a problem has fewer of them than the stored part of a group requires, and if no problem has
    stored completions.
    """
    rollout = config.rollout
    assert isinstance(rollout, BankSettings), "only a bank has stored completions"
    covered = {one.problem.problem_id for one in stored}
    chosen = [problem for problem in problems if problem.problem_id in covered]
    return replace(
        collector,
        stream=ProblemStream(chosen, config.seed),
        engine=_bank_engine(rollout, stored, policy, encode=collector.encode, live=collector.engine),
        reward=StoredReward(collector.reward) if rollout.rewards == "stored" else collector.reward,
    )


def _bank_engine(
    config: BankSettings,
    stored: Sequence[StoredCompletion],
    policy: Policy,
    *,
    encode: PromptEncoder,
    live: Sampler,
) -> BankEngine:
    tokenizer, decode = policy.tokenizer, TextDecoder(policy.tokenizer)
    vocabulary = Vocabulary(
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
        decode=lambda ids: decode([ids])[0],
        stop_token_ids=policy.stop_token_ids,
        num_tokens=len(tokenizer),
        unknown_token_id=tokenizer.unk_token_id,
    )
    bank = build_bank(
        stored,
        vocabulary,
        encode_prompt=encode,
        max_new_tokens=config.max_new_tokens,
        num_needed=config.num_stored,
    )
    return BankEngine(bank, live, stored_frac=config.stored_frac, context_length=policy.context_length)


def _source(source: str, runs_dir: str) -> Path:
    """Return the path of the stored rollouts.

    `source` is either the path of Parquet data or the name of a run that recorded its rollouts.
    """
    path = Path(source)
    if path.is_file() or (path.is_dir() and any(path.glob("*.parquet"))):
        return path
    try:
        rollouts = find_run(runs_dir, source, last=WITH_ROLLOUTS).rollouts_dir
    except RunFolderError as error:
        raise RunFolderError(
            f"rollout.source={source} is neither a Parquet file nor a run: {error}"
        ) from error
    if not rollouts.is_dir():
        raise DataError(
            f"rollout.source={source}: the run recorded no rollouts; choose a run with "
            "tracking.rollouts_every_num_steps greater than 0"
        )
    return rollouts


def _digest(files: Sequence[Path]) -> str:
    """Return the first 12 hex digits of the SHA-256 of the files' contents."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(read_plain(path, MAX_LINES_BYTES))
    return digest.hexdigest()[:12]


def _anchored(config: RunConfig, stored: Sequence[StoredCompletion]) -> str:
    num_known = sum(one.logprobs is not None for one in stored)
    if config.method.anchors == {"proximal"}:
        return "ratios are computed against the policy at the start of the step"
    if num_known == len(stored):
        return "ratios are computed against their log-probabilities"
    missing = "all" if num_known == 0 else f"{len(stored) - num_known:,}"
    return (
        f"{missing} of them have no log-probabilities, so their ratios are computed against the policy at "
        "the start of the step"
    )
