"""A training loop in one file that uses only the objectives of Atrium.

    python examples/minimal_loop.py grpo
    python examples/minimal_loop.py atr divergence.delta=0.05
    python examples/minimal_loop.py ./my_method.yaml

A small Qwen3 with random weights learns to repeat the digit of its prompt: the loop samples groups of
completions, verifies them, and makes several updates on each batch. `atrium train` adds packing, checkpoints,
evaluation and several processes.

Axes: B completions, T completion tokens, L prompt and completion tokens, V vocabulary.
"""

import sys

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

import atrium

NUM_DIGITS = 10
NUM_PROMPTS = 8
GROUP_SIZE = 16
NUM_TOKENS = 2
NUM_EPOCHS = 4
NUM_STEPS = 40


def make_model() -> Qwen3ForCausalLM:
    """Build a two-layer model over the ten digits."""
    config = Qwen3Config(
        vocab_size=NUM_DIGITS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=16,
    )
    return Qwen3ForCausalLM(config)


@torch.no_grad()
def sample(model: Qwen3ForCausalLM, prompt_B: Tensor) -> Tensor:
    """Sample tokens [B, NUM_TOKENS] for each prompt at temperature 1."""
    row_BL = prompt_B[:, None]
    for _ in range(NUM_TOKENS):
        prob_BV = model(row_BL).logits[:, -1].softmax(-1)
        row_BL = torch.cat([row_BL, torch.multinomial(prob_BV, 1)], dim=1)
    return row_BL[:, 1:]


def logprobs(model: Qwen3ForCausalLM, prompt_B: Tensor, token_BT: Tensor) -> Tensor:
    """Compute the log-probabilities [B, T] of completion tokens under the current weights."""
    row_BL = torch.cat([prompt_B[:, None], token_BT], dim=1)
    logprob_BTV = model(row_BL).logits[:, :-1].log_softmax(-1)
    return logprob_BTV.gather(-1, token_BT[:, :, None]).squeeze(-1)


def main(name: str = "atr", *settings: str) -> None:
    """Train with a method, given by the arguments of `atrium.load_method`, and print the mean reward."""
    method = atrium.load_method(name, *settings)
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    group_B = torch.arange(NUM_PROMPTS).repeat_interleave(GROUP_SIZE)

    for step in range(1, NUM_STEPS + 1):
        # Sample a group of completions for each prompt. The sampling policy anchors the importance ratio.
        prompt_B = torch.randint(NUM_DIGITS, (NUM_PROMPTS,))[group_B]
        token_BT = sample(model, prompt_B)
        with torch.no_grad():
            old_logprob_BT = logprobs(model, prompt_B, token_BT)

        # Verify: a completion is correct if it begins with the digit of its prompt.
        reward_B = (token_BT[:, 0] == prompt_B).float()

        # Update several times on one batch, which is where a trust region has an effect.
        for _ in range(NUM_EPOCHS):
            output = method.loss(
                logprobs(model, prompt_B, token_BT),
                torch.ones_like(token_BT),
                old_logprob_BT=old_logprob_BT,
                reward_B=reward_B,
                group_B=group_B,
            )
            optimizer.zero_grad()
            output.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if step % 10 == 0:
            print(f"step {step:3d}  reward {reward_B.mean():.2f}  loss {output.loss.item():+.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
