"""Settings that are wrong by themselves or together: the key, what was given, and what is allowed."""

from __future__ import annotations

import copy
import json

import pytest

from atrium.base.errors import ConfigError
from atrium.config.compose import compose, to_json, validated

GREEDY = {"evaluation.temperature": 0.0, "evaluation.num_samples": 1}
OVERLONG = {"reward.overlong": {"buffer_tokens": 65, "factor": 1.0}}

BAND = {"kind": "masked_importance", "lower": 0.5, "upper": 2.0}

WRONG = [
    # Keys that are not there.
    (
        {"optimizer.lr": 1e-4},
        "optimizer.lr=0.0001: unknown key; did you mean optimizer.learning_rate? the keys in optimizer are ",
    ),
    ({"model.warmup.direct_fraction": 0.1}, "did you mean model.warmup.direct_frac? "),
    ({"algorithm.advantage.bsaeline": "none"}, "did you mean algorithm.advantage.baseline? "),
    (
        {"reward.overlong": {"buffer_tokens": 5, "factor": 1.0, "slope": 3}},
        "reward.overlong.slope=3: unknown",
    ),
    (
        {"divergence": {"kind": "none", "zeta": 1}},
        "divergence.zeta=1: unknown key; the keys in divergence of kind none are kind; divergence=OPTION "
        "replaces the whole section",
    ),
    ({"algorithm.surrogate.zeta": 3.0}, "the keys in algorithm.surrogate of kind clip are gradient, kind"),
    # Keys of another kind of the section.
    (
        {"model.source": "X"},
        "model.source=X: unknown key in model of kind tiny; it belongs to kind hub; use model=hub "
        "model.source=X",
    ),
    (
        {"rollout.gpu_memory_fraction": 0.5},
        "it belongs to kind vllm; use rollout=vllm rollout.gpu_memory_fraction=0.5",
    ),
    ({"dataset.source": "my file.csv"}, "use dataset=file 'dataset.source=\"my file.csv\"'"),
    ({"divergence": {"kind": "none", "delta": 1}}, " more; use divergence=ratio divergence.delta=1"),
    (
        {"algorithm.surrogate.cap": 3.0},
        "unknown key in algorithm.surrogate of kind clip; it belongs to the kinds dual_clip, two_sided_clip, "
        "gradient_preserving_clip; use algorithm.surrogate.kind=dual_clip algorithm.surrogate.cap=3.0",
    ),
    (
        {"algorithm.correction": [{**BAND, "cap": 2.0}]},
        "algorithm.correction.0.cap=2.0: unknown key in algorithm.correction.0 of kind masked_importance; it "
        "belongs to ",
    ),
    # Keys of a list's only section, and of one of several.
    (
        {"algorithm.correction": [{"kind": "truncated_importance", "cap": 2.0, "lowr": 0.5}]},
        "algorithm.correction.0.lowr=0.5: unknown key; did you mean algorithm.correction.0.lower? ",
    ),
    ({"algorithm.correction": [{"kind": "mask"}]}, "algorithm.correction.0.kind must be one of none, "),
    ({"algorithm.correction": [{"kind": "truncated_importance"}]}, "algorithm.correction.0.cap is missing"),
    (
        {"algorithm.correction": [BAND, {**BAND, "upr": 2.0}]},
        "algorithm.correction.1.upr=2.0: unknown key; did you mean algorithm.correction.1.upper? ",
    ),
    # Missing.
    (
        {"reward.overlong": {"buffer_tokens": 5}},
        "reward.overlong.factor is missing: Size of the penalty",
    ),
    # Types.
    ({"num_steps": 1.5}, "num_steps must be a whole number, got 1.5"),
    ({"seed": "1"}, "seed must be a whole number, got 1"),
    ({"seed": [1, 2]}, "seed must be a whole number, got [1, 2]"),
    ({"seed": {"a": 1}}, 'seed must be a whole number, got {"a": 1}'),
    ({"seed": 2**63}, "must be less than 9223372036854775808"),
    ({"seed": 2**80}, "seed must be "),
    ({"divergence.delta": float("inf")}, "divergence.delta must be a finite number"),
    ({"divergence.delta": True}, "divergence.delta must be a number"),
    ({"model.warmup": 3}, "model.warmup must be a section with keys, got 3"),
    ({"model": None}, "model must be a section with keys, got null"),
    ({"reward.overlong": 3}, "reward.overlong must be a section with keys, got 3"),
    ({"reward.require_stop": 1}, "reward.require_stop must be true or false, got 1"),
    ({"runs_dir": 3}, "runs_dir must be text, got 3"),
    ({"compute.num_threads": "fast"}, "compute.num_threads must be a whole number or auto, got fast"),
    ({"compute.num_threads": 0}, "compute.num_threads must be at least 1 or auto, got 0"),
    ({"evaluation.every_num_steps": "x"}, "evaluation.every_num_steps must be a whole number, got x"),
    # Ranges.
    ({"num_steps": 0}, "num_steps must be at least 1, got 0"),
    ({"divergence.delta": 0}, "divergence.delta must be at least 1e-12"),
    ({"rollout.temperature": 0.0}, "rollout.temperature must be at least 0.01"),
    ({"optimizer.beta1": 1.0}, "optimizer.beta1 must be less than 1"),
    ({"model.warmup.slip_frac": 1.2}, "model.warmup.slip_frac must be at most 1, got 1.2"),
    ({"model.head_dim": 15}, "model.head_dim must be a multiple of 2"),
    ({"grader.timeout_s": 0}, "grader.timeout_s must be at least 0.001"),
    ({"reward": {"kind": "random", "probability": 1.0}}, "reward.probability must be less than 1"),
    (
        {"experiment_name": "../up"},
        "experiment_name must be a letter or digit, followed only by letters, digits",
    ),
    ({"experiment_name": "x" * 101}, "must be at most 100 characters"),
    # Choices.
    (
        {"optimizer.schedule": "cosin"},
        "must be one of constant, linear, cosine, got cosin; did you mean cosine?",
    ),
    ({"algorithm.surrogate.kind": "klip"}, "algorithm.surrogate.kind must be one of clip, dual_clip, "),
    ({"model.kind": "huge"}, "model.kind must be one of tiny, hub"),
    ({"algorithm.advantage.ddof": 2}, "algorithm.advantage.ddof must be 0 or 1, got 2"),
    ({"compute.device": "gpu"}, "compute.device must be one of cpu, cuda or auto"),
    ({"compute.dtype": "float16"}, "compute.dtype must be one of float32, bfloat16 or auto"),
    # Combinations.
    ({"optimizer.num_minibatches": 3}, "optimizer.num_minibatches must divide rollout.num_prompts=64"),
    ({"rollout.num_prompts": 6}, "got 4; use one of 1, 2, 3, 6"),
    ({"rollout.max_batch_tokens": 64}, "rollout.max_batch_tokens must be greater than"),
    (
        {"rollout.max_new_tokens": 113},
        "rollout.max_new_tokens must be at most 112, which is model.context_length=128",
    ),
    ({"model.context_length": 16}, "model.context_length=16 must be greater than the 16 tokens"),
    ({"evaluation.max_new_tokens": 113}, "evaluation.max_new_tokens must be at most 112"),
    ({"model.num_key_value_heads": 3}, "model.num_key_value_heads must divide model.num_heads=4, got 3"),
    ({"dataset.min_operands": 9}, "dataset.min_operands must be at most dataset.max_operands=7, got 9"),
    ({"reward.correct": 0.0}, "reward.correct=0 must be greater than reward.incorrect=0"),
    ({"reward.no_answer": 2.0}, "reward.correct=1 must be greater than reward.no_answer=2"),
    (OVERLONG, "rollout.max_new_tokens=64"),
    ({"optimizer.schedule": "linear", "num_steps": 5}, "optimizer.schedule=linear has no effect"),
    ({"evaluation.temperature": 0.0}, "evaluation.num_samples must be 1 with evaluation.temperature=0"),
    ({**GREEDY, "evaluation.top_p": 0.9}, "evaluation.top_p=0.9 has no effect"),
    ({"evaluation.every_num_steps": None}, "checkpoint.keep_best=true requires validation"),
    ({"rollout.group_size": 1}, "rollout.group_size=1"),
]

