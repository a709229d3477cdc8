"""The interface of the objective: what it computes, what it refuses, and what it loads."""

from __future__ import annotations

import doctest
import math
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import atrium
from atrium.base.errors import ConfigError
from atrium.config.compose import compose
from atrium.config.presets import read_preset
from atrium.method.objective import Objective
from atrium.method.reductions import Totals, count_totals
from atrium.peers.interface import LoadedMethod, load_method

REPOSITORY = Path(__file__).resolve().parents[2]
B, T = 8, 6
MASK_BT = torch.arange(T) < torch.tensor([6, 4, 5, 2, 6, 3, 1, 4])[:, None]
GROUP_B = torch.arange(B) // 4
REWARD_B = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0])


def tensors():
    generator = torch.Generator().manual_seed(3)

    def near(logprob_BT, distance):
        return logprob_BT + distance * torch.randn(B, T, generator=generator)

    rollout_BT = -torch.rand(B, T, generator=generator) - 0.1
    old_BT = near(rollout_BT, 0.02)
    given = {
        "reward_B": REWARD_B,
        "group_B": GROUP_B,
        "rollout_logprob_BT": rollout_BT,
        "old_logprob_BT": old_BT,
        "reference_logprob_BT": near(old_BT, 0.1),
        "entropy_BT": torch.rand(B, T, generator=generator),
        "key_B": torch.arange(B),
    }
    return near(old_BT, 0.3), given


def gradient(method, logprob_BT, rows=slice(None), **given):
    logprob_BT = logprob_BT[rows].clone().requires_grad_()
    part = {name: value[rows] for name, value in given.items() if isinstance(value, torch.Tensor)}
    rest = {name: value for name, value in given.items() if name not in part}
    loss = method.loss(logprob_BT, MASK_BT[rows], **part, **rest).loss
    loss.backward()
    return loss.item(), logprob_BT.grad


@pytest.mark.parametrize("name", ["atr", "dapo", "gvpo", "bapo", "eighty_twenty", "rpg_ufkl", "clip_cov"])
def test_shares_of_micro_batches_add_up_to_the_whole_update(name):
    method = atrium.load_method(name)
    logprob_BT, given = tensors()
    whole, whole_BT = gradient(method, logprob_BT, **given)
    prepared = method.prepare(logprob_BT, MASK_BT, **given)
    given["advantage_BT"] = method.advantages(MASK_BT, **given)
    order = torch.tensor([5, 0, 3, 6, 1, 7, 2, 4])  # groups are torn
    parts = [
        gradient(method, logprob_BT, rows, prepared=prepared.select(rows), **given) for rows in order.split(2)
    ]
    assert sum(loss for loss, _ in parts) == pytest.approx(whole, abs=1e-6)
    found_BT = torch.cat([part_BT for _, part_BT in parts])[order.argsort()]
    torch.testing.assert_close(found_BT, whole_BT, rtol=1e-5, atol=1e-7)
    assert whole_BT.abs().sum() > 0


def test_gvpo_weights_sum_to_zero_over_unmasked_rows_in_torn_micro_batches():
    method = atrium.load_method("gvpo")
    logprob_BT, given = tensors()
    given = {name: one.double() if one.is_floating_point() else one for name, one in given.items()}
    mask_BT = MASK_BT & (torch.arange(B) != 2)[:, None]
    prepared = method.prepare(logprob_BT.double(), mask_BT, **given)
    given["advantage_BT"] = method.advantages(mask_BT, **given).double()
    weight_B = torch.zeros(B, dtype=torch.float64)
    for rows in torch.tensor([5, 0, 3, 6, 1, 7, 2, 4]).split(3):
        part_BT = logprob_BT.double()[rows].requires_grad_()
        part = {name: one[rows] for name, one in given.items()}
        method.loss(part_BT, mask_BT[rows], prepared=prepared.select(rows), **part).loss.backward()
        weight_B[rows] = part_BT.grad.sum(dim=1) / mask_BT[rows].sum(dim=1).clamp(min=1)
    assert weight_B[2] == 0.0
    assert weight_B.abs().max() > 1e-3
    assert weight_B.reshape(2, 4).sum(dim=1).abs().max() < 1e-12


@pytest.mark.parametrize("name", ["atr", "dapo", "luspo"])
def test_the_callers_own_totals_are_the_denominators(name):
    method = atrium.load_method(name)
    logprob_BT, given = tensors()
    _, counted_BT = gradient(method, logprob_BT, **given)
    totals = count_totals(MASK_BT.sum(dim=1), GROUP_B)
    doubled = Totals(**{field.name: 2 * getattr(totals, field.name) for field in fields(totals)})
    _, found_BT = gradient(method, logprob_BT, totals=doubled, **given)
    torch.testing.assert_close(2 * found_BT, counted_BT)


