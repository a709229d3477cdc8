"""`atrium memory`: the prediction against tensors that are there, and what is printed."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from atrium.assemble.memory import planned_memory, trainer_demand
from atrium.assemble.shapes import exact_shape
from atrium.base.records import MemoryItem, Phase
from atrium.cli import main
from atrium.config.compose import compose
from atrium.engines.collate import RolloutRows
from atrium.method.batch import Batch
from atrium.method.objective import ObjectiveState
from atrium.models.architecture import random_shape
from atrium.models.lora import add_lora
from atrium.models.policy import build_random_policy, write_policy
from atrium.models.tiny import build_tiny_policy, build_tokenizer
from atrium.planning import memory
from atrium.planning.memory import (
    TrainerDemand,
    activation_bytes,
    checkpoint_bytes,
    peak_by_phase,
    plan_memory,
)
from atrium.train.checkpoint.checkpoint import CheckpointStore, TrainingState
from atrium.train.settings import AdamWSettings
from atrium.train.update import token_logprobs
from atrium.train.update.forward import PolicyForward
from atrium.train.update.optimizer import PolicyOptimizer

# Longer than what attention on a CPU computes as two products, which keep probabilities.
NUM_ROWS, NUM_PROMPT_TOKENS, LENGTH = 12, 1, 192
OPTIMIZER = AdamWSettings(
    learning_rate=1e-4,
    beta1=0.9,
    beta2=0.99,
    epsilon=1e-8,
    weight_decay=0.0,
    num_warmup_steps=0,
    schedule="constant",
    max_grad_norm=1.0,
)


def _tiny():
    config = compose([])
    return config, build_tiny_policy(config.model, seed=0).model


def _rows():
    """Rows of equal length without a shared prompt, so that the computed positions are nearly all tokens."""
    mask_BT = torch.ones(NUM_ROWS, LENGTH - NUM_PROMPT_TOKENS, dtype=torch.bool)
    number_B = torch.arange(NUM_ROWS)
    batch = Batch(
        mask_BT=mask_BT,
        reward_B=torch.zeros(NUM_ROWS, dtype=torch.float64),
        group_B=number_B,
        sample_key_B=number_B,
        rollout_logprob_BT=torch.zeros(mask_BT.shape),
        is_trained_B=torch.ones(NUM_ROWS, dtype=torch.bool),
    )
    return RolloutRows(
        token_BL=torch.randint(1, 28, (NUM_ROWS, LENGTH), generator=torch.Generator().manual_seed(0)),
        num_prompt_tokens_B=(number_B * 0 + NUM_PROMPT_TOKENS).numpy(),
        num_tokens_B=(number_B * 0 + LENGTH).numpy(),
        prompt_index_B=number_B.numpy(),
        batch=batch,
        live_B=torch.ones(NUM_ROWS, dtype=torch.bool),
    )


def _bytes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _kept_for_backward(model, dtype, **passes):
    """Bytes of all storages that a forward pass keeps, parameters excepted."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    forward = PolicyForward(model, temperature=1.0, autocast_dtype=dtype, **passes)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy = forward(_rows(), entropy="value")
    assert policy.logprob_BT.requires_grad
    return sum(num_bytes for num_bytes, _ in kept.values())


def _items(model, engine=(), **settings):
    defaults = {
        "compute_dtype": "float32",
        "micro_batch_tokens": NUM_ROWS * LENGTH,
        "batch_tokens": NUM_ROWS * LENGTH,
    }
    return plan_memory(model, TrainerDemand(**(defaults | settings)), engine)


def test_weights_gradients_and_optimiser_state_are_exact():
    config, model = _tiny()
    sizes = {item.name: item.num_bytes for item in _items(exact_shape(config))}
    assert sizes["float32 weights"] == _bytes(model.parameters())
    PolicyForward(model, temperature=1.0)(_rows(), entropy="none").logprob_BT.sum().backward()
    assert sizes["gradients"] == _bytes(parameter.grad for parameter in model.parameters())
    optimizer = PolicyOptimizer(model, OPTIMIZER, num_steps=1)
    optimizer.clip_gradient()
    optimizer.step(1)
    assert sizes["AdamW's state"] == _bytes(optimizer.state().values())


