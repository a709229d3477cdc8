"""Records what verl's losses make of fixed tensors with its presets of rollout corrections.

`PYTHONPATH=platform .venv-verl/bin/python tests/peers/record_verl_corrections.py` writes
tests/peers/vectors/verl_corrections.json, in the environment of .ci/verl/requirements.txt.
"""

from __future__ import annotations

import inspect
from dataclasses import asdict, replace

import torch
from recorded_vectors import write
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.workers.config import ActorConfig

B, T = 8, 5
REDUCTIONS = ("token-mean", "seq-mean-token-mean")
NORMALIZED = ("decoupled_token_is", "decoupled_seq_is", "decoupled_geo_rs_token_tis", "bypass_pg_is")
"""The presets that are also recorded with batch normalization."""


def tensors():
    """Rows from near to far: every preset keeps some and rejects others; one row is empty, one has a hole."""
    generator = torch.Generator().manual_seed(124)
    spread_B1 = torch.tensor([1e-4, 2e-4, 0.02, 0.05, 0.1, 0.3, 1.2, 0.3], dtype=torch.float64)[:, None]

    def normal():
        return torch.randn(B, T, generator=generator, dtype=torch.float64)

    old_BT = -0.2 - normal().abs()
    mask_BT = torch.arange(T) < torch.tensor([5, 3, 4, 5, 5, 2, 4, 0])[:, None]
    mask_BT[3, 1] = False
    return {
        "old_logprob_BT": old_BT,
        "rollout_logprob_BT": old_BT + spread_B1 * normal(),
        "logprob_BT": old_BT + 0.7 * spread_B1 * normal(),
        "advantage_BT": normal()[:, :1] * mask_BT,
        "mask_BT": mask_BT,
    }


def gradient(correction, mode):
    """The gradient of verl's loss with a preset, by its trainer's two ways to apply it."""
    given = tensors()
    mask_BT, logprob_BT = given["mask_BT"].double(), given["logprob_BT"].requires_grad_()
    actor = ActorConfig(strategy="fsdp", ppo_micro_batch_size_per_gpu=B, rollout_n=4, clip_ratio_c=1e9)
    anchor_BT, weights_BT = given["old_logprob_BT"], None
    if correction.bypass_mode:
        anchor_BT = given["rollout_logprob_BT"]
        object.__setattr__(actor.policy_loss, "rollout_correction", asdict(correction))
    else:
        settings = {name: value for name, value in asdict(correction).items() if name.startswith("rollout_")}
        found, mask_BT, _ = compute_rollout_correction_and_rejection_mask(
            anchor_BT, given["rollout_logprob_BT"], mask_BT, **settings
        )
        weights_BT = None if found is None else found.batch["rollout_is_weights"]
    loss, _ = get_policy_loss_fn("bypass_mode" if correction.bypass_mode else "vanilla")(
        old_log_prob=anchor_BT,
        log_prob=logprob_BT,
        advantages=given["advantage_BT"],
        response_mask=mask_BT,
        loss_agg_mode=mode,
        config=actor,
        rollout_is_weights=weights_BT,
    )
    loss.backward()
    return logprob_BT.grad


def presets():
    """verl's presets by name; `NAME+normalized` divides weights by their mean."""
    made = {
        name: make()
        for name, make in inspect.getmembers(RolloutCorrectionConfig, inspect.ismethod)
        if name.startswith(("decoupled", "bypass", "disabled"))
    }
    more = {f"{name}+normalized": replace(made[name], rollout_is_batch_normalize=True) for name in NORMALIZED}
    return made | more


def main():
    write(
        "verl_corrections",
        ("verl", "torch"),
        tensors(),
        {
            f"{name} {mode}": gradient(correction, mode)
            for name, correction in presets().items()
            for mode in REDUCTIONS
        },
    )


if __name__ == "__main__":
    main()
