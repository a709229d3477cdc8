"""Files of one's own: `GROUP=PATH.yaml` means what the file would mean in `conf/`, and names no code."""

from __future__ import annotations

import json
import random
import re

import pytest
import yaml

from atrium.base.errors import ConfigError
from atrium.config.compose import check_overrides, compose, with_files
from atrium.config.files import conf_folder
from atrium.config.method_files import read_method
from atrium.config.multirun import compose_all

CONF = conf_folder()
SHIPPED = [
    "algorithm=rpg_reinforce_rkl",
    "benchmark=aime24",
    "compute=cpu",
    "dataset=arithmetic",
    "debug=tiny_steps",
    "evaluation=greedy",
    "experiment=rpg_qwen3_4b_2k",
    "model=qwen3_8b",
    "recipe=tiny",
    "rollout=transformers",
]
MODEL = "defaults: [hub]\nsource: someone/a-model\nprompt: user_boxed\n"


@pytest.fixture
def own(tmp_path):
    def write(text, name="mine.yaml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


@pytest.mark.parametrize("line", SHIPPED)
def test_a_copy_of_a_shipped_file_composes_to_the_same(own, line):
    group, _, option = line.partition("=")
    content = yaml.safe_load((CONF / group / f"{option}.yaml").read_text(encoding="utf-8"))
    if not any(isinstance(entry, str) and entry != "_self_" for entry in content.get("defaults", [])):
        content["defaults"] = [option, *content.get("defaults", [])]
    shipped = compose([line]).model_dump()
    if group == "algorithm":
        content["name"] = "mine"
        shipped["algorithm"]["name"] = "mine"
    mine = compose([f"{group}={own(yaml.safe_dump(content, sort_keys=False))}"])
    assert mine.model_dump() == shipped


def test_what_is_typed_wins_over_a_file_wherever_it_stands(own):
    path = own("defaults:\n- quickstart\n- override /algorithm: atr\n- _self_\ndivergence: {delta: 0.1}\n")
    for lines in (
        [f"experiment={path}", "divergence.delta=0.3", "num_steps=7", "optimizer=adamw_8bit"],
        ["divergence.delta=0.3", "num_steps=7", "optimizer=adamw_8bit", f"experiment={path}"],
    ):
        config = compose(lines)
        assert (config.divergence.delta, config.num_steps, config.optimizer.kind) == (0.3, 7, "adamw_8bit")
    method = own("defaults: [grpo, override /divergence: kl3]\nname: mine\n", "method.yaml")
    assert compose([f"algorithm={method}"]).divergence.kind == "kl3"
    assert compose(["divergence=chi2", f"algorithm={method}"]).divergence.kind == "chi2"


def test_a_kind_in_a_file_begins_its_section_anew(own):
    path = own("defaults: [cispo]\nname: mine\nsurrogate: {kind: clip}\n")
    assert compose([f"algorithm={path}"]).algorithm.surrogate.gradient == "pathwise"


def test_a_model_of_ones_own_gets_the_recipe_of_its_parent_or_its_size(own):
    assert compose([f"model={own(MODEL)}"]).optimizer.learning_rate == 1e-6
    tiny = own("defaults: [tiny]\nhidden_size: 32\n", "tiny.yaml")
    assert compose([f"model={tiny}"]).optimizer.learning_rate == compose([]).optimizer.learning_rate


def test_files_go_with_each_other_and_with_several_values(own):
    method = own("defaults: [dapo]\nname: mine\n")
    rate = own("defaults: [adamw]\nlearning_rate: 0.002\n", "rate.yaml")
    jobs = compose_all([f"algorithm={method}", f"optimizer={rate}", "seed=1,2"])
    assert [(c.algorithm.name, c.optimizer.learning_rate, c.seed) for _, c in jobs] == [
        ("mine", 0.002, 1),
        ("mine", 0.002, 2),
    ]


@pytest.mark.parametrize(
    ("group", "text", "said"),
    [
        ("experiment", "defaults: [{algorithm: atr}]", "expected a name in conf/experiment or"),
        ("experiment", "defaults: 3", "must be a list"),
        ("tracking", "defaults: [mlflow, wandb]", "must name one file of conf/tracking, got 2"),
        ("experiment", "- 1", "contains no settings"),
        ("experiment", "a: [", "cannot be read"),
        ("algorithm", "name: mine\nsurrogate: {kind: clip}", "must start from a file of conf/algorithm"),
        ("dataset", "kind: hub", r"begin it with `defaults: \[NAME\]`, where NAME is one of arithmetic,"),
        ("algorithm", "defaults: [grpo]", "no line `name:`"),
        ("algorithm", "defaults: [grpo]\nname: dapo", "recorded under another method's name"),
        ("algorithm", "defaults: [grop]\nname: mine", "algorithm=grop: unknown option; did you"),
        ("optimizer", "defaults: [adamw]\nlearning_rat: 1", "learning_rat"),
        ("optimizer", "defaults: [adamw]\n_target_: os.system", "_target_ cannot be set"),
        ("optimizer", "defaults: [adamw]\nkind: '${oc.env:HOME}'", "an interpolation cannot call a resolver"),
        ("recipe", "hydra: {searchpath: [file:///tmp]}", "Hydra's own settings cannot be changed"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(own, group, text, said):
    with pytest.raises(ConfigError, match=said) as refused:
        compose([f"{group}={own(text)}"])
    assert "\n" not in str(refused.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(
        ConfigError, match=r"none.yaml: there is no such file; use the name of a file in conf/model"
    ):
        with_files([f"model={tmp_path / 'none.yaml'}"])


@pytest.mark.parametrize("folder", ["./policy", "../policy", "/data/policy", "~/policy"])
def test_a_folder_in_place_of_a_model_is_the_language_model_in_it(folder):
    lines = with_files([f"model={folder}", "seed=1"])
    assert lines == ["model=hub", f"model.source={folder}", "seed=1"]


def test_a_hub_name_in_place_of_a_model_is_refused_with_the_settings_to_type():
    with pytest.raises(ConfigError, match=r"did you mean model=hub model\.source=org/Name-1\.5B\?"):
        check_overrides(["model=org/Name-1.5B"])


def test_a_list_may_stand_where_a_file_has_a_mapping(own):
    steps = "[{kind: masked_importance, lower: 0.5, upper: 5.0}, {kind: truncated_importance, cap: 2.0}]"
    typed = compose(["algorithm=icepop", f"algorithm.correction={steps}"]).algorithm
    assert [step.kind for step in typed.correction.steps] == ["masked_importance", "truncated_importance"]
    path = own(f"defaults: [icepop]\nname: mine\ncorrection: {steps}\nreduction: {{counts: kept}}\n")
    assert compose([f"algorithm={path}"]).algorithm.correction == typed.correction


WORDS = [
    "a",
    " ",
    '"',
    "'",
    "\\",
    "\n",
    "\t",
    "\r\n",
    "ö",
    "日",
    "😀",
    "{",
    "]",
    ",",
    ":",
    "=",
    "#",
    "$",
    "null",
]


def test_random_texts_in_a_file_are_read_as_yaml_reads_them(own):
    draw = random.Random(0)
    texts = ["", "null", "True", "nan", "Inf", "\\", '\\"', "a\\", "Größe 1"]
    texts += ["".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(60)]
    for text in (text for text in texts if "${" not in text):
        values = {"label": text, "looks": [text, {"k": [text, 1]}]}
        path = own(yaml.safe_dump(values, allow_unicode=True))
        read = {one.key_or_group: one.value() for one in check_overrides([f"experiment={path}"])}
        assert read == values


def test_texts_in_a_file_compose_unchanged_and_references_are_resolved(own):
    text = 'Größe 1:\n\t"a\\b" \\ \\"{question}\'\\'
    prompt = {"system": text, "stop": [text, "\\"], "chat_options": {"k": text}}
    values = {"label": text, "model": {"prompt": prompt}, "experiment_name": "s${seed}"}
    lines = ["model=qwen3_0_6b", f"experiment={own(yaml.safe_dump(values))}"]
    config = compose(lines)
    assert (config.label, config.experiment_name) == (text, "s0")
    composed = config.model.prompt.model_dump(mode="json")
    assert {key: composed[key] for key in prompt} == prompt


def test_texts_in_the_file_of_a_method_are_read_without_hydra_too(own):
    name = 'a "b" \\n\n:c'
    path = own(yaml.safe_dump({"defaults": ["grpo"], "name": "mine", "surrogate": {"kind": name}}))
    with pytest.raises(ConfigError, match=re.escape(f"got {json.dumps(name)}")):
        read_method(str(path))


def test_null_for_a_group_replaces_the_option_of_a_file(own):
    path = own("defaults:\n- override /evaluation: literature\n")
    assert compose([f"experiment={path}", "evaluation=null"]) == compose([])
    lines = ["evaluation=null", "evaluation=greedy"]
    assert compose(lines) == compose(["evaluation=greedy"])