RIGHT = [
    {"optimizer.num_minibatches": 64},
    {"rollout.max_new_tokens": 112},
    {"rollout.max_batch_tokens": 65},
    {"reward.overlong": {"buffer_tokens": 64, "factor": 1.0}},
    {"reward": {"kind": "format"}},
    {"optimizer.schedule": "cosine"},
    {"evaluation.every_num_steps": None, "checkpoint.keep_best": False},
    {"optimizer.max_grad_norm": None},
    {"seed": 2**63 - 1},
    GREEDY,
]


@pytest.fixture(scope="module")
def quickstart():
    return json.loads(to_json(compose()))


def _with(data, settings):
    data = copy.deepcopy(data)
    for key, value in settings.items():
        *path, last = key.split(".")
        section = data
        for part in path:
            section = section[part]
        section[last] = value
    return data


@pytest.mark.parametrize(("settings", "said"), WRONG, ids=[str(settings)[:60] for settings, _ in WRONG])
def test_a_wrong_setting_is_named_with_what_is_allowed(quickstart, settings, said):
    with pytest.raises(ConfigError) as refused:
        validated(_with(quickstart, settings))
    message = str(refused.value)
    assert said in message
    assert "\n" not in message
    assert "(and" not in message
    assert any(key in message for key in settings)


