"""Composition: what the defaults are, who overrides whom, and what is refused wherever it stands."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from pydantic import ValidationError

from atrium.base.errors import ConfigError
from atrium.cli import main
from atrium.config import compose as composition
from atrium.config import files, multirun
from atrium.config.compose import check_overrides, compose, from_json, to_json
from atrium.config.compute import check_alone
from atrium.config.files import conf_folder
from atrium.config.machine import Machine
from atrium.config.method_files import read_method
from atrium.config.multirun import compose_all

LAPTOP = Machine(num_cores=4, requested_threads=None, has_cuda=False)
SERVER = Machine(num_cores=16, requested_threads=None, has_cuda=True)


@pytest.fixture(scope="module")
def quickstart():
    return compose(machine=LAPTOP)


@pytest.fixture
def own_conf(tmp_path, monkeypatch):
    """A copy of the shipped files to spoil."""
    folder = tmp_path / "conf"
    shutil.copytree(conf_folder(), folder)
    monkeypatch.setattr(composition, "conf_folder", lambda: folder)
    return folder


def test_a_model_without_a_seed_of_its_own_begins_with_that_of_the_run():
    config = compose(["experiment=speed", "model.seed=null", "seed=7"])
    assert (config.model_seed, config.as_record()["model"]["seed"]) == (7, None)
    assert compose(["seed=7"]).model_seed == 0


def test_a_machines_own_settings_apply_below_what_is_typed_and_can_be_kept_out(own_conf, monkeypatch):
    (own_conf / "local").mkdir()
    (own_conf / "local" / "default.yaml").write_text("compute: {timeout_s: 77}\nrollout: {group_size: 4}\n")
    assert compose(machine=LAPTOP).compute.timeout_s != 77.0
    monkeypatch.delenv("ATRIUM_NO_LOCAL")
    own = compose(["rollout.group_size=6"], machine=LAPTOP)
    assert (own.compute.timeout_s, own.rollout.group_size) == (77.0, 6)
    assert json.loads(to_json(own))["compute"]["timeout_s"] == 77.0
    (own_conf / "local" / "default.yaml").write_text("compute: {timeout: 77}\n")
    with pytest.raises(ConfigError, match=r"compute\.timeout=77: unknown key; did you mean"):
        compose(machine=LAPTOP)


def test_a_machines_own_settings_are_not_typed():
    with pytest.raises(ConfigError, match=r"conf/local/default\.yaml applies automatically"):
        compose(["local=default"])


def test_an_override_of_a_part_below_the_algorithm_says_how_it_is_written(own_conf):
    method = "# arXiv 1.\ndefaults:\n  - grpo\n  - override /divergence: kl3\n  - _self_\nname: mine\n"
    (own_conf / "algorithm" / "mine.yaml").write_text(method)
    with pytest.raises(ConfigError, match=r"mine\.yaml: .*`override /divergence@_global_\.divergence: NAME`"):
        compose(["algorithm=mine"], machine=LAPTOP)


def test_importing_it_loads_no_torch():
    program = (
        "import sys, atrium.config.compose; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0


def test_the_default_is_atr_on_the_built_in_task(quickstart):
    assert quickstart.experiment_name == "quickstart"
    assert (quickstart.algorithm.name, quickstart.divergence.kind) == ("atr", "kl3")
    assert (quickstart.model.kind, quickstart.dataset.kind, quickstart.benchmark.kind) == (
        "tiny",
        "arithmetic",
        "arithmetic",
    )
    assert quickstart.num_steps == 80
    assert (quickstart.rollout.num_prompts, quickstart.rollout.group_size) == (64, 8)
    assert (quickstart.optimizer.num_minibatches, quickstart.optimizer.num_epochs) == (4, 1)
    assert quickstart.num_updates_per_batch == 4
    assert quickstart.optimizer.learning_rate == 3e-4


def test_stress_makes_sixteen_updates_on_each_batch():
    stress = compose(["experiment=stress"], machine=LAPTOP)
    assert (stress.experiment_name, stress.num_steps, stress.num_updates_per_batch) == ("stress", 40, 16)
    assert stress.optimizer.learning_rate == 5e-4


@pytest.mark.parametrize(
    ("overrides", "algorithm", "divergence"),
    [
        (["algorithm=atr"], "atr", "kl3"),
        (["algorithm=grpo"], "grpo", "ratio"),
        (["algorithm=atr", "divergence=k2"], "atr", "k2"),
        (["divergence=k2", "algorithm=atr"], "atr", "k2"),
        (["experiment=stress"], "atr", "kl3"),
        (["experiment=stress", "algorithm=grpo"], "grpo", "ratio"),
        (["experiment=stress", "algorithm=grpo", "divergence=none"], "grpo", "none"),
        (["experiment=null", "algorithm=grpo"], "grpo", "ratio"),
    ],
)
def test_a_preset_chooses_its_divergence_unless_the_command_line_does(overrides, algorithm, divergence):
    config = compose(overrides, machine=LAPTOP)
    assert (config.algorithm.name, config.divergence.kind) == (algorithm, divergence)


def test_a_setting_on_the_command_line_wins_over_every_file():
    overrides = ["experiment=stress", "debug=tiny_steps", "num_steps=7", "divergence.delta=0.05"]
    config = compose(overrides, machine=LAPTOP)
    assert (config.num_steps, config.divergence.delta) == (7, 0.05)


def test_a_debug_preset_wins_over_an_experiment_but_not_over_a_chosen_model():
    assert compose(["experiment=stress", "debug=tiny_steps"]).num_steps == 3
    assert compose(["debug=tiny_steps", "model=tiny"]).model.hidden_size == 64


def test_a_setting_that_no_file_lists_can_be_given_without_a_plus():
    assert compose(["algorithm=dr_grpo", "algorithm.advantage.offset=0.1"]).algorithm.advantage.offset == 0.1


@pytest.mark.parametrize(
    "value", ["messages[1].content", "[a, messages[1].content]", '"messages[1].content"']
)
def test_a_path_with_an_index_needs_no_quotes_on_the_command_line(value):
    config = compose(["benchmark=file", "benchmark.source=a.jsonl", f"benchmark.fields.question={value}"])
    assert config.benchmark.fields.question[-1] == "messages[1].content"


def test_evaluation_is_as_long_as_rollouts_unless_said_otherwise():
    assert compose(["rollout.max_new_tokens=48"]).evaluation.max_new_tokens == 48
    assert compose(["evaluation.max_new_tokens=32"]).evaluation.max_new_tokens == 32


def test_auto_becomes_a_value_that_fits_model_and_machine(quickstart):
    assert quickstart.compute.model_dump() == {
        "device": "cpu",
        "dtype": "float32",
        "head_dtype": "model",
        "head_kernel": "torch",
        "residual_dtype": "float32",
        "num_threads": 1,
        "micro_batch_tokens": 16384,
        "packing": True,
        "compile": False,
        "recompute_activations": False,
        "flash_attention": 2,
        "gradient_exchange": "micro_batch",
        "on_oom": "stop",
        "profile_step": None,
        "behavior_logprobs": "auto",
        "num_processes": 1,
        "num_nodes": 1,
        "num_shards": None,
        "rendezvous": None,
        "allow_public_rendezvous": False,
        "max_restarts": 0,
        "timeout_s": 1800.0,
        "slurm": None,
        "offload": False,
        "memory_limit_mb": None,
    }
    hub = ["model=hub", "model.source=Qwen/Qwen3-0.6B"]
    assert compose(hub, machine=LAPTOP).compute.num_threads == 4
    assert compose([*hub, "compute.num_threads=2"], machine=LAPTOP).compute.num_threads == 2


def test_a_configuration_survives_json(quickstart):
    assert from_json(to_json(quickstart)) == quickstart
    stored = json.loads(to_json(quickstart))
    assert stored["divergence"] == {"kind": "kl3", "delta": 0.0231}
    assert stored["compute"]["num_threads"] == 1


def test_a_configuration_cannot_be_changed(quickstart):
    with pytest.raises(ValidationError):
        quickstart.optimizer.learning_rate = 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ("{}", "is missing"),
        ("[" * 10**5, "JSON"),
    ],
)
def test_a_stored_configuration_that_is_none_is_refused(text, said):
    with pytest.raises(ConfigError, match=said):
        from_json(text)


def test_a_stored_configuration_is_validated_like_a_new_one(quickstart):
    data = json.loads(to_json(quickstart))
    data["optimizer"]["num_minibatches"] = 3
    with pytest.raises(ConfigError, match=r"optimizer\.num_minibatches must divide"):
        from_json(json.dumps(data))
    data["optimizer"] |= {"num_minibatches": 4, "momentum": 0.9}
    with pytest.raises(ConfigError, match=r"optimizer\.momentum=0\.9: unknown key"):
        from_json(json.dumps(data))


def test_a_message_says_how_many_settings_are_wrong_besides_the_first():
    with pytest.raises(ConfigError, match=r"seed must be at least 0, got -1 \(2 more settings are wrong\)"):
        compose(["seed=-1", "num_steps=0", "rollout.group_size=x"])


def test_long_values_are_cut_in_messages():
    with pytest.raises(ConfigError) as refused:
        compose([f"seed={'x' * 5000}"])
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("hydra:\n  callbacks:\n    x:\n      _target_: os.system\n", "hydra.callbacks"),
        ("hydra:\n  run:\n    dir: /tmp\n", "hydra.run.dir"),
        ("hydra:\n  sweep:\n    dir: /tmp\n", "hydra.sweep.dir"),
        ("hydra:\n  output_subdir: .hydra\n", "hydra.output_subdir"),
        ("hydra:\n  launcher:\n    _target_: os.system\n", "hydra.launcher"),
        ("hydra:\n  sweeper:\n    params:\n      seed: 0,1\n", "hydra.sweeper"),
        ("hydra:\n  job_logging:\n    handlers:\n      x:\n        (): os.system\n", "hydra.job_logging"),
        ("hydra:\n  job:\n    env_set:\n      LD_PRELOAD: x\n", "hydra.job.env_set"),
        ("hydra:\n  job:\n    env_copy:\n      - HOME\n", "hydra.job.env_copy"),
        ("model:\n  _target_: os.system\n", "model._target_"),
        ("reward:\n  overlong:\n    - _target_: os.system\n", "reward.overlong.0._target_"),
        ("experiment_name: ${oc.env:HOME}\n", "oc.env"),
        ("experiment_name: ${hydra:runtime.cwd}\n", "hydra"),
        ("experiment_name: run-${now:%S}\n", "now"),
        ("experiment_name: ${${runs_dir}:HOME}\nruns_dir: oc.env\n", "experiment_name"),
    ],
)
def test_a_file_that_names_code_or_reads_the_environment_is_refused(own_conf, text, named):
    (own_conf / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}")
    with pytest.raises(ConfigError) as refused:
        compose(["experiment=mine"])
    assert named in str(refused.value)
    assert "use " in str(refused.value) or "must be " in str(refused.value)


def test_an_experiment_of_ones_own_is_a_file(own_conf):
    (own_conf / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nexperiment_name: mine\nnum_steps: 5\n"
    )
    config = compose(["experiment=mine"])
    assert (config.experiment_name, config.num_steps) == ("mine", 5)


@pytest.mark.parametrize("name", ["", "name: dapo\n"])
def test_a_method_file_that_would_be_recorded_as_another_method_is_refused(own_conf, name):
    text = f"# Mine.\ndefaults:\n  - dapo\n  - _self_\n{name}reduction: {{kind: token_mean}}\n"
    (own_conf / "algorithm" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"^conf/algorithm/mine\.yaml: .*; use name: mine$"):
        compose(["algorithm=mine"])
    (own_conf / "algorithm" / "mine.yaml").write_text(f"{text}name: mine\n".replace("name: dapo\n", ""))
    assert compose(["algorithm=mine"]).algorithm.name == "mine"


@pytest.mark.parametrize("text", ["[1, 2]\n", "num_steps: [\n", "defaults:\n  - nowhere\n"])
def test_a_file_that_cannot_be_read_is_one_line(own_conf, text):
    (own_conf / "experiment" / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        compose(["experiment=mine"])
    assert "\n" not in str(refused.value)
    if "nowhere" in text:
        assert str(refused.value).startswith("conf/experiment/mine.yaml: defaults names experiment/nowhere")


def test_the_files_are_found_inside_an_installed_package(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "atrium"
    shutil.copytree(conf_folder(), package / "conf")
    monkeypatch.setattr(files, "_PACKAGE", package)
    assert conf_folder() == package / "conf"


def test_missing_files_are_an_error_that_says_where_they_were_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_PACKAGE", tmp_path / "lib" / "site-packages" / "atrium")
    with pytest.raises(ConfigError, match="site-packages"):
        conf_folder()


def test_a_sweep_is_the_product_of_its_values_in_hydras_order():
    overrides = ["seed=0,1", "algorithm=atr,grpo", "num_steps=5,6,7", "seed=range(3,6)", "runs_dir='a b'"]
    parsed = check_overrides(overrides, allow_sweeps=True)
    (hydras,) = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    assert [list(job) for job in multirun.jobs(parsed)] == hydras
    assert len(hydras) == 3 * 2 * 3


def test_every_job_of_a_sweep_is_composed():
    jobs = compose_all(["algorithm=atr,grpo", "num_steps=5"])
    assert [(job, config.algorithm.name, config.num_steps) for job, config in jobs] == [
        (("algorithm=atr", "num_steps=5"), "atr", 5),
        (("algorithm=grpo", "num_steps=5"), "grpo", 5),
    ]


@pytest.mark.parametrize(
    ("override", "jobs"),
    [
        ("seed=range(0,3,2)", ["seed=0", "seed=2"]),
        ("seed=choice(3,1)", ["seed=3", "seed=1"]),
        ("algorithm=glob(at*)", ["algorithm=atr"]),
        ("seed=7", ["seed=7"]),
    ],
)
def test_a_sweep_may_be_written_in_all_of_hydras_ways(override, jobs):
    assert multirun.jobs(check_overrides([override], allow_sweeps=True)) == [(job,) for job in jobs]


@pytest.mark.parametrize("override", ["algorithm=glob(zzz*)", "seed=range(3,3)", "seed=glob(*)"])
def test_a_sweep_over_nothing_is_refused_rather_than_run_nothing(override):
    with pytest.raises(ConfigError, match="matches no value, so nothing would run"):
        compose_all([override])


def test_an_experiment_of_ones_own_is_named_by_its_path_wherever_settings_are_composed(tmp_path, capsys):
    mine = tmp_path / "mine.yaml"
    mine.write_text("defaults:\n  - stress\n  - _self_\nnum_steps: 7\n")
    config = compose([f"experiment={mine}", "seed=3"])
    stress = compose(["experiment=stress", "seed=3"])
    assert config == stress.model_copy(update={"num_steps": 7})
    assert main(["memory", f"experiment={mine}", "--json"]) == 0
    assert compose([f"experiment={mine}", "num_steps=9"]).num_steps == 9


def test_a_placeholder_in_a_list_is_refused():
    with pytest.raises(ConfigError, match=r"model.prompt.stop\[0\]: \?\?\? is a placeholder"):
        compose(["model.prompt.stop=[???]"])


def test_hydras_own_settings_are_printed_with_their_references_resolved():
    printed = composition.composed_text(["runs_dir=here"], "hydra", "hydra.sweep", resolve=True)
    assert "dir: here/.cache/multirun/" in printed
    assert "${" not in printed


@pytest.mark.parametrize(
    ("given", "advice"), [(["looks=[3]"], "4 --looks 3,4"), (["looks=[7,5]"], "7 --looks 3,7")]
)
def test_advice_for_wrong_looks_is_a_valid_plan(given, advice):
    with pytest.raises(ConfigError, match=f"use --planned-seeds {advice}"):
        compose(given)
    planned, looks = advice.split(" --looks ")
    assert compose([f"planned_seeds={planned}", f"looks=[{looks}]"]).looks[-1] == int(planned)


def test_a_setting_of_several_processes_is_refused_in_the_notation_of_settings():
    compute = compose([]).compute.model_copy(update={"allow_public_rendezvous": True})
    with pytest.raises(ConfigError, match="must be false, since it is so, got true;"):
        check_alone(compute, "it is so")


@pytest.mark.parametrize("key", ["algorithm.name.a", "algorithm.name.a.b"])
def test_a_key_below_a_value_of_a_method_is_refused(key):
    with pytest.raises(ConfigError, match=f"{key}=3: unknown key"):
        read_method("grpo", [f"{key}=3"])
