"""The built-in task, small enough for real vLLM on a CPU, as overrides, and settings of engines alone."""

from __future__ import annotations

import torch
import yaml

from atrium.config.files import conf_folder
from atrium.engines.settings import VllmSettings


def vllm_settings(**changes):
    """Those of `rollout=vllm`, small and without graphs, with changes."""
    shipped = yaml.safe_load((conf_folder() / "rollout" / "vllm.yaml").read_text(encoding="utf-8"))
    small = {
        "max_num_seqs": 64,
        "gpu_memory_fraction": 0.2,
        "kv_cache_mb": 64,
        "enforce_eager": True,
        "start_timeout_s": 300.0,
        "step_timeout_s": 60.0,
    }
    return VllmSettings(**(shipped | small | changes))


ENGINE = (
    ("rollout=vllm", "rollout.gpu_memory_fraction=0.2", "compute.device=cuda", "rollout.enforce_eager=true")
    if torch.cuda.is_available()
    else ("rollout=vllm_cpu",)
)
# Nothing beside the steps themselves.
BARE = (
    "evaluation.num_samples=1",
    "evaluation.every_num_steps=null",
    "checkpoint.keep_best=false",
    "checkpoint.every_num_steps=100",
    "tracking.figures=false",
    "tracking.progress=off",
)
# Heads of 32, the smallest that vLLM has CPU kernels for; no warm-up, since what is learned is to box.
SMALL = (
    *ENGINE,
    "model.head_dim=32",
    "model.warmup.num_clean_steps=0",
    "model.warmup.num_imperfect_steps=0",
    "dataset.max_operands=3",
    "dataset.num_train=2000",
    "dataset.num_validation=8",
    "dataset.num_test=8",
    "reward=format",
    "rollout.num_prompts=16",
    "rollout.max_new_tokens=24",
    "optimizer.learning_rate=3e-3",
    "optimizer.num_warmup_steps=0",
    "optimizer.num_minibatches=2",
    *BARE,
)
