"""Write the inputs of the step benchmarks: models as transformers folders, and problems as JSON lines.

    make_models.py FOLDER              models/0p3m, 3m, 30m with random weights; data/arith, data/examples
    make_models.py FOLDER --warmed-up  models/warm, the built-in policy after its warm-up; data/chain

Models with random weights are for completions of fixed length. The warmed-up model ends its answers, so it is
for completions of natural length. Everything is generated from fixed random seeds; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

PAD, BOS, EOS, UNK = SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>")
TURN_TOKENS = ("<|user|>", "<|assistant|>", "<|end|>", "<think>", "</think>")
CHARACTERS = string.digits + "+-*/=()., :?!\n" + string.ascii_lowercase + "ABCDEFGH"
VOCABULARY = (*SPECIAL_TOKENS, *TURN_TOKENS, *CHARACTERS)

SHAPES = {
    "0p3m": {"hidden_size": 96, "num_hidden_layers": 3, "head_dim": 32, "intermediate_size": 256},
    "3m": {"hidden_size": 256, "num_hidden_layers": 4, "head_dim": 64, "intermediate_size": 704},
    "30m": {
        "hidden_size": 512,
        "num_hidden_layers": 10,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "intermediate_size": 1536,
    },
}
NUM_PROBLEMS = 4096


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per character."""
    backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(VOCABULARY)}, unk_token=UNK))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        additional_special_tokens=list(TURN_TOKENS),
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = (
        "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    return tokenizer


def build_model(shape: dict[str, int]) -> Qwen3ForCausalLM:
    """Build a Qwen3 model with random weights, in float32."""
    ids: dict[str, Any] = {
        f"{name}_token_id": VOCABULARY.index(token)
        for name, token in (("pad", PAD), ("bos", BOS), ("eos", EOS))
    }
    config = Qwen3Config(
        **{"num_attention_heads": 4, "num_key_value_heads": 2} | shape,
        vocab_size=len(VOCABULARY),
        max_position_embeddings=512,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        **ids,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(**ids)
    return model


def two_operand_problems() -> Iterable[dict[str, str]]:
    """Yield sums and differences of two numbers below 100, and products of two numbers up to 12."""
    draw = random.Random(0)
    apply = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
    for _ in range(NUM_PROBLEMS):
        operator = draw.choice("+-*")
        largest = 12 if operator == "*" else 99
        left, right = draw.randint(0, largest), draw.randint(0, largest)
        yield {
            "prompt": f"{left}{operator}{right}=",
            "answer": str(apply[operator](left, right)),
        }


def worked_example_problems() -> Iterable[dict[str, str]]:
    """Yield two-operand problems after six worked examples: prompts of about 190 tokens.

    They are for the pretrained model of `pretrained_model.py`.
    """
    problems = iter(two_operand_problems())
    examples = "".join(
        f"Question: What is {one['prompt'][:-1]}?\nAnswer: {one['prompt']}\\boxed{{{one['answer']}}}\n\n"
        for one in itertools.islice(problems, 6)
    )
    for one in problems:
        question = f"Question: What is {one['prompt'][:-1]}?\nAnswer:"
        yield {"prompt": examples + question, "answer": one["answer"]}


def write_rows(path: Path, rows: Iterable[dict[str, str]]) -> None:
    """Write JSON lines atomically, since make treats an existing file as complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    unfinished.replace(path)


def write_random_models(folder: Path) -> None:
    """Write random models of three sizes, and two-operand problems with and without worked examples."""
    tokenizer = build_tokenizer()
    for name, shape in SHAPES.items():
        model = build_model(shape)
        model.save_pretrained(folder / "models" / name)
        tokenizer.save_pretrained(folder / "models" / name)
        print(f"{folder / 'models' / name}: {sum(p.numel() for p in model.parameters()):,} parameters")
    write_rows(folder / "data" / "examples.jsonl", worked_example_problems())
    write_rows(folder / "data" / "arith.jsonl", two_operand_problems())


def write_warmed_up_model(folder: Path) -> None:
    """Write the built-in policy at the start of reinforcement learning, and its training problems."""
    from atrium.data.arithmetic import arithmetic_splits
    from atrium.data.settings import ArithmeticSettings
    from atrium.models.policy import write_policy
    from atrium.models.settings import TinySettings, WarmupSettings
    from atrium.models.warmup import warmed_up_policy

    settings = ArithmeticSettings()
    policy = warmed_up_policy(
        TinySettings(), WarmupSettings(), settings, seed=0, cache_dir=Path("runs") / ".cache"
    )
    (folder / "models" / "warm").mkdir(parents=True)
    write_policy(policy, folder / "models" / "warm")
    problems = arithmetic_splits(settings).train.problems[:NUM_PROBLEMS]
    rows = [
        {
            "prompt": policy.tokenizer.apply_chat_template(
                [{"role": "user", "content": problem.question}],
                tokenize=False,
                add_generation_prompt=True,
            ),
            "answer": problem.answer,
        }
        for problem in problems
    ]
    write_rows(folder / "data" / "chain.jsonl", rows)
    print(f"{folder / 'models' / 'warm'}: {sum(p.numel() for p in policy.model.parameters()):,} parameters")


def main() -> None:
    """Write the random models or the warmed-up model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--warmed-up", action="store_true")
    args = parser.parse_args()
    transformers.logging.disable_progress_bar()
    (write_warmed_up_model if args.warmed_up else write_random_models)(args.folder)


if __name__ == "__main__":
    main()
