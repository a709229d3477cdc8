"""Records what TRL's own losses make of fixed tensors, in the environment of benchmarks/requirements-trl.txt.

`PYTHONPATH=platform .venv-trl/bin/python tests/peers/record_trl.py` writes tests/peers/vectors/trl.json.
"""

from __future__ import annotations

import torch
from recorded_vectors import write
from tiny_trl import OWN, ROWS, build, config
from trl import GRPOTrainer

T = 6


def drawn():
    """Policies that differ by about the clip range, advantages that differ by row, rows of all lengths."""
    generator = torch.Generator().manual_seed(11)

    def noise(scale):
        return scale * torch.randn(ROWS, T, generator=generator)

    old_BT = -torch.rand(ROWS, T, generator=generator) - 0.1
    return {
        "logprob_BT": old_BT + noise(0.3),
        "old_logprob_BT": old_BT,
        "reference_logprob_BT": old_BT + noise(0.1),
        "advantage_BT": torch.randn(ROWS, generator=generator),
        "mask_BT": (torch.arange(T) < torch.tensor([6, 4, 5, 2, 6, 3, 1, 4])[:, None]).long(),
    }


def recorded(changes, given):
    """The gradient by the log-probabilities of TRL's loss on one micro-batch that is the whole update."""
    trainer = build(config(**changes))
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    logprob_BT = given["logprob_BT"].clone().requires_grad_()
    passed = (logprob_BT, torch.zeros(ROWS, T), None)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: passed
    mask_BT = given["mask_BT"]
    inputs = {
        "prompt_ids": torch.ones_like(mask_BT),
        "prompt_mask": torch.ones_like(mask_BT),
        "completion_ids": torch.ones_like(mask_BT),
        "completion_mask": mask_BT,
        "advantages": given["advantage_BT"],
        "num_items_in_batch": mask_BT.sum(),
        "old_per_token_logps": given["old_logprob_BT"],
        "ref_per_token_logps": given["reference_logprob_BT"],
    }
    GRPOTrainer._compute_loss(trainer, None, inputs).backward()
    return logprob_BT.grad


def main():
    given = drawn()
    gradients = {method: recorded(changes, given) for method, (changes, _) in OWN.items()}
    write("trl", ("trl", "transformers", "torch"), given, gradients)


if __name__ == "__main__":
    main()
