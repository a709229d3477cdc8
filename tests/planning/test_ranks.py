"""The memory of one of several processes: what it shares with the others, and what is its own."""

from __future__ import annotations

import json

import pytest
import yaml

from atrium.cli import main
from atrium.config.files import conf_folder
from atrium.models.architecture import random_shape
from atrium.planning.memory import TrainerDemand, plan_memory


def dimensions(file):
    shipped = yaml.safe_load((conf_folder() / "model" / f"{file}.yaml").read_text(encoding="utf-8"))
    return random_shape(shipped["architecture"])


def sizes(model, **changes):
    settings = TrainerDemand(
        compute_dtype="bfloat16",
        micro_batch_tokens=4096,
        batch_tokens=1 << 20,
        **changes,
    )
    return {item.name: item.num_bytes for item in plan_memory(model, settings)}


def test_a_rank_holds_its_share_of_what_is_shared_and_all_of_its_activations():
    model = dimensions("qwen3_8b")
    alone, shared = sizes(model, has_reference=True), sizes(model, has_reference=True, num_ranks=8)
    for name in ("float32 weights", "AdamW's state", "gradients", "reference weights"):
        assert shared[name] == alone[name] // 8
    for name in ("activations", "logits"):
        assert shared[name] == alone[name]
    replicas = sizes(model, has_reference=True, num_ranks=8, num_shards=4)
    assert replicas["gradients"] == alone["gradients"] // 4
    offloaded = sizes(model, has_reference=True, num_ranks=8, offload=True)
    assert not {"float32 weights", "AdamW's state", "gradients", "reference weights"} & offloaded.keys()


@pytest.mark.parametrize("file", ["qwen3_1_7b", "qwen3_8b", "qwen3_32b"])
def test_blocks_and_what_is_outside_of_them_make_the_model(file):
    model = dimensions(file)
    outside = model.num_parameters - model.num_layers * model.num_block_parameters
    embeddings = model.vocabulary_size * model.hidden_size
    # One matrix where the head is tied, else two; norms are what is left.
    assert outside == pytest.approx(embeddings, rel=1e-2) or outside == pytest.approx(
        2 * embeddings, rel=1e-2
    )


def test_memory_of_a_rank_is_shown_on_the_command_line(capsys):
    assert main(["memory", "model=qwen3_8b", "compute.num_processes=8", "--json"]) == 0
    items = {item["name"]: item["bytes"] for item in json.loads(capsys.readouterr().out)["items"]}
    assert items["float32 weights"] == 4 * 8_190_735_360 // 8
    assert items["engine's copy of the weights"] == 4 * 8_190_735_360
