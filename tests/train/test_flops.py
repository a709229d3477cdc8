"""Model FLOPs against those that torch counts, padding shares, and the table of peaks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from atrium.planning.devices import peak_flops
from atrium.train.measure.flops import ModelFlops

PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm)


@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_the_operations_of_the_weights_are_those_that_torch_counts(make, kind):
    model = make.tiny_policy().model if kind == "qwen3" else make.exact_model()
    rows = make.rows(make.groups())
    forward = make.forward(model)
    with FlopCounterMode(display=False) as counter:
        forward(rows, entropy="none").logprob_BT.sum().backward()
    counted = sum(counter.get_flop_counts()["Global"].get(product, 0) for product in PRODUCTS)
    flops = ModelFlops.of(model)
    shape = rows.num_prompt_tokens_B, rows.num_tokens_B, rows.prompt_index_B
    without_attention = ModelFlops(
        num_layer_weights=flops.num_layer_weights,
        num_head_weights=flops.num_head_weights,
        num_layers=0,
        attention_width=0,
    )
    assert without_attention.of_update(*shape) == counted
    assert flops.of_update(*shape) > counted


def test_attention_counts_each_token_with_those_before_it_and_shared_prompts_once():
    attention = ModelFlops(num_layer_weights=0, num_head_weights=0, num_layers=3, attention_width=5)
    one = attention.of_update(np.array([4]), np.array([7]), np.array([0]))
    assert one == 3 * 2 * 2 * 3 * 5 * (1 + 2 + 3 + 4 + 5 + 6)  # the last token predicts nothing
    two = attention.of_update(np.array([4, 4]), np.array([7, 7]), np.array([0, 0]))
    assert two == 3 * 2 * 2 * 3 * 5 * (1 + 2 + 3 + 4 + 2 * (5 + 6))


def test_a_share_of_a_peak_is_reported_only_where_the_peak_is_known(make):
    rows = make.rows(make.groups())
    _, unknown = make.step(make.updater(make.objective("algorithm=grpo"), make.tiny_policy().model), rows)
    assert "time/mfu_frac" not in unknown
    updater = make.updater(make.objective("algorithm=grpo"), make.tiny_policy().model, peak_flops=1e15)
    _, named = make.step(updater, rows)
    flops = ModelFlops.of(updater.forward.model)
    expected = flops.of_update(rows.num_prompt_tokens_B, rows.num_tokens_B, rows.prompt_index_B)
    assert named["time/mfu_frac"] == pytest.approx(expected / named["time/update_s"] / 1e15)


def test_the_padding_share_is_what_was_computed_beyond_need(make):
    rows = make.rows(make.groups())
    for packing, micro_batch_tokens, is_zero in (
        (True, 10_000, True),
        (True, 30, False),
        (False, 10_000, False),
    ):
        model = make.tiny_policy().model
        updater = make.updater(make.objective("algorithm=grpo"), model, micro_batch_tokens=micro_batch_tokens)
        updater.forward = make.forward(model, packing=packing)
        _, named = make.step(updater, rows)
        assert (named["optimizer/padding_frac"] == 0.0) is is_zero
        assert 0.0 <= named["optimizer/padding_frac"] < 1.0


@pytest.mark.parametrize(
    ("name", "dtype", "tera"),
    [
        ("NVIDIA H200", "bfloat16", 989.0),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.0),
        ("NVIDIA H100 PCIe", "bfloat16", 756.0),
        ("NVIDIA A100-SXM4-80GB", "float32", 19.5),
        ("NVIDIA L40S", "bfloat16", 362.0),
    ],
)
def test_the_peak_of_a_known_device_is_found_by_its_name(name, dtype, tera):
    assert peak_flops(name, dtype) == tera * 1e12


def test_an_unknown_device_has_no_peak():
    assert peak_flops("Another Accelerator", "bfloat16") is None
