"""TRL's trainer and Atrium's on one tiny random model: what both are given, and the gradients they make."""

from __future__ import annotations

import string
import tempfile
from functools import cache

GROUP, ROWS = 4, 8
LETTERS = string.ascii_lowercase
EPSILON = "algorithm.advantage.epsilon=1e-4"  # TRL's
SEQUENCE = {"importance_sampling_level": "sequence"}
OWN = {
    "grpo": ({"loss_type": "grpo"}, [EPSILON]),
    "dapo": ({"loss_type": "dapo", "epsilon_high": 0.28}, [EPSILON]),
    "clip_higher": ({"loss_type": "grpo", "epsilon_high": 0.28}, [EPSILON]),
    "dr_grpo": ({"loss_type": "dr_grpo", "scale_rewards": "none"}, []),
    "gspo": ({"loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4, **SEQUENCE}, [EPSILON]),
    "luspo": ({"loss_type": "luspo", "epsilon": 2e-3, "epsilon_high": 2.5e-3, **SEQUENCE}, [EPSILON]),
    "cispo_absolute": ({"loss_type": "cispo", "epsilon_high": 5.0}, [EPSILON]),
    "sapo": ({"loss_type": "sapo"}, [EPSILON]),
    "vespo": ({"loss_type": "vespo"}, [EPSILON]),
    "dsv32_mask": ({"loss_type": "grpo", "off_policy_mask_threshold": 0.5}, [EPSILON]),
    "lite_ppo": ({"loss_type": "dapo", "scale_rewards": "batch"}, [EPSILON]),
    "grpo_kl": ({"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False}, [EPSILON]),
    "grpo_kl_corrected": ({"loss_type": "grpo", "beta": 0.04}, [EPSILON]),
}
"""By Atrium's preset: the settings that make TRL the same method, and what Atrium's differs in."""


@cache
def model_folder():
    """A random policy of one layer over letters, saved so that TRL can load it again as a reference."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tempfile.mkdtemp(prefix="atrium_trl_")
    words = {word: place for place, word in enumerate(["<pad>", "<eos>", *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<eos>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=1,
        )
    )
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def reward(completions, **_):
    """The share of the first half of the alphabet, which differs within groups."""
    return [sum(letter < "n" for letter in text if letter.isalpha()) / 8 for text in completions]


def vowels(completions, **_):
    """The number of vowels, on another scale than `reward`."""
    return [float(sum(letter in "aeiou" for letter in text)) for text in completions]


def abstaining_reward(completions, **_):
    """The same reward, and None for a text that begins late in the alphabet."""
    return [
        None if text[:1] > "t" else value
        for text, value in zip(completions, reward(completions), strict=True)
    ]


def config(accumulation=1, **changes):
    """Two updates of the same generation batch, the second one far from the policy that sampled."""
    from trl import GRPOConfig

    settings = {
        "output_dir": tempfile.mkdtemp(prefix="atrium_trl_"),
        "per_device_train_batch_size": ROWS // accumulation,
        "gradient_accumulation_steps": accumulation,
        "num_generations": GROUP,
        "num_iterations": 2,
        "max_completion_length": 8,
        "max_steps": 2,
        "learning_rate": 0.5,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "optim": "sgd",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "top_k": 0,
        "seed": 5,
    }
    return GRPOConfig(**(settings | changes))


def build(args, reward_funcs=reward, **atrium):
    """TRL's trainer, or Atrium's where a method is given."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOTrainer

    from atrium.peers.trl_trainer import AtriumGRPOTrainer

    folder = model_folder()
    parts = {
        "model": AutoModelForCausalLM.from_pretrained(folder),
        "reward_funcs": reward_funcs,
        "args": args,
        "train_dataset": Dataset.from_list([{"prompt": LETTERS[place : place + 3]} for place in range(8)]),
        "processing_class": AutoTokenizer.from_pretrained(folder),
    }
    return AtriumGRPOTrainer(**parts, **atrium) if atrium else GRPOTrainer(**parts)


def train(trainer):
    """The gradients of the parameters at each update, one vector per update, and the finished trainer."""
    import torch
    from transformers import TrainerCallback

    gradients = []

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, *_, model, **__):
            gradients.append(torch.cat([one.grad.flatten() for one in model.parameters()]).clone())

    trainer.add_callback(Keep())
    trainer.train()
    return gradients
