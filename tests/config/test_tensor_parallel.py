"""One vLLM for several processes: what it can be split for; anything else is one line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.config.test_evaluation import of_checkpoint

from atrium.assemble.memory import check_memory, known_shape
from atrium.assemble.ranks import joined_ranks
from atrium.assemble.servers import engine_devices
from atrium.base.errors import ConfigError
from atrium.cli import main
from atrium.config.compose import compose, from_json, to_json
from atrium.config.machine import Machine
from atrium.models.shape import read_shape
from atrium.train.ranks.ranks import Ranks

QWEN3_8B = read_shape(
    {
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
    }
)
MATH = ("dataset=math", "benchmark=math_suite")
RANDOM_8B = ("model=qwen3_8b", "model.weights=random", *MATH, "rollout=vllm")
GB = 10**9


@pytest.fixture
def with_a_gpu(monkeypatch):
    monkeypatch.setattr("atrium.assemble.checks.torch_has_cuda", lambda: True)
    return Machine(num_cores=16, requested_threads=None, has_cuda=True, has_vllm=True)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["rollout.tensor_parallel=2"], "must divide compute.num_processes=1, since processes that share"),
        (["rollout.tensor_parallel=3", "compute.num_processes=4"], "use 1, 2, 4, or change"),
        (
            [
                "rollout.tensor_parallel=4",
                "compute.num_processes=2",
                "compute.num_nodes=2",
                "compute.rendezvous=a:1",
            ],
            "must run on one node",
        ),
        (
            ["rollout.tensor_parallel=2", "compute.num_processes=6", "rollout.num_prompts=4"],
            "num_prompts=4 times rollout.tensor_parallel=2, .* use a total of 2, 4, 8",
        ),
        (["rollout.tensor_parallel must be"], "rollout.tensor_parallel must be"),
    ],
)
def test_processes_that_cannot_share_engines_are_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        compose(["rollout=vllm_cpu", "optimizer.num_minibatches=1", *settings])


def test_fewer_engines_than_processes_need_fewer_prompts():
    shared = ["rollout=vllm", "compute.num_processes=8", "rollout.num_prompts=4"]
    with pytest.raises(ConfigError, match=r"must divide rollout\.num_prompts=4, since"):
        compose([*shared, "optimizer.num_minibatches=1"])
    config = compose([*shared, "optimizer.num_minibatches=1", "rollout.tensor_parallel=2"])
    assert config.rollout.ranks_per_engine == 2


SERVED = ("rollout=vllm", "rollout.placement=server", "rollout.num_servers=2", "rollout.tensor_parallel=2")


def test_servers_have_processes_of_their_own():
    rollout = compose(SERVED).rollout
    assert (rollout.processes_per_engine, rollout.ranks_per_engine) == (2, 1)
    with pytest.raises(ConfigError, match=r"devices must have length 4.*got \[1, 2\]"):
        compose([*SERVED, "rollout.devices=[1,2]"])
    with pytest.raises(ConfigError, match=r"gives one engine the GPUs 0, 0, but .*tensor_parallel=2"):
        compose([*SERVED, "rollout.devices=[1,2,0,0]"])
    compose([*SERVED, "rollout.devices=[1,2,1,2]"])


@pytest.mark.parametrize(
    ("settings", "num_ranks", "expected"),
    [
        ((), 1, [(("1", "2"), ("3", "4"))]),
        (("rollout.devices=[5,0,3,1]",), 1, [(("5", "0"), ("3", "1"))]),
        (("compute.num_processes=2", "rollout.num_prompts=4"), 2, [(("2", "3"),), (("4", "5"),)]),
    ],
)
def test_each_process_of_a_server_has_a_gpu_of_its_own(
    with_a_gpu, monkeypatch, settings, num_ranks, expected
):
    monkeypatch.setattr("atrium.assemble.servers.visible_gpus", lambda: tuple("012345"))
    config = compose([*SERVED, "compute.device=cuda", *settings], machine=with_a_gpu)
    for local_rank, of_rank in enumerate(expected):
        ranks = Ranks()
        ranks.size = ranks.local_size = num_ranks
        ranks.local_rank = local_rank
        assert engine_devices(config, ranks) == of_rank
    monkeypatch.setattr("atrium.assemble.servers.visible_gpus", lambda: tuple("0123"))
    with pytest.raises(ConfigError, match=r"choose other GPUs with rollout\.devices"):
        engine_devices(config, ranks)


def test_other_engines_do_not_know_the_setting():
    assert compose(["rollout=transformers"]).rollout.ranks_per_engine == 1
    with pytest.raises(ConfigError, match="tensor_parallel"):
        compose(["rollout=transformers", "rollout.tensor_parallel=2"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["rollout.tensor_parallel=2"], "rollout.tensor_parallel=2 must divide compute.num_processes=1"),
        (
            ["rollout.tensor_parallel=3", "compute.num_processes=3"],
            "cannot split the model's 4 attention heads; use 1, 2, 4",
        ),
        (
            [*MATH, "model=qwen3_8b", "rollout.tensor_parallel=3", "compute.num_processes=3"],
            "cannot split the model's 32 attention heads; use 1, 2, 4, 8, 16, 32",
        ),
    ],
)
def test_it_is_one_line_before_anything_is_started(tmp_path, capsys, monkeypatch, settings, said):
    monkeypatch.setattr("atrium.engines.vllm_environment.installed_version", {"vllm-cpu": "0.32.0"}.get)
    common = ["rollout=vllm_cpu", "rollout.num_prompts=24", "optimizer.num_minibatches=1", "compute=cpu"]
    assert main(["train", *common, f"runs_dir={tmp_path}", *settings]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_were_started_otherwise_are_refused_before_they_meet(monkeypatch):
    config = compose(["rollout=vllm_cpu", "compute.num_processes=2", "rollout.tensor_parallel=2"])
    for started in ({"WORLD_SIZE": "1"}, {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3"}):
        for name, value in started.items():
            monkeypatch.setenv(name, value)
        with (
            pytest.raises(ConfigError, match=r"tensor_parallel must divide .* got 2; start a multiple of 2"),
            joined_ranks(config),
        ):
            pass


def test_a_run_from_before_the_setting_has_an_engine_per_process():
    stored = json.loads(to_json(compose(["rollout=vllm"])))
    del stored["rollout"]["tensor_parallel"]
    assert from_json(json.dumps(stored)).rollout.tensor_parallel == 1


def test_a_checkpoint_is_evaluated_by_one_process():
    trained = ("rollout=vllm", "compute.num_processes=4", "rollout.tensor_parallel=4")
    config = of_checkpoint(trained=trained).config
    assert (config.compute.num_processes, config.rollout.tensor_parallel) == (1, 1)


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8, 16, 32])
def test_key_value_heads_are_divided_or_copied(num_ranks):
    compose(["rollout=vllm"]).rollout.model_copy(update={"tensor_parallel": num_ranks}).check_model(
        QWEN3_8B, "cuda"
    )


@pytest.mark.parametrize(
    ("changes", "num_ranks", "said"),
    [
        (
            {},
            3,
            "tensor_parallel=3 cannot split the model's 32 attention heads; use 1, 2, 4, 8, 16, 32",
        ),
        (
            {"num_heads": 12, "num_key_value_heads": 3, "vocabulary_size": 190},
            2,
            "3 key-value heads; use 1, 3, 6, 12",
        ),
        ({"feed_forward_size": 100}, 8, "feed-forward width of 100; use 1, 2, 4"),
        (
            {"num_heads": 12, "num_key_value_heads": 6, "vocabulary_size": 100},
            3,
            "vocabulary of 128 rows, including padding; use 1, 2",
        ),
    ],
)
def test_a_model_that_cannot_be_split_is_refused(changes, num_ranks, said):
    shared = compose(["rollout=vllm"]).rollout.model_copy(update={"tensor_parallel": num_ranks})
    with pytest.raises(ConfigError, match=said):
        shared.check_model(replace(QWEN3_8B, **changes), "cuda")


def test_the_built_in_model_and_others_are_checked_alike(with_a_gpu):
    def split(config):
        config.rollout.check_model(known_shape(config), "cuda")

    tiny = ("rollout=vllm", "rollout.num_prompts=12", "optimizer.num_minibatches=1")
    split(compose([*tiny, "compute.num_processes=4", "rollout.tensor_parallel=4"]))
    for model in (tiny, (*RANDOM_8B, "rollout.num_prompts=12", "optimizer.num_minibatches=1")):
        config = compose([*model, "compute.num_processes=3", "rollout.tensor_parallel=3"], machine=with_a_gpu)
        with pytest.raises(ConfigError, match="attention heads; use 1, 2, 4"):
            split(config)


def test_the_memory_of_a_device_is_that_of_its_part(with_a_gpu):
    # 8.19e9 parameters: 131.1 GB to train, 16.4 GB to sample; 8 ranks hold 16.4 GB of the trainer each, and
    # 10.7 GB of gathered weights.
    def check(*settings, device_bytes):
        config = compose([*RANDOM_8B, "compute.num_processes=8", *settings], machine=with_a_gpu)
        check_memory(config, known_shape(config), device_bytes)

    check(device_bytes=80 * GB)
    with pytest.raises(
        ConfigError,
        match=r"only 32\.0 GB are available; use rollout\.tensor_parallel=2 compute\.offload=true$",
    ):
        check(device_bytes=32 * GB)
    with pytest.raises(ConfigError, match=r"gives vLLM 16\.0 GB, but the weights in bfloat16 need 16\.4 GB"):
        check("rollout.sleep_level=1", device_bytes=40 * GB)
    check("rollout.tensor_parallel=4", device_bytes=64 * GB)
    check("rollout.tensor_parallel=4", "compute.offload=true", device_bytes=32 * GB)
