"""The files of a policy's transformers folder other than its weights."""

from __future__ import annotations

import copy
from pathlib import Path

from atrium.models.policy import Policy
from atrium.models.sources import quiet


def write_policy_files(policy: Policy, folder: Path) -> None:
    """Write all files that `write_policy` writes except for weights and adapters, which the caller writes."""
    model = policy.model
    config = copy.deepcopy(model.config)
    config.architectures = [type(model).__name__]
    with quiet():
        config.save_pretrained(folder)
        if model.generation_config is not None:
            model.generation_config.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)