@pytest.mark.parametrize("is_adapted", [False, True])
def test_a_checkpoint_takes_the_disk_that_is_asked_for(is_adapted, tmp_path):
    lora = ["model.lora={rank: 4, alpha: 8, target_modules: all_linear}"] if is_adapted else []
    config = compose([*lora, "model.hidden_size=256"])
    policy = build_tiny_policy(config.model, seed=0)
    if is_adapted:
        add_lora(policy.model, config.model.lora, seed=0)
    optimizer = PolicyOptimizer(policy.model, OPTIMIZER, num_steps=1)
    for parameter in policy.model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    optimizer.step(1)
    store = CheckpointStore(
        folder=tmp_path, save_policy=partial(write_policy, policy), keep_last=1, keep_best=False
    )
    path = store.save(TrainingState(objective=ObjectiveState()), optimizer.state())
    found = sum(one.stat().st_size for one in path.rglob("*.safetensors"))
    demand = trainer_demand(config, exact_shape(config), batch_tokens=1, trains=True)
    predicted = checkpoint_bytes(exact_shape(config), demand, with_reference=False)
    assert predicted == pytest.approx(found, rel=0.02)


def test_the_bound_on_logits_is_that_of_the_module_that_computes_them():
    assert memory.CHUNK_LOGITS == token_logprobs._CHUNK_NUMBERS
    assert memory._BLOCK_LOGITS == token_logprobs._BLOCK_NUMBERS


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_are_those_that_a_forward_pass_keeps(dtype):
    config, model = _tiny()
    half = dtype == "bfloat16"
    dimensions = exact_shape(config)
    measured = _kept_for_backward(model, torch.bfloat16 if half else None)
    settings = TrainerDemand(
        compute_dtype=dtype,
        micro_batch_tokens=NUM_ROWS * LENGTH,
        batch_tokens=NUM_ROWS * LENGTH,
    )
    planned = activation_bytes(dimensions, settings)
    planned += 2 * dimensions.num_parameters if half else 0
    # The log-softmax is the part of the logits that is kept.
    planned += 4 * NUM_ROWS * LENGTH * dimensions.vocabulary_size
    # Rows of equal length need no padding within attention, which the plan allows for.
    assert measured <= planned <= 1.2 * measured


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_that_are_computed_again_are_the_states_between_layers_and_one_layer(dtype):
    config = compose(["model.num_layers=6"])
    model = build_tiny_policy(config.model, seed=0).model
    autocast = torch.bfloat16 if dtype == "bfloat16" else None
    dimensions = exact_shape(config)
    kept, again = (_kept_for_backward(model, autocast, recomputes=both) for both in (False, True))
    tokens = NUM_ROWS * LENGTH
    settings = TrainerDemand(
        compute_dtype=dtype, micro_batch_tokens=tokens, batch_tokens=tokens, recomputes=True
    )
    # What the backward pass computes again is there beside what the forward pass kept, one layer at a time.
    shallow = build_tiny_policy(config.model.model_copy(update={"num_layers": 5}), seed=0).model
    layer = kept - _kept_for_backward(shallow, autocast)
    planned = activation_bytes(dimensions, settings) + 4 * tokens * dimensions.vocabulary_size
    keeping = replace(settings, recomputes=False)
    planned += activation_bytes(dimensions, keeping)
    planned -= activation_bytes(replace(dimensions, num_layers=5), keeping)
    assert again + layer <= planned <= 1.25 * (again + layer)
    assert planned < kept / 2


def test_other_architectures_are_within_a_quarter():
    architecture = {
        "model_type": "llama",
        "hidden_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 256,
        "vocab_size": 28,
        "max_position_embeddings": 256,
    }
    dimensions = random_shape(architecture)
    model = build_random_policy(architecture, tokenizer=build_tokenizer(), seed=0).model
    measured = _kept_for_backward(model, None)
    sizes = {item.name: item.num_bytes for item in _items(dimensions)}
    planned = sizes["activations"] + 4 * NUM_ROWS * LENGTH * dimensions.vocabulary_size
    assert planned == pytest.approx(measured, rel=0.25)


ADAPTED = ("model.lora={rank: 4, alpha: 8}",)


