"""The workload that every step benchmark runs: its options, its problems and its rewards.

One step takes the next `--prompts` rows of the problems in file order, samples `--group` completions for
each at temperature 1 from the whole vocabulary, rewards them, and makes one AdamW update on the batch
(learning rate 1e-4, gradient norm clipped at 1, no KL term). Lengths are fixed by suppressing the stop
token, unless `--free-length` lets completions end where the model ends them.

Imported before torch, so that it can say how many threads torch takes.
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
    """The options that all implementations share."""
    options = argparse.ArgumentParser(description=description)
    add = options.add_argument
    add("--model", required=True, help="a transformers folder, e.g. one that make_models.py wrote")
    add("--data", required=True, help="JSON lines with prompt and answer")
    add("--prompts", type=int, default=16, help="prompts in a step (default %(default)s)")
    add("--group", type=int, default=8, help="completions of each prompt (default %(default)s)")
    add("--max-new-tokens", type=int, default=32, help="tokens of a completion (default %(default)s)")
    add("--free-length", action="store_true", help="let completions stop where the model stops them")
    add("--steps", type=int, default=20, help="steps to run (default %(default)s)")
    add("--warmup", type=int, default=2, help="first steps left out of the medians (default %(default)s)")
    add("--micro", type=int, default=0, help="sequences in one forward and backward; 0 is all of them")
    add(
        "--dtype",
        default="fp32",
        choices=("fp32", "bf16", "mixed"),
        help="mixed: fp32, bf16 autocast",
    )
    add("--device", default="cpu", choices=("cpu", "cuda"), help="where it computes (default %(default)s)")
    add("--threads", type=int, default=0, help="torch's threads; 0 leaves its own choice")
    add("--reward", default="exact", choices=("exact", "random"), help="random: 1 with probability 0.3")
    add("--seed", type=int, default=0)
    add("--tag", default="", help="free text that is repeated in the record")
    return options


def prepare_environment(threads: int) -> None:
    """Settle what libraries read when they are imported; call it before importing torch."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)


def read_problems(path: str, num_problems: int) -> list[dict[str, str]]:
    """The first `num_problems` rows in file order, starting over where the file is shorter."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in itertools.islice(itertools.cycle(lines), num_problems)]


class Rewards:
    """One reward per completion: equality with the answer, or seeded noise.

    A random policy never answers correctly, and equal rewards give no gradient; noise does, at equal cost.
    """

    def __init__(self, kind: str, seed: int) -> None:
        self._is_random = kind == "random"
        self._noise = random.Random(seed)

    def __call__(self, completions: Sequence[str], answers: Sequence[str]) -> list[float]:
        """The rewards of a batch, in its order."""
        if self._is_random:
            return [float(self._noise.random() < RANDOM_REWARD_FRAC) for _ in completions]
        return [float(c.strip() == a) for c, a in zip(completions, answers, strict=True)]
