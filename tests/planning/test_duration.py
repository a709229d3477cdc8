"""Predicted times: how they follow from the settings, and what is printed of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from atrium.assemble.beginning import begin
from atrium.assemble.duration import measured_line, time_lines
from atrium.assemble.memory import PROMPT_TOKENS, judge, known_shape, settled
from atrium.base.errors import ConfigError
from atrium.cli import main
from atrium.config.compose import compose
from atrium.config.machine import Machine
from atrium.planning.devices import GPUS, find_gpu
from atrium.planning.duration import planned_run
from atrium.runs.run_folder import RunFolder

PAGE = Path(__file__).resolve().parents[2] / "docs" / "performance.md"
ONE_GPU = Machine(num_cores=16, requested_threads=None, has_cuda=True, has_vllm=True, num_gpus=1)
SHORT = ("rollout.context_length=2560", "rollout.max_new_tokens=2048")


def composed(*overrides):
    return compose(["model=qwen3_1_7b", "rollout=vllm", *overrides], machine=ONE_GPU)


def planned(*overrides, gpu="H100"):
    config = composed(*overrides)
    return planned_run(config, known_shape(config), gpu, PROMPT_TOKENS)


def test_a_larger_or_smaller_cache_changes_sampling_alone():
    shared, more, less = (
        planned(f"rollout.gpu_memory_fraction={share}", "rollout.max_num_seqs=512")
        for share in (0.4, 0.7, 0.15)
    )
    assert more.sampling_s < shared.sampling_s < 0.9 * less.sampling_s
    assert more.update_s == shared.update_s == less.update_s
    assert planned("rollout.kv_cache_dtype=fp8").sampling_s < 0.7 * shared.sampling_s


def test_rows_beyond_the_cache_are_computed_again_and_take_longer_than_fewer_rows_would():
    crowded = planned("rollout.kv_cache_mb=8000", "rollout.max_num_seqs=512")
    bounded = planned("rollout.kv_cache_mb=8000", "rollout.max_num_seqs=14")
    alone = planned("rollout.kv_cache_mb=8000", "rollout.max_num_seqs=1")
    assert bounded.sampling_s < alone.sampling_s
    assert crowded.sampling_s < 1.5 * bounded.sampling_s


@pytest.mark.parametrize(
    ("override", "factor"),
    [
        ("optimizer.num_epochs=2", 2),
        ("rollout.num_prompts=128", 2),
    ],
)
def test_work_of_an_update_scales_its_time(override, factor):
    assert planned(override).update_s == pytest.approx(factor * planned().update_s, rel=1e-6)


def test_recomputation_repeats_the_forward_pass_of_the_blocks_but_not_the_loss():
    assert 1.2 < planned("compute.recompute_activations=true").update_s / planned().update_s < 4 / 3


def test_compiled_blocks_adapters_and_a_faster_gpu_shorten_an_update_and_offloading_lengthens_it():
    usual = planned().update_s
    assert usual == planned("compute.compile=true").update_s < 0.8 * planned("compute.compile=false").update_s
    assert planned("model.lora={rank: 16, alpha: 32}").update_s < usual
    assert planned(gpu="B200").update_s < 0.6 * usual < usual < planned("compute.offload=true").update_s


def test_fewer_bytes_per_logit_shorten_updates_and_passes_of_tritons_kernels():
    torch, triton = planned(), planned("compute.head_kernel=triton")
    assert 0.7 * torch.update_s < triton.update_s < torch.update_s
    assert 0.7 * torch.passes_s < triton.passes_s < torch.passes_s
    assert triton.sampling_s == torch.sampling_s


def test_processes_share_the_work_and_small_micro_batches_wait_for_the_exchange():
    one, eight = planned(), planned("compute.num_processes=8", "compute.micro_batch_tokens=16384")
    assert eight.update_s == pytest.approx(one.update_s / 8)
    assert one.sampling_s / 8 < eight.sampling_s < one.sampling_s
    assert eight.hand_over_s > one.hand_over_s == 0
    slow = planned("compute.num_processes=8", "compute.micro_batch_tokens=256", gpu="L40S")
    assert slow.update_s > 2 * planned("compute.num_processes=8", gpu="L40S").update_s


def test_servers_that_sample_during_updates_leave_the_longer_side_alone():
    ahead = planned("rollout.placement=server", "rollout.num_servers=3", "rollout.lag=1")
    assert ahead.step_s == pytest.approx(
        max(ahead.sampling_s, ahead.passes_s + ahead.update_s) + ahead.hand_over_s
    )
    assert ahead.sampling_s < planned().sampling_s / 2.5


@pytest.mark.parametrize("model", ["qwen3_0_6b", "qwen3_1_7b"])
def test_evaluations_take_at_most_a_tenth_of_a_thinking_models_run(model):
    config = compose([f"model={model}", "rollout=vllm", "dataset=math", "benchmark=aime24"], machine=ONE_GPU)
    assert config.dataset.num_validation == 100
    assert planned_run(config, known_shape(config), "H100", PROMPT_TOKENS).evaluation_frac <= 0.1


def test_a_sleeping_engine_hands_over_by_main_memory():
    assert planned("rollout.sleep_level=1").hand_over_s > 0


@pytest.mark.parametrize(
    ("overrides", "gpu"),
    [
        ((), "A Card Of Tomorrow"),
        (("rollout=transformers", "rollout.max_batch_tokens=65536"), "H100"),
        (("compute=cpu", "rollout=transformers"), "H100"),
        (("rollout.gpu_memory_fraction=0.01",), "H100"),
    ],
)
def test_nothing_is_predicted_where_the_speed_is_not_known(overrides, gpu):
    assert planned(*overrides, gpu=gpu) is None
    config = composed(*overrides)
    (line,) = time_lines(config, known_shape(config), gpu)
    assert line.startswith("time is not predicted")
    assert line.endswith("measured times follow after the first steps")


def test_memory_prints_the_predicted_time_and_has_it_as_json(capsys):
    assert main(["memory", "model=qwen3_1_7b", "--gpu", "H100"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"predicted, not measured: \d+:\d\d per step \(sampling .*, update .*\)\n", said)
    assert re.search(r"predicted: [\d.]+ h for 200 steps, [\d.]+ % of it evaluations, 4\d\d million", said)
    assert main(["memory", "model=qwen3_1_7b", "--gpu", "H100", "--json"]) == 0
    seconds = json.loads(capsys.readouterr().out)["predicted_seconds"]
    parts = ("sampling", "log_probabilities", "update", "hand_over")
    assert seconds["step"] == pytest.approx(sum(seconds[part] for part in parts))
    assert seconds["run"] == pytest.approx(200 * seconds["step"] + seconds["evaluations"])
    assert main(["memory"]) == 0
    assert capsys.readouterr().out.endswith(
        "\ntime is not predicted on a CPU; measured times follow after the first steps\n"
    )


@pytest.mark.parametrize(
    "choice",
    ["model=qwen3_0_6b", "model=qwen3_1_7b", "model=qwen3_8b", "experiment=atr_qwen3_1_7b"],
)
def test_evaluations_take_at_most_a_tenth_of_a_run(choice):
    asleep = ("rollout=vllm", "rollout.sleep_level=1", "rollout.gpu_memory_fraction=0.6")
    config = compose([choice, *asleep], machine=ONE_GPU)
    settings = settled(config, known_shape(config), PROMPT_TOKENS, 80 * 10**9)
    assert planned_run(settings, known_shape(settings), "H100", PROMPT_TOKENS).evaluation_frac <= 0.101


def test_a_gpu_that_is_not_known_is_one_line(capsys):
    assert main(["memory", "--gpu", "H1"]) == 2
    assert "--gpu H1: unknown GPU; use one of B200, " in capsys.readouterr().err


def test_training_on_a_gpu_says_the_predicted_time_first(monkeypatch, capsys):
    gpu = {"name": "NVIDIA H100 80GB HBM3", "memory": "81559 MiB", "driver": "1"}
    monkeypatch.setattr("atrium.runs.provenance.gpus", lambda: [gpu])
    monkeypatch.setattr("atrium.assemble.beginning.check_run", lambda config, step: 0)
    monkeypatch.setattr("atrium.assemble.beginning.compose", lambda lines: composed(*lines))
    monkeypatch.setattr("atrium.assemble.beginning.train_here", lambda config, lines: None)
    from atrium.assemble.beginning import Origin

    begin(Origin(), [])
    *_, step, run = capsys.readouterr().out.splitlines()
    assert step.startswith("predicted, not measured: ")
    assert run.startswith("predicted: ")
    assert "NVIDIA H100 80GB HBM3" in run


def test_a_run_that_goes_on_is_described_by_its_own_steps(tmp_path):
    run = RunFolder(tmp_path)
    assert measured_line(run, 10) is None
    steps = [
        {"step": step, "time/step_s": 900.0 if step == 1 else 70.0, "time/rollout_s": 40, "time/update_s": 20}
        for step in (1, 2, 3, 4)
    ]
    run.metrics_file.write_text("".join(json.dumps(one) + "\n" for one in steps))
    assert measured_line(run, 10) == (
        "measured in this run: 1:10 per step (sampling 40 s, update 20 s), 7:00 for 6 steps more, "
        "evaluations included"
    )


STEPS = (
    "rollout=vllm compute.compile=false",
    "rollout.sleep_level=1 rollout.gpu_memory_fraction=0.64",
    "rollout.kv_cache_dtype=fp8",
    "compute.compile=true",
    "compute.behavior_logprobs=engine",
)


def setting_rows():
    """The predicted phases of a step of Qwen3-1.7B on an H100 as settings are added one after the other."""
    rows, typed = [], []
    for step in STEPS:
        typed += step.split()
        config = compose(["model=qwen3_1_7b", *typed], machine=ONE_GPU)
        found = settled(config, known_shape(config), PROMPT_TOKENS, 80 * 10**9)
        one = planned_run(found, known_shape(found), "H100", PROMPT_TOKENS)
        seconds = (one.sampling_s, one.passes_s, one.update_s, one.step_s)
        cells = " | ".join(f"{value:.0f}" for value in seconds)
        rows.append(f"| {'with ' if len(rows) else ''}`{step}` | {cells} |")
    return rows


def test_the_table_of_settings_says_what_is_computed():
    assert "\n".join(setting_rows()) in PAGE.read_text(encoding="utf-8")


ROWS = {"24 GB": "RTX 4090", "48 GB": "L40S", "80 GB": "H100", "141 GB": "H200"}


def row(size, model):
    """Of each number of GPUs the predicted seconds of a step, with what the memory plan changes."""
    cells = []
    for num_gpus, num_nodes in ((1, 1), (8, 1), (8, 2)):
        where = [f"compute.num_processes={num_gpus}", f"compute.num_nodes={num_nodes}"]
        where += ["compute.rendezvous=node0:29500"] if num_nodes > 1 else []
        lines = [f"model={model}", "rollout=vllm", *where]
        config = compose(lines, machine=ONE_GPU)
        try:
            gigabytes = GPUS[ROWS[size]].gigabytes
            _, plan = judge(config, known_shape(config), PROMPT_TOKENS, gigabytes * 10**9)
        except ConfigError:
            cells.append("too large")
            continue
        if plan.changes is None:
            cells.append("too large")
            continue
        typed = [part.strip("'") for change in plan.changes for part in re.findall(r"'[^']*'|\S+", change)]
        config = compose([*lines, *typed], machine=ONE_GPU)
        found, _ = judge(config, known_shape(config), PROMPT_TOKENS, gigabytes * 10**9)
        cells.append(f"{planned_run(found, known_shape(found), ROWS[size], PROMPT_TOKENS).step_s:.0f} s")
    return f"| `{model}` | {ROWS[size]}, {size} | {' | '.join(cells)} |"


@pytest.mark.parametrize("size", ROWS)
@pytest.mark.parametrize("model", ["qwen3_1_7b", "qwen3_8b"])
def test_the_table_of_predicted_steps_says_what_is_computed(size, model):
    assert row(size, model) in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["NVIDIA L40", "NVIDIA RTX A4000", "NVIDIA RTX A1000", "NVIDIA GH200 480GB"])
def test_a_gpu_whose_name_only_contains_that_of_another_is_unknown(name):
    assert find_gpu(name) is None
    assert find_gpu("NVIDIA L40S") is GPUS["L40S"]


def test_a_step_of_less_than_half_a_second_has_no_empty_list_of_phases():
    small = ("rollout.num_prompts=1", "rollout.group_size=2", "optimizer.num_minibatches=1")
    config = composed(
        *small, "rollout.max_new_tokens=16", "evaluation.max_new_tokens=16", "model=smollm2_135m"
    )
    line, _ = time_lines(config, known_shape(config), "B200")
    assert line == "predicted, not measured: less than 0.5 s per step"


def test_no_pass_is_predicted_where_training_uses_the_log_probabilities_of_continuous_servers():
    servers = ("rollout.placement=server", "rollout.num_servers=1", "rollout.lag=1")
    once, mixed = (planned(*servers, *more) for more in ((), ("rollout.continuous=true",)))
    assert mixed.passes_s < once.passes_s