def test_of_a_policy_with_adapters_only_these_have_gradients_and_state():
    config, model = compose(ADAPTED), _tiny()[1]
    add_lora(model, config.model.lora, seed=0)
    sizes = {
        item.name: item.num_bytes
        for item in planned_memory(config, exact_shape(config), num_prompt_tokens=16)
    }
    assert sizes["float32 weights"] == _bytes(model.parameters())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert sizes["gradients"] == _bytes(trained) < sizes["float32 weights"] / 2
    PolicyForward(model, temperature=1.0)(_rows(), entropy="none").logprob_BT.sum().backward()
    optimizer = PolicyOptimizer(model, OPTIMIZER, num_steps=1)
    optimizer.clip_gradient()
    optimizer.step(1)
    assert sizes["AdamW's state"] == _bytes(optimizer.state().values())
    # The engine decodes merged weights, and a frozen reference is the policy without its adapters.
    assert sizes["engine's copy of the weights"] == 4 * exact_shape(config).num_parameters
    anchored = planned_memory(
        compose([*ADAPTED, "algorithm=grpo_kl"]), exact_shape(config), num_prompt_tokens=16
    )
    assert "reference weights" not in {item.name for item in anchored}


@pytest.mark.parametrize(("dtype", "rank"), [("float32", 4), ("bfloat16", 4), ("bfloat16", 32)])
def test_activations_with_adapters_are_those_that_a_forward_pass_keeps(dtype, rank):
    config, model = compose([f"model.lora={{rank: {rank}, alpha: 8}}", f"compute.dtype={dtype}"]), _tiny()[1]
    add_lora(model, config.model.lora, seed=0)
    half = dtype == "bfloat16"
    measured = _kept_for_backward(model, torch.bfloat16 if half else None)
    sizes = {item.name: item.num_bytes for item in _adapted_items(config)}
    planned = sizes["activations"] + sizes.get("bfloat16 copy of weights", 0)
    planned += 4 * NUM_ROWS * LENGTH * exact_shape(config).vocabulary_size
    assert measured <= planned <= 1.25 * measured


def _adapted_items(config):
    """The plan of a configuration, with micro-batches of the rows here."""
    compute = config.compute.model_copy(update={"micro_batch_tokens": NUM_ROWS * LENGTH})
    return planned_memory(
        config.model_copy(update={"compute": compute}), exact_shape(config), num_prompt_tokens=16
    )


def test_maps_that_a_model_does_not_have_are_refused_as_in_training(capsys):
    assert main(["memory", "model.lora={rank: 4, alpha: 8, target_modules: [c_attn]}"]) == 2
    assert "model.lora.target_modules contains c_attn" in capsys.readouterr().err


def test_state_that_lies_in_main_memory_is_not_counted_on_the_device(capsys):
    found = []
    for offload in ("false", "true"):
        assert main(["memory", "--json", "model=qwen3_1_7b", f"compute.offload={offload}"]) == 0
        record = json.loads(capsys.readouterr().out)
        found.append({item["name"]: item["bytes"] for item in record["items"]})
    kept, moved = found
    assert kept.pop("AdamW's state") > 8 * 1_720_574_976
    assert moved == kept


def test_recomputed_activations_take_less_and_the_table_says_so(capsys):
    large = ["memory", "--json", "model=qwen3_8b", "rollout.max_new_tokens=4096"]
    peaks = []
    for value in ("false", "true"):
        assert main([*large, f"compute.recompute_activations={value}"]) == 0
        record = json.loads(capsys.readouterr().out)
        assert record["recompute_activations"] is (value == "true")
        peaks.append({item["name"]: item["bytes"] for item in record["items"]}["activations"])
    assert peaks[1] < peaks[0] / 5
    assert main(["memory", *large[2:], "compute.recompute_activations=true"]) == 0
    assert "updates recompute activations" in capsys.readouterr().out


def test_a_phase_holds_what_is_there_at_once():
    config, _ = _tiny()
    dimensions = exact_shape(config)
    engine = (MemoryItem("an engine's cache", 10**9, (Phase.SAMPLING, Phase.EVALUATION), ""),)
    items = _items(dimensions, engine, has_reference=True, keeps_states=True, num_kept=1)
    sizes = {item.name: item.num_bytes for item in items}
    peaks = peak_by_phase(items)
    start = sizes["float32 weights"] + sizes["reference weights"]
    always = start + sizes["AdamW's state"]
    assert peaks[Phase.START] == start
    assert peaks[Phase.SAMPLING] == peaks[Phase.EVALUATION] == always + 10**9
    assert peaks[Phase.SAVING] == always
    assert peaks[Phase.OPTIMIZER] == always + sizes["gradients"] + sizes["weights before updates"]
    assert peaks[Phase.UPDATE] > peaks[Phase.OPTIMIZER] + sizes["activations"] + sizes["proximal states"] - 1