@pytest.mark.parametrize("settings", RIGHT, ids=str)
def test_a_setting_at_the_edge_of_what_is_allowed_is_accepted(quickstart, settings):
    validated(_with(quickstart, settings))


@pytest.mark.parametrize("key", ["lr", "optimizer.lr"])
def test_a_name_of_other_programs_suggests_the_setting(key):
    with pytest.raises(ConfigError, match=r"unknown key; did you mean optimizer\.learning_rate\?"):
        compose([f"{key}=1e-5"])


@pytest.mark.parametrize("line", ["divergence.kind=triangular", "reward.kind=mine", "grader.kind=sql"])
def test_an_unknown_kind_mentions_plugins(line):
    with pytest.raises(ConfigError, match=r"load a kind of your own with --plugin FILE\.py"):
        compose([line])


def test_letters_other_than_ascii_reach_the_settings_own_checks():
    assert compose(["label=größe"]).label == "größe"
    assert compose(['label="größe, 2"']).label == "größe, 2"
    with pytest.raises(ConfigError, match="experiment_name must be a letter or digit"):
        compose(["experiment_name=実験"])


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("training.num_steps=5", "unknown key; did you mean num_steps?"),
        ("optim.learning_rate=1", "unknown key; did you mean optimizer.learning_rate?"),
        ("reward.kind=correctnes", "did you mean correctness? If not, load a kind of your own with --plugin"),
        ("reward=./mine.py", "unknown option; load the file with --plugin ./mine.py and set reward.kind"),
        ("dataset.x.y=1", "dataset=OPTION replaces the whole section"),
        ("reward=several", "did you mean reward.kind=several?"),
    ],
)
def test_message_names_what_the_user_may_have_meant(argument, said):
    with pytest.raises(ConfigError) as raised:
        compose([argument])
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["divergence=alpha", "divergence.delta=1000"], "divergence.delta must be at most 100, got 1000"),
        (["divergence=alpha", "divergence.alpha=1000"], "divergence.alpha must be at most 10, got 1000"),
        (["divergence.kind=alpha", "divergence.delta=1"], "divergence.alpha is missing"),
    ],
)
def test_message_tells_a_key_from_a_kind_of_the_same_name(arguments, said):
    with pytest.raises(ConfigError) as raised:
        compose(arguments)
    assert str(raised.value).startswith(said)