def test_without_old_logprobs_the_policy_is_its_own_anchor():
    logprob_BT, given = tensors()
    del given["old_logprob_BT"]
    method = atrium.load_method("atr")
    advantage_BT = method.advantages(MASK_BT, **given)
    _, found_BT = gradient(method, logprob_BT, **given)
    share_BT = MASK_BT / MASK_BT.sum(dim=1, keepdim=True) / B
    torch.testing.assert_close(found_BT, -advantage_BT * share_BT)


def test_masked_positions_may_hold_anything():
    logprob_BT, given = tensors()
    method = atrium.load_method("dppo_binary_tv", max_new_tokens=T)
    _, clean_BT = gradient(method, logprob_BT, **given)
    for name in ("rollout_logprob_BT", "old_logprob_BT", "entropy_BT"):
        given[name] = torch.where(MASK_BT, given[name], torch.nan)
    _, found_BT = gradient(method, torch.where(MASK_BT, logprob_BT, torch.nan), **given)
    assert torch.equal(found_BT[MASK_BT], clean_BT[MASK_BT])
    assert not found_BT[~MASK_BT].any()


def test_a_loaded_method_is_the_preset_with_what_was_typed():
    loaded = atrium.load_method("atr", "divergence.delta=0.02", "algorithm.reduction.kind=token_mean")
    assert loaded.method.divergence.delta == 0.02
    assert loaded.method.algorithm.reduction.kind == "token_mean"
    assert atrium.load_method("atr").method == read_preset("atr").method
    assert isinstance(loaded, LoadedMethod)
    assert isinstance(Objective(loaded.method), Objective)


def test_a_file_of_ones_own_is_a_method(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "defaults: [grpo, {override /divergence: kl3}]\nname: mine\nsurrogate: {kind: dual_clip, cap: 5.0}\n"
        "reduction: {kind: sequence_mean_token_sum, constant: '${rollout.max_new_tokens}'}\n"
    )
    mine = atrium.load_method(str(path), "divergence.delta=0.05", max_new_tokens=512)
    assert (mine.name, mine.method.algorithm.reduction.constant) == ("mine", 512.0)
    assert mine.words["divergence"] == "kl3 delta=0.05"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gsppo"], "did you mean gspo?"),
        (["atr", "divergence.dleta=1"], r"did you mean divergence\.delta\?"),
        (["atr", "divergence.kind=ratio"], r"divergence\.delta is missing"),
        (["atr", "seed=1"], "unknown setting of a method"),
        (["dr_grpo"], r"algorithm\.reduction\.constant .* pass max_new_tokens"),
        (["tr_ppo"], "requires the distributions over the vocabulary"),
        (["cispo", "divergence=paper/cisp"], "unknown divergence"),
        (["nowhere.yaml"], "there is no such file"),
    ],
)
def test_a_wrong_method_is_one_line_before_anything_is_computed(arguments, said):
    with pytest.raises(ConfigError, match=said) as caught:
        atrium.load_method(*arguments)
    assert "\n" not in str(caught.value)


def test_tensors_that_lack_or_do_not_fit_are_named():
    logprob_BT, given = tensors()
    method = atrium.load_method("gvpo")
    totals = Totals(tokens=1, rows=1, groups=1)
    prepared = method.prepare(logprob_BT, MASK_BT, **given)
    wrong = {
        "must not both be given": {"prepared": prepared, "totals": totals},
        "requires all rows of an update": {"totals": totals},
        r"old_logprob_BT must have shape \[8, 6\] to match mask_BT, got \[8, 5\]": {
            "old_logprob_BT": torch.zeros(B, T - 1)
        },
        r"reward_B must have shape \[8\] to match mask_BT, got \[8, 6\]": {"reward_B": torch.zeros(B, T)},
    }
    for said, change in wrong.items():
        with pytest.raises(ValueError, match=said) as caught:
            method.loss(logprob_BT, MASK_BT, **{**given, **change})
        assert "\n" not in str(caught.value)
    for name in ("reward_B", "group_B"):
        with pytest.raises(ValueError, match=f"{name} is missing"):
            method.loss(logprob_BT, MASK_BT, **{key: given[key] for key in given if key != name})


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.full
def test_methods_load_without_the_extra_train_and_name_scipy_where_it_is_missing():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = {re.split(r"[^\w-]", line)[0] for line in project["optional-dependencies"]["train"]}
    # jinja2, filelock and packaging may come with torch.
    blocked = {name.replace("-", "_") for name in packages} - {"jinja2", "filelock", "packaging"}
    blocked = blocked - {"hydra_core"} | {"hydra", "vllm", "antlr4"}
    assert {"transformers", "omegaconf", "psutil"} <= blocked
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({blocked!r}))\n"
        "import atrium, torch\nmethod = atrium.load_method('atr')\n"
        "method.loss(torch.zeros(2, 3), torch.ones(2, 3), advantage_BT=torch.ones(2))\n"
    )
    done = run(code)
    assert done.returncode == 0, done.stderr
    without = run(code.replace("import atrium", "sys.modules['scipy'] = None\nimport atrium", 1))
    assert without.stderr.strip().endswith("run `pip install scipy`")


