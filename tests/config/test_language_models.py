"""The shipped language models and the sources' experiments: they compose, as their papers say."""

from __future__ import annotations

import json
import re

import pytest

from atrium.assemble.memory import check_memory, known_shape
from atrium.base.errors import ConfigError
from atrium.config.compose import compose
from atrium.config.files import conf_folder
from atrium.config.machine import Machine
from atrium.config.multirun import compose_all
from atrium.data.prompts import PROMPT_TEMPLATES
from atrium.models.architecture import random_shape

# As published with each model.
NUM_PARAMETERS = {
    "qwen3_0_6b": 596_049_920,
    "qwen3_1_7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_32b": 32_762_123_264,
    "qwen2_5_math_1_5b": 1_543_714_304,
    "qwen2_5_math_7b": 7_615_616_512,
    "qwen2_5_7b_instruct": 7_615_616_512,
    "deepseek_r1_distill_qwen_1_5b": 1_777_088_000,
    "smollm2_135m": 134_515_008,
}
MODELS = sorted(path.stem for path in (conf_folder() / "model").glob("*.yaml"))
SOURCES = sorted(path.stem for path in (conf_folder() / "experiment").glob("*_qwen*.yaml"))
RPG = [name for name in SOURCES if name.startswith("rpg_")]
GVPO = "gvpo_qwen2_5_math_7b"
GPU = Machine(num_cores=16, requested_threads=None, has_cuda=True, has_vllm=True)


@pytest.fixture
def with_a_gpu(monkeypatch):
    monkeypatch.setattr("atrium.assemble.checks.torch_has_cuda", lambda: True)
    return GPU


@pytest.mark.parametrize("name", NUM_PARAMETERS)
def test_a_random_model_has_the_published_architecture(name):
    model = compose([f"model={name}", "model.weights=random"]).model
    assert random_shape(model.architecture).num_parameters == NUM_PARAMETERS[name]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_asks_with_a_prompt_that_there_is(name):
    text = (conf_folder() / "model" / f"{name}.yaml").read_text(encoding="utf-8")
    prompts = re.findall(r"^prompt: (\w+)", text, flags=re.MULTILINE)
    assert set(prompts) <= set(PROMPT_TEMPLATES)
    assert len(prompts) == (0 if "defaults:" in text else 1)


@pytest.mark.parametrize("named", [["model=hub", "model.source={}"], ["model.source={}"]])
def test_an_experiment_of_a_pretrained_model_holds_for_a_local_copy_of_it(tmp_path, named):
    shipped = compose(["experiment=smollm2"])
    (tmp_path / "config.json").write_text(json.dumps(dict(shipped.model.architecture)))
    local = compose(["experiment=smollm2", *(part.format(tmp_path) for part in named)])
    assert local.model.source == str(tmp_path)
    assert local.model.prompt == shipped.model.prompt
    assert local.model.prompt.stop == ("\n",)
    changed = {"model": shipped.model}
    assert local.model_copy(update=changed) == shipped


def test_random_weights_need_an_architecture():
    with pytest.raises(ConfigError, match=r"weights=random requires model\.architecture.*qwen3_0_6b"):
        compose(["model=hub", "model.source=somebody/model", "model.weights=random"])


@pytest.mark.full
@pytest.mark.release
@pytest.mark.parametrize("name", SOURCES)
def test_an_experiment_names_all_its_methods_in_lines_that_compose(name):
    text = (conf_folder() / "experiment" / f"{name}.yaml").read_text(encoding="utf-8").replace("\\\n#", "")
    lines = re.findall(r"^#\s+atrium train (.*)$", text, flags=re.MULTILINE)
    methods = set()
    for line in lines:
        # Seeds only repeat what is composed.
        overrides = [word for word in line.split() if word != "--multirun" and not word.startswith("seed=")]
        methods |= {config.algorithm.name for _, config in compose_all(overrides)}
    assert len(lines) >= 1
    assert len(methods) >= 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rpg_qwen3_4b_2k", {"num_prompts": 512, "group_size": 16, "max_new_tokens": 2048}),
        ("rpg_qwen3_4b_8k", {"num_prompts": 512, "group_size": 16, "max_new_tokens": 8192}),
        ("gvpo_qwen2_5_math_7b", {"num_prompts": 1024, "group_size": 4, "max_new_tokens": 1024}),
    ],
)
def test_an_experiment_has_its_papers_settings(with_a_gpu, name, expected):
    config = compose([f"experiment={name}"], machine=with_a_gpu)
    rollout = config.rollout.model_dump()
    assert {key: rollout[key] for key in expected} == expected
    assert (config.optimizer.learning_rate, rollout["engine"]) == (1e-6, "vllm")
    assert (config.compute.device, config.compute.dtype) == ("cuda", "bfloat16")


def test_rpg_has_the_optimizer_of_its_appendix():
    optimizer = compose(["experiment=rpg_qwen3_4b_4k"]).optimizer
    assert (optimizer.weight_decay, optimizer.max_grad_norm, optimizer.num_warmup_steps) == (0.1, 1.0, 10)


@pytest.mark.parametrize(("name", "weight_decay"), [*((name, 0.1) for name in RPG), (GVPO, 0.01)])
def test_what_the_paper_leaves_open_is_that_of_the_authors_code(name, weight_decay):
    optimizer = compose([f"experiment={name}"]).optimizer
    assert (optimizer.beta1, optimizer.beta2, optimizer.weight_decay) == (0.9, 0.999, weight_decay)


@pytest.mark.parametrize("name", RPG)
def test_the_dapo_baseline_of_rpg_has_the_dual_clip_of_its_authors(name):
    text = (conf_folder() / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
    (line,) = (line for line in text.splitlines() if "algorithm=dapo" in line)
    algorithm = compose(line.split("atrium train ")[1].split()).algorithm
    assert (algorithm.surrogate.kind, algorithm.surrogate.cap) == ("dual_clip", 10.0)


@pytest.mark.parametrize("name", RPG)
def test_dynamic_sampling_of_rpg_judges_correctness(name):
    filters = compose([f"experiment={name}"]).algorithm.group_filter
    assert (filters.kind, filters.judge) == ("resample", "correctness")


def test_a_model_too_large_for_the_machine_is_refused_before_it_is_loaded(with_a_gpu):
    overrides = ["model=qwen3_8b", "model.weights=random", "dataset=math", "benchmark=math_suite"]
    config = compose(overrides, machine=with_a_gpu)
    with pytest.raises(
        ConfigError, match=r"at least 1\d\d\.\d GB of GPU memory .*only 80\.0 GB are available; use rollout"
    ):
        check_memory(config, known_shape(config), 80 * 10**9)
    check_memory(config, known_shape(config), 280 * 10**9)
