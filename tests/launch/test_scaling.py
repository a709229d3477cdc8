"""The plans for many GPUs: what adds up, what must fall with more of them, and the page made of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from atrium.cli import main
from atrium.cli.scaling_page import MODELS, WORK, _model, write_tables
from atrium.errors import ConfigError
from atrium.train.memory_plan import MemorySettings, block_parameters, plan_memory
from atrium.train.scaling_plan import (
    H100,
    H200,
    exchanged_bytes,
    fitting_plan,
    needed_bandwidth,
    num_micro_batches,
    plan_step,
    update_flops,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"


@pytest.fixture(scope="module")
def model():
    return _model("qwen3_8b")


def sizes(model, **changes):
    settings = MemorySettings(
        compute_dtype="bfloat16",
        micro_batch_tokens=4096,
        batch_tokens=1 << 20,
        cache_tokens=1 << 20,
        **changes,
    )
    return {item.name: item.num_bytes for item in plan_memory(model, settings)}


def test_a_rank_holds_its_share_of_what_is_shared_and_all_of_its_activations(model):
    alone, shared = sizes(model, has_reference=True), sizes(model, has_reference=True, num_ranks=8)
    for name in ("weights, float32", "AdamW's state", "gradients", "reference weights", "key-value cache"):
        assert shared[name] == alone[name] // 8
    for name in ("activations", "logits"):
        assert shared[name] == alone[name]
    offloaded = sizes(model, has_reference=True, num_ranks=8, offload=True)
    assert not {"weights, float32", "AdamW's state", "gradients", "reference weights"} & offloaded.keys()


@pytest.mark.parametrize("file", MODELS.values())
def test_blocks_and_what_is_outside_of_them_make_the_model(file):
    model = _model(file)
    outside = model.num_parameters - model.num_layers * block_parameters(model)
    embeddings = model.vocabulary_size * model.hidden_size
    # One matrix where the head is tied, else two; norms are what is left.
    assert outside == pytest.approx(embeddings, rel=1e-2) or outside == pytest.approx(
        2 * embeddings, rel=1e-2
    )


def test_memory_of_a_rank_is_shown_on_the_command_line(capsys):
    assert main(["memory", "model=qwen3_8b", "compute.num_processes=8", "--json"]) == 0
    items = {item["name"]: item["bytes"] for item in json.loads(capsys.readouterr().out)["items"]}
    assert items["weights, float32"] == 4 * 8_190_735_360 // 8
    assert items["engine's copy of the weights"] == 4 * 8_190_735_360


def test_an_update_is_about_six_operations_per_weight_and_token(model):
    work = replace(WORK, num_forward_passes=0, num_prompt_tokens=1, num_completion_tokens=127)
    products = 6 * (model.num_parameters - model.vocabulary_size * model.hidden_size)
    assert update_flops(model, work) == pytest.approx(products * work.num_rows * 127, rel=0.02)
    assert update_flops(model, replace(work, num_forward_passes=3)) == 2 * update_flops(model, work)
    assert update_flops(model, work, recomputes=True) == pytest.approx(4 / 3 * update_flops(model, work))


def test_more_gpus_share_the_work_and_the_bytes_follow_the_micro_batches(model):
    roomy = replace(H100, memory_bytes=10**12)  # where activations are kept, whatever the number
    plans = {number: plan_step(model, WORK, roomy, number) for number in (1, 8, 64)}
    assert plans[1].exchanged_bytes == plans[1].synced_bytes == 0.0
    assert plans[8].update_s == pytest.approx(8 * plans[64].update_s)
    assert plans[8].update_bytes > plans[64].update_bytes
    assert num_micro_batches(WORK, 8) == 8 * num_micro_batches(WORK, 64)
    double = replace(WORK, micro_batch_tokens=2 * WORK.micro_batch_tokens)
    assert exchanged_bytes(model, double, 8) == exchanged_bytes(model, WORK, 8) / 2
    # Two bytes gathered three times and four added up, for 7 of 8 parts, per micro-batch.
    expected = num_micro_batches(WORK, 8) * 10 * model.num_parameters * 7 / 8
    assert exchanged_bytes(model, WORK, 8) == pytest.approx(expected)
    assert needed_bandwidth(plans[8]) == pytest.approx(plans[8].exchanged_bytes / plans[8].update_s)
    assert sum(plans[64].shares().values()) == pytest.approx(1.0)


def test_a_model_that_is_larger_than_a_gpu_has_no_plan_on_one(model):
    assert not plan_step(model, WORK, H100, 1).fits(H100)
    assert plan_step(_model("qwen3_1_7b"), WORK, H100, 8).fits(H100)


def test_activations_are_computed_again_where_an_update_would_not_fit_otherwise(model):
    tight, roomy = (
        plan_step(model, WORK, replace(H100, memory_bytes=size), 8) for size in (80 * 10**9, 10**12)
    )
    assert (tight.recomputes, roomy.recomputes) == (True, False)
    assert tight.fits(H100)
    assert roomy.update_bytes > H100.usable_frac * H100.memory_bytes > tight.update_bytes
    # One forward pass of the behavior policy, and three or four thirds of an update.
    assert tight.update_s == pytest.approx(roomy.update_s * (4 / 3 + 1 / 3) / (1 + 1 / 3))
    assert tight.exchanged_bytes == roomy.exchanged_bytes


def test_an_engine_is_split_over_as_few_gpus_as_it_fits_on():
    large = _model("qwen3_32b")
    assert not plan_step(large, WORK, H100, 16).fits(H100)
    plan = fitting_plan(large, WORK, H100, 16)
    assert plan.fits(H100)
    assert plan.tensor_parallel > 1
    whole, halves = (plan_step(large, WORK, H200, 16, tensor_parallel=size) for size in (1, 2))
    assert halves.sampling_s < whole.sampling_s  # half the weights are read for twice the rows
    assert halves.update_s == whole.update_s
    assert fitting_plan(large, WORK, H100, 1).tensor_parallel == 1
    assert fitting_plan(_model("qwen3_1_7b"), WORK, H100, 16).tensor_parallel == 1


def test_the_page_holds_what_the_formulas_say_now(tmp_path):
    copy = tmp_path / "scaling.md"
    shutil.copy(PAGE, copy)
    write_tables(copy)
    assert copy.read_text() == PAGE.read_text(), "run `make docs`"


def test_a_page_without_the_marks_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(ConfigError, match="lacks the lines"):
        write_tables(page)
    assert page.read_text() == "nothing"