def test_the_pages_examples_print_what_they_say():
    results = doctest.testfile(str(REPOSITORY / "docs" / "trainers.md"), module_relative=False)
    assert results.attempted > 5
    assert results.failed == 0


def test_epsilon_0_gives_a_group_with_equal_rewards_advantage_0_in_a_loop_of_ones_own():
    method = load_method("grpo", "algorithm.advantage.scale=group_std", "algorithm.advantage.epsilon=0")
    reward_B = torch.where(GROUP_B == 0, 0.1, REWARD_B)
    found_BT = method.advantages(MASK_BT, reward_B=reward_B, group_B=GROUP_B)
    assert found_BT[GROUP_B == 0].abs().max() == 0.0
    assert found_BT[GROUP_B == 1].abs().max() > 0.4
    logprob_BT, given = tensors()
    loss = method.loss(logprob_BT.requires_grad_(), MASK_BT, **{**given, "reward_B": reward_B}).loss
    loss.backward()
    assert logprob_BT.grad.isfinite().all()


BATCH_WIDE = [
    ["reinforce", "algorithm.advantage.baseline=batch_mean"],
    ["lite_ppo"],
    ["reinforce", "algorithm.advantage.scale=token_std"],
    ["grpo"],
]


def test_row_without_a_reward_leaves_the_mean_of_the_batch_alone():
    method = load_method(*BATCH_WIDE[0])
    given = {"reward_B": torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0]), "group_B": torch.zeros(5)}
    rewarded_B = torch.tensor([True, True, True, True, False])
    found_BT = method.advantages(torch.ones(5, 1), rewarded_B=rewarded_B, **given)
    assert found_BT[:, 0].tolist() == [0.25, 0.25, -0.75, 0.25, 0.0]


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"b": 1.0}, "unknown reward 'b' in weights"),
        ({"a": math.nan}, r"weights\['a'\] must be a finite number, got nan"),
        ({"a": 0.0}, "the weight of at least one reward must not be 0"),
    ],
)
def test_wrong_weight_of_a_reward_is_refused_with_its_reason(weights, said):
    with pytest.raises(ValueError, match=said):
        load_method("grpo").advantages(MASK_BT, rewards={"a": REWARD_B}, weights=weights, group_B=GROUP_B)


@pytest.mark.parametrize("arguments", BATCH_WIDE, ids=" ".join)
def test_advantages_of_rewarded_rows_are_those_of_a_batch_of_them_alone(arguments):
    method = load_method(*arguments)
    rewarded_B = torch.tensor([True, True, False, True, True, False, True, True])
    reward_B = torch.where(rewarded_B, REWARD_B, torch.nan)
    found_BT = method.advantages(MASK_BT, rewarded_B=rewarded_B, reward_B=reward_B, group_B=GROUP_B)
    expected_BT = method.advantages(
        MASK_BT[rewarded_B], reward_B=REWARD_B[rewarded_B], group_B=GROUP_B[rewarded_B]
    )
    assert torch.equal(found_BT[rewarded_B], expected_BT)
    assert found_BT[~rewarded_B].abs().max() == 0.0


@pytest.mark.parametrize("arguments", BATCH_WIDE, ids=" ".join)
def test_process_without_a_rewarded_row_makes_the_same_exchanges(arguments):
    method = load_method(*arguments)

    def exchanges(rewarded_B):
        shapes = []

        def note(tensor):
            shapes.append(tensor.shape)
            return tensor

        method.advantages(
            MASK_BT, rewarded_B=rewarded_B, reward_B=REWARD_B, group_B=GROUP_B, sum_over_ranks=note
        )
        return shapes

    assert exchanges(torch.zeros(B, dtype=torch.bool)) == exchanges(torch.ones(B, dtype=torch.bool))


def test_null_is_a_value_of_a_setting():
    assert (
        atrium.load_method("grpo", "algorithm.log_ratio_limit=null").method.algorithm.log_ratio_limit is None
    )


@pytest.mark.parametrize(
    "line",
    [
        "algorithm.correction={kind:masked_importance,lower:0.5,upper:2}",
        "algorithm.correction=[{kind:truncated_importance,cap:null},{kind: truncated_importance,cap: 2e0}]",
        "algorithm.surrogate={kind:by_sign,positive:{kind:reinforce},negative:{kind:clip}}",
        'algorithm.advantage={baseline:group_mean,per_reward:true,scale:"none"}',
        "algorithm.log_ratio_limit=1e1",
        "algorithm.log_ratio_limit=null",
    ],
)
def test_typed_values_are_those_of_a_command_line(line):
    typed = load_method("grpo", line).method
    composed = compose(["algorithm=grpo", line])
    assert typed.algorithm == composed.algorithm
