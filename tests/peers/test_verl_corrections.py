"""verl's presets of rollout corrections: the table of conf/algorithm/README.md on recorded tensors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tests.peers.recorded_vectors import read

import atrium

README = Path(__file__).resolve().parents[2] / "conf" / "algorithm" / "README.md"
ROLLOUT = ("algorithm.ratio.gate.anchor=rollout", "algorithm.ratio.weight.anchor=rollout")
METHODS = {"icepop": ("icepop",), "grpo": ("grpo", *ROLLOUT), "reinforce": ("reinforce",)}
REDUCTIONS = {"token-mean": "token_mean", "seq-mean-token-mean": "sequence_mean_token_mean"}


def cells(title):
    """The cells of the table whose first column has this title."""
    table = re.search(rf"^\| {title} .*\n\|[-|]+\n((?:\|.*\n)+)", README.read_text(), re.MULTILINE)[1]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in table.splitlines()]


STEPS = dict(cells("step"))
PRESETS = {name: rest for name, *rest in cells("verl's preset")}


def preset(name, *settings, normalize=False):
    """The method that the table names for a preset of verl."""
    algorithm, policy, steps, counts = PRESETS[name]
    texts = [STEPS[step].replace("}", f", policy: {policy}}}") for step in filter(None, steps.split(", "))]
    if normalize:
        texts = [text.replace("}", ", normalize: batch}") if "trunc" in text else text for text in texts]
    method, *anchors = METHODS[algorithm]
    correction = f"algorithm.correction=[{', '.join(texts)}]"
    return atrium.load_method(method, *anchors, correction, f"algorithm.reduction.counts={counts}", *settings)


def test_every_preset_of_verl_is_in_the_table():
    recorded = {key.partition(" ")[0].partition("+")[0] for key in read("verl_corrections")["gradients"]}
    assert recorded == PRESETS.keys()
    assert len(recorded) == 19


@pytest.mark.parametrize("key", read("verl_corrections")["gradients"])
def test_gradient_is_that_of_verls_preset(key):
    recorded = read("verl_corrections")
    variant, mode = key.split()
    name, _, normalized = variant.partition("+")
    reduction = f"algorithm.reduction.kind={REDUCTIONS[mode]}"
    method = preset(name, reduction, normalize=bool(normalized))
    tensors = {
        name: torch.tensor(values, dtype=None if name == "mask_BT" else torch.float64)
        for name, values in recorded["tensors"].items()
    }
    logprob_BT = tensors.pop("logprob_BT").requires_grad_()
    method.loss(logprob_BT, **tensors).loss.backward()
    expected_BT = torch.tensor(recorded["gradients"][key], dtype=torch.float64)
    assert expected_BT.abs().max() > 0.0
    # verl divides by the tokens of a row plus 1e-8.
    torch.testing.assert_close(logprob_BT.grad, expected_BT, rtol=1e-6, atol=1e-9)
