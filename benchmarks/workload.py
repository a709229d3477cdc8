"""The workload of all step benchmarks: its options, problems and rewards.

One step takes the next `--prompts` rows of the problems in file order, samples `--group` completions for
each at temperature 1 from the whole vocabulary, rewards them, and makes one AdamW update on the batch
(learning rate 1e-4, gradient norm clipped at 1, no KL term). All completions have the same length, since
the stop token is suppressed; with `--free-length` the model ends its completions.

This module must be imported before torch, so that it can set the number of torch's threads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

LEARNING_RATE = 1e-4
MAX_GRAD_NORM = 1.0
RANDOM_REWARD_FRAC = 0.3


def parser(description: str) -> argparse.ArgumentParser:
    """Build a parser with the options of all step benchmarks."""
    options = argparse.ArgumentParser(description=description)
    add = options.add_argument
    add("--model", required=True, help="a transformers folder, such as one written by make_models.py")
    add("--data", required=True, help="JSONL file with the fields prompt and answer")
    add("--prompts", type=int, default=16, help="prompts per step (default %(default)s)")
    add("--group", type=int, default=8, help="completions per prompt (default %(default)s)")
    add("--max-new-tokens", type=int, default=32, help="tokens per completion (default %(default)s)")
    add("--free-length", action="store_true", help="let completions end at stop tokens")
    add("--steps", type=int, default=20, help="number of steps (default %(default)s)")
    add(
        "--warmup",
        type=int,
        default=2,
        help="number of first steps to exclude from the medians (default %(default)s)",
    )
    add("--micro", type=int, default=0, help="sequences per forward and backward pass; 0 for all")
    add(
        "--dtype",
        default="fp32",
        choices=("fp32", "bf16", "mixed"),
        help="number format; mixed is float32 with bfloat16 autocast",
    )
    add("--device", default="cpu", choices=("cpu", "cuda"), help="device (default %(default)s)")
    add("--threads", type=int, default=0, help="number of torch threads; 0 for torch's default")
    add(
        "--reward",
        default="exact",
        choices=("exact", "random"),
        help="reward; random is 1 with probability 0.3",
    )
    add("--seed", type=int, default=0)
    add("--tag", default="", help="text that is copied to the record")
    return options


def prepare_environment(threads: int) -> None:
    """Set the environment variables that libraries read on import; call this before importing torch."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)


def read_problems(path: str, num_problems: int) -> list[dict[str, str]]:
    """Return the first `num_problems` rows in file order; a shorter file is repeated."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in itertools.islice(itertools.cycle(lines), num_problems)]


class Rewards:
    """A reward function: equality with the answer, or seeded noise for the kind `random`.

    A model with random weights is never correct, and equal rewards give no gradient; random rewards do.
    """

    def __init__(self, kind: str, seed: int) -> None:
        self._is_random = kind == "random"
        self._noise = random.Random(seed)

    def __call__(self, completions: Sequence[str], answers: Sequence[str]) -> list[float]:
        """Return the rewards of a batch, in the order of its completions."""
        if self._is_random:
            return [float(self._noise.random() < RANDOM_REWARD_FRAC) for _ in completions]
        return [float(c.strip() == a) for c, a in zip(completions, answers, strict=True)]