SERVED = ("rollout=vllm_cpu", "rollout.placement=server", "rollout.num_servers=2")


def test_servers_each_take_memory_of_a_cpu_and_none_of_the_trainers_gpu():
    inside, outside = (compose(["rollout=vllm_cpu", *more]) for more in ((), (*SERVED, "rollout.lag=1")))
    shape = exact_shape(inside)
    one, two = ({item.name: item for item in planned_memory(run, shape)} for run in (inside, outside))
    weights = one["float32 weights"].num_bytes
    assert two["weights that servers read"].num_bytes == 2 * weights  # files of two versions
    assert two["weights before updates"].num_bytes == weights
    for name in ("engine's weights", "engine's cache"):
        assert two[name].num_bytes == 2 * one[name].num_bytes
        assert Phase.UPDATE in two[name].phases
    on_gpu = outside.model_copy(update={"compute": outside.compute.model_copy(update={"device": "cuda"})})
    assert not {item.name for item in planned_memory(on_gpu, shape)} & {
        "engine's weights",
        "engine's cache",
        "weights that servers read",
    }


def test_server_of_several_processes_takes_its_weights_once_and_a_cache_for_each_process():
    whole, split = (
        {item.name: item.num_bytes for item in planned_memory(run, exact_shape(run))}
        for run in (compose([*SERVED, f"rollout.tensor_parallel={num}"]) for num in (1, 2))
    )
    assert split["engine's weights"] == whole["engine's weights"]  # of 2 whole ones, or of 4 halves
    assert split["engine's cache"] == 2 * whole["engine's cache"] == 4 * 64 * 2**20
    assert split["weights that servers read"] == whole["weights that servers read"]


def test_servers_of_an_evaluation_are_planned_where_they_are():
    """On a CPU all of them; of GPUs, on which nothing else is, the one that most of them share."""
    shared = (*SERVED, "rollout.devices=[1,1]")

    def items(*settings, device):
        config = compose(settings)
        config = config.model_copy(update={"compute": config.compute.model_copy(update={"device": device})})
        found = planned_memory(config, exact_shape(config), trains=False)
        return {item.name: item.num_bytes for item in found}

    inside, served = (items(*run, device="cpu") for run in (SERVED[:1], SERVED))
    names = ("engine's weights", "engine's cache")
    assert served["weights that servers read"] == 2 * inside["float32 weights"]
    assert [served[name] for name in names] == [2 * inside[name] for name in names]
    for run, num in ((SERVED, 1), (shared, 2)):
        assert items(*run, device="cuda") == {name: num * inside[name] for name in names}


def test_a_large_model_is_planned_from_its_file_alone(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["memory", "--json", "model=qwen3_1_7b", "compute.dtype=bfloat16"]) == 0
    record = json.loads(capsys.readouterr().out)
    sizes = {item["name"]: item["bytes"] for item in record["items"]}
    assert sizes["float32 weights"] == 4 * 1_720_574_976
    assert sizes["bfloat16 copy of weights"] == 2 * 1_720_574_976
    assert record["peak_bytes"]["update"] > 16 * 1_720_574_976
    assert [*tmp_path.iterdir()] == []


def test_the_table_names_the_settings_that_lower_each_part(capsys):
    assert main(["memory", "algorithm=grpo_kl"]) == 0
    printed = capsys.readouterr().out
    for text in (
        *Phase,
        "reference weights",
        "compute.micro_batch_tokens",
        "total",
    ):
        assert text in printed


def test_fewer_tokens_take_less(capsys):
    peaks = []
    for tokens in (512, 1024):
        assert main(["memory", "--json", f"compute.micro_batch_tokens={tokens}"]) == 0
        peaks.append(json.loads(capsys.readouterr().out)["peak_bytes"]["update"])
    assert peaks[0] < peaks[1]


def test_wrong_arguments_are_said_in_one_line(capsys):
    assert main(["memory", "--prompt-tokens", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err
    assert main(["memory", "compute.micro_batch_token=3"]) == 2
    assert "micro_batch_tokens" in capsys.readouterr().err
