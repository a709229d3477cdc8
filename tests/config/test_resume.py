"""What may change when a run is continued."""

from __future__ import annotations

import pytest

from atrium.base.errors import ConfigError
from atrium.config.compose import compose
from atrium.config.machine import Machine, machine_with_gpu
from atrium.config.resume import MAY_CHANGE, branched, resumed, schedule_note
from atrium.config.schema import BranchConfig

BEGUN_WITH = ["experiment=stress", "algorithm=grpo", "divergence.delta=0.3", "seed=5"]


@pytest.fixture(scope="module")
def stored():
    machine = Machine(num_cores=4, requested_threads=3, has_cuda=False)
    return compose(BEGUN_WITH, machine=machine)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs" / "stress" / "run"


def test_nothing_changes_but_where_it_is(stored, folder):
    config = resumed(stored, folder, [])
    assert config.resume == str(folder)
    assert config.runs_dir == str(folder.parents[1])
    assert config.model_copy(update={"resume": None, "runs_dir": stored.runs_dir}) == stored


def test_what_was_chosen_for_the_machine_then_is_kept(stored, folder):
    assert resumed(stored, folder, ["num_steps=50"]).compute.num_threads == 3


def test_the_number_of_steps_and_what_changes_no_step_may_change(stored, folder):
    config = resumed(stored, folder, ["num_steps=60", "tracking.progress=off", "tracking.figures=false"])
    assert (config.num_steps, config.tracking.progress, config.tracking.figures) == (60, "off", False)
    assert config.optimizer == stored.optimizer


def test_what_a_run_computes_on_may_change_with_the_machines_that_are_free(stored, folder):
    given = ["compute.num_processes=4", "compute.slurm.partition=gpu", "compute.max_restarts=2"]
    compute = resumed(stored, folder, given).compute
    assert (compute.num_processes, compute.max_restarts, compute.slurm.partition) == (4, 2, "gpu")
    # A preset changes the same settings, and no others.
    assert resumed(stored, folder, ["compute=node"]).compute == stored.compute
    with pytest.raises(ConfigError, match="must divide"):
        resumed(stored, folder, ["compute.num_processes=7"])


@pytest.mark.parametrize(
    "overrides",
    [
        BEGUN_WITH,
        ["seed=5"],
        ["seed=5", "num_steps=60"],
        ["divergence.delta=0.3", "algorithm=grpo"],
        ["rollout=transformers"],
    ],
)
def test_repeating_what_the_run_began_with_is_harmless(stored, folder, overrides):
    assert resumed(stored, folder, overrides).algorithm == stored.algorithm


@pytest.mark.parametrize(
    ("override", "began_with"),
    [
        ("seed=1", "seed=5"),
        ("algorithm=atr", "algorithm.name=grpo"),
        ("divergence=k2", "divergence.delta=0.3"),
        ("divergence.delta=0.1", "divergence.delta=0.3"),
        ("optimizer.learning_rate=1e-4", "optimizer.learning_rate=0.0005"),
        ("experiment=quickstart", "a resumed run keeps its settings"),
        ("debug=tiny_steps", "a resumed run keeps its settings"),
        ("reward.overlong={buffer_tokens:8,factor:1.0}", "reward.overlong=null"),
        ("compute.num_threads=1", "compute.num_threads=3"),
    ],
)
def test_any_other_change_is_refused_by_name(stored, folder, override, began_with):
    with pytest.raises(ConfigError) as refused:
        resumed(stored, folder, [override])
    assert override.partition("=")[0] in str(refused.value)
    assert began_with in str(refused.value)
    assert all(name in str(refused.value) for name in MAY_CHANGE)


def test_a_wrong_setting_is_refused_as_ever(stored, folder):
    with pytest.raises(ConfigError, match="did you mean num_steps"):
        resumed(stored, folder, ["num_stps=3"])
    with pytest.raises(ConfigError, match="num_steps must be at least 1"):
        resumed(stored, folder, ["num_steps=0"])


@pytest.mark.parametrize(
    ("begun_with", "override"),
    [
        (["rollout.num_prompts=48"], "compute.num_processes=3"),
        (["num_steps=5000"], "compute.profile_step=3000"),
        (["rollout=vllm", "model=qwen3_0_6b"], "rollout.placement=server"),
        ([], "compute.num_processes=auto"),
    ],
)
def test_a_change_is_checked_with_the_settings_that_the_run_began_with(folder, begun_with, override):
    began = compose(begun_with, machine=machine_with_gpu())
    section, _, name = override.partition("=")[0].partition(".")
    config = resumed(began, folder, [override])
    assert str(getattr(getattr(config, section), name)) == override.partition("=")[2].replace("auto", "1")


BRANCH = BranchConfig(run="stress/run", step=1, method="key")


def test_a_branch_keeps_what_the_file_of_its_evaluation_leaves_out(folder):
    began = compose(["model=qwen3_0_6b"], machine=machine_with_gpu())
    evaluation = branched(began, folder, BRANCH, ["evaluation=greedy"]).evaluation
    greedy = {"num_samples": 1, "temperature": 0.0, "top_p": 1.0}
    assert evaluation == began.evaluation.model_copy(update=greedy)
    assert branched(began, folder, BRANCH, ["evaluation=null"]).evaluation == began.evaluation
    began = compose(["evaluation.num_samples=8", "evaluation.pass_at=[1,8]", "evaluation.top_k=20"])
    evaluation = branched(began, folder, BRANCH, ["evaluation=greedy"]).evaluation
    assert (evaluation.num_samples, evaluation.pass_at, evaluation.top_k) == (1, None, None)


@pytest.mark.parametrize("override", ["optimizer.learning_rate.a=1", "optimizer.learning_rate.a.b=1"])
def test_a_key_below_a_value_is_refused_on_a_branch(stored, folder, override):
    with pytest.raises(ConfigError, match=r"unknown key; optimizer\.learning_rate is a single value"):
        branched(stored, folder, BRANCH, [override])


@pytest.mark.parametrize(
    ("schedule", "num_steps", "step", "note"),
    [
        (
            "cosine",
            40,
            20,
            "ends at step 40 instead of 20: the learning rate is 0.0005 in step 21, after",
        ),
        (
            "linear",
            40,
            10,
            "ends at step 40 instead of 20: the learning rate is 0.00075 in step 11, after",
        ),
        ("linear", 15, 10, "ends at step 15 instead of 20: the learning rate is 0.000333 in step 11"),
    ],
)
def test_schedule_that_ends_at_another_step_says_how_the_learning_rate_changes(
    stored, schedule, num_steps, step, note
):
    settings = {"schedule": schedule, "learning_rate": 1e-3, "num_warmup_steps": 0}
    optimizer = stored.optimizer.model_copy(update=settings)
    before = stored.model_copy(update={"optimizer": optimizer, "num_steps": 20})
    after = before.model_copy(update={"num_steps": num_steps})
    assert f"optimizer.schedule={schedule} {note}" in str(schedule_note(before, after, step))


@pytest.mark.parametrize(("num_steps", "step"), [(20, 10), (40, 0), (10, 10)])
def test_schedule_without_a_later_step_that_changes_gives_no_note(stored, num_steps, step):
    optimizer = stored.optimizer.model_copy(update={"schedule": "cosine"})
    before = stored.model_copy(update={"optimizer": optimizer, "num_steps": 20})
    assert schedule_note(before, before.model_copy(update={"num_steps": num_steps}), step) is None
    assert schedule_note(stored, stored.model_copy(update={"num_steps": 900}), step) is None
