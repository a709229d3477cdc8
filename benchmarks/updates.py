"""Rollout batches of random tokens, and updaters for them; shared by the benchmarks of updates.

The objective, the forward pass and the optimizer are those of `atrium train`. Tokens, lengths and rewards are
random with a given seed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atrium.engines.collate import RolloutRows
    from atrium.method.divergences import Divergence
    from atrium.train.settings import AdamWSettings
    from atrium.train.update.divergence_meter import DivergenceMeter
    from atrium.train.update.updater import PolicyUpdater

FIRST_TOKEN = 5
"""The smallest id that is not a special token in any vocabulary of the benchmarks."""


def compute_as_runs_do() -> None:
    """Use one thread and keep freed memory, as runs on a CPU do; call this before torch is imported."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    from atrium.train.guard.memory import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()


def natural_lengths(num_completions: int, *, median: int, longest: int, seed: int) -> list[int]:
    """Draw heavy-tailed lengths, as in reasoning: log-normal with sigma 0.8, at most `longest`."""
    import numpy as np

    drawn = np.random.default_rng(seed).lognormal(np.log(median), 0.8, num_completions)
    return np.clip(drawn.round(), 2, longest).astype(int).tolist()


def random_rows(
    lengths: Sequence[int],
    *,
    group_size: int,
    num_prompt_tokens: int,
    vocabulary: int,
    pad_token_id: int,
    seed: int,
    device: str = "cpu",
) -> RolloutRows:
    """Return completions of random tokens with the given lengths, in groups with a common random prompt."""
    import numpy as np

    from atrium.base.records import (
        Completion,
        FinishReason,
        Problem,
        Rollout,
        RolloutGroup,
        Verdict,
        VerdictKind,
    )
    from atrium.engines.collate import collate

    rng = np.random.default_rng(seed)
    verdict = Verdict(kind=VerdictKind.INCORRECT, reason="")

    def rollout(place: int, num_tokens: int) -> Rollout:
        completion = Completion(
            token_ids=rng.integers(FIRST_TOKEN, vocabulary, num_tokens).astype(np.int32),
            logprobs=np.zeros(num_tokens, dtype=np.float32),
            text="",
            finish_reason=FinishReason.LENGTH,
            weight_version=0,
        )
        reward = float(rng.random() < 0.5)
        return Rollout(sample_index=place, completion=completion, verdict=verdict, reward=reward)

    groups = [
        RolloutGroup(
            problem=Problem(problem_id=str(start), question="", answer=""),
            prompt_token_ids=rng.integers(FIRST_TOKEN, vocabulary, num_prompt_tokens).astype(np.int32),
            rollouts=tuple(
                rollout(place, length) for place, length in enumerate(lengths[start : start + group_size])
            ),
        )
        for start in range(0, len(lengths), group_size)
    ]
    trains = [True] * len(groups)
    return collate(groups, trains=trains, pad_token_id=pad_token_id, seed=seed, device=device)


def with_behavior(rows: RolloutRows, updater: PolicyUpdater, seed: int) -> RolloutRows:
    """Return the rows with behavior log-probabilities: the policy's, with noise of 0.15 nats per token."""
    from dataclasses import replace

    import torch

    with torch.no_grad():
        logprob_BT = updater.forward(rows, entropy="none").logprob_BT
    noise_BT = torch.randn(logprob_BT.shape, generator=torch.Generator().manual_seed(seed))
    moved_BT = (logprob_BT + 0.15 * noise_BT.to(logprob_BT.device)).clamp(max=-1e-4)
    rollout_BT = torch.where(rows.batch.mask_BT, moved_BT, 0.0)
    return rows.with_batch(replace(rows.batch, rollout_logprob_BT=rollout_BT))


def build_updater(
    model: Any,
    *,
    divergence: Divergence | None = None,
    meter: DivergenceMeter | None = None,
    num_minibatches: int = 1,
    micro_batch_tokens: int = 16384,
    packing: bool = True,
    dtype: str = "float32",
    seed: int = 0,
    peak_flops: float | None = None,
    recomputes: bool = False,
    offload: bool = False,
    compiles: bool = False,
) -> PolicyUpdater:
    """Build an updater of GRPO, with another trust region if `divergence` is given."""
    import torch

    from atrium.config.presets import read_preset
    from atrium.method.objective import Objective
    from atrium.method.reductions import TokenMean
    from atrium.train.update.compiled_blocks import CompiledBlocks
    from atrium.train.update.forward import PolicyForward
    from atrium.train.update.optimizer import PolicyOptimizer
    from atrium.train.update.update import UpdateSettings
    from atrium.train.update.updater import PolicyUpdater

    method = read_preset("grpo").method.with_parts(reduction=TokenMean())
    return PolicyUpdater(
        objective=Objective(method if divergence is None else replace(method, divergence=divergence)),
        forward=PolicyForward(
            model,
            temperature=1.0,
            meter=meter,
            packing=packing,
            autocast_dtype=torch.bfloat16 if dtype == "bfloat16" else None,
            recomputes=recomputes,
            compiled=CompiledBlocks(model) if compiles else None,
        ),
        optimizer=PolicyOptimizer(model, adamw_settings(), num_steps=1_000_000, offload=offload),
        settings=UpdateSettings(
            num_minibatches=num_minibatches,
            num_epochs=1,
            micro_batch_tokens=micro_batch_tokens,
            behavior_logprobs="engine",
            seed=seed,
            peak_flops=peak_flops,
        ),
    )


def adamw_settings() -> AdamWSettings:
    """Return settings with a learning rate so small that the policy stays nearly the same in all repeats."""
    from atrium.train.settings import AdamWSettings

    return AdamWSettings(
        learning_rate=1e-6,
        beta1=0.9,
        beta2=0.999,
        epsilon=1e-8,
        weight_decay=0.0,
        num_warmup_steps=0,
        schedule="constant",
        max_grad_norm=1.0,
    )


def run_update(updater: PolicyUpdater, rows: RolloutRows, step: int = 1) -> dict[str, float]:
    """Make all updates of one step on these rows, and return the step's metrics by name."""
    from atrium.train.measure.measurements import Measurements

    measurements = Measurements()
    updater.step(rows, updater.objective.initial_state(), step=step, measurements=measurements, trace=False)
    return {quantity.name: value for quantity, value in measurements.values().items()}
