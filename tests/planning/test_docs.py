"""The table of docs/scaling.md says what the plan computes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from atrium.assemble.memory import PROMPT_TOKENS, judge, known_shape
from atrium.base.errors import ConfigError
from atrium.config.compose import compose
from atrium.config.machine import Machine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
SIZES = (24, 48, 80, 141)
MODELS = ("qwen3_0_6b", "qwen3_1_7b", "qwen3_4b", "qwen3_8b")
ONE_GPU = Machine(num_cores=16, requested_threads=None, has_cuda=True, has_vllm=True, num_gpus=1)


def row(model):
    config = compose([f"model={model}", "rollout=vllm"], machine=ONE_GPU)
    cells = []
    for size in SIZES:
        try:
            changes = judge(config, known_shape(config), PROMPT_TOKENS, size * 10**9)[1].changes
        except ConfigError:  # vLLM's share does not hold the weights and one completion
            changes = None
        said = "none" if changes == () else "too large" if changes is None else ""
        cells.append(said or "<br>".join(f"`{change}`" for change in changes))
    return f"| `{model}` | {' | '.join(cells)} |"


@pytest.mark.parametrize("model", MODELS)
def test_the_table_says_what_is_computed(model):
    (line,) = re.findall(rf"^\| `{model}` \|.*$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert line == row(model)
