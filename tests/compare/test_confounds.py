"""Confounds: other settings in which arms differ are named at the top of every medium."""

from __future__ import annotations

import json

import pytest
from tests.compare.documents import files_of

from atrium.cli.app import main
from atrium.compare.confounds import FACTS, Recorded, environment_lines
from atrium.compare.document_sentences import paper_sentences
from atrium.compare.run_comparison import compare_runs

SLOW = {"optimizer": {"learning_rate": 3e-4, "num_minibatches": 4}}
FAST = {"optimizer": {"learning_rate": 1e-3, "num_minibatches": 1}}
WITH = "with learning rates 3e-4 and 1e-3 and numbers of minibatches 4 and 1,"


@pytest.fixture
def confounded(make_study):
    """Runs of ATR and GRPO that differ in the learning rate and the number of minibatches, too."""

    def make(atr=0.0, slow=SLOW, fast=FAST, **settings):
        runs = make_study({"atr": atr}, num_seeds=3, **{**slow, **settings})
        return [*runs, *make_study({"grpo": 0.0}, num_seeds=3, **{**fast, **settings})]

    return make


@pytest.mark.parametrize("effect", [0.0, 0.4])
def test_a_confounded_sentence_names_every_confound_with_its_values(confounded, effect):
    [sentence] = paper_sentences(compare_runs(confounded(effect)))
    assert WITH in sentence
    assert ("scores" in sentence) is (effect > 0.0)


def test_confounds_are_at_the_top_of_every_output_format(confounded, capsys, tmp_path):
    comparison = compare_runs(confounded())
    line = "confounds: the arms differ in optimizer.learning_rate, optimizer.num_minibatches"
    rate, number = "learning_rate is 1e-3 in grpo, 3e-4", "num_minibatches is 1 in grpo, 4"
    values = f"optimizer.{rate} in atr; optimizer.{number} in atr"
    for content in files_of(comparison).values():
        body = content.partition("<main>")[2] or content
        body = body.replace("Mean@4 on exam", "", 1)  # the title
        first = body.index("Mean@4")
        assert 0 <= body.find(line) < first
        assert values in body
        assert "commit c0ffeec0ff" in body
    for command in ("compare", "report"):
        assert main([command, "study", "--runs-dir", str(tmp_path / "runs"), "--no-files"]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert said.startswith(line)
        assert values in said
        assert "all arms: commit c0ffeec0ff" in said or command == "report"


def test_more_than_three_confounds_leave_no_sentence(confounded):
    slow = {"optimizer": {"learning_rate": 3e-4, "beta1": 0.9}, "rollout": {"group_size": 4}}
    fast = {"optimizer": {"learning_rate": 1e-3, "beta1": 0.8}, "rollout": {"group_size": 8}}
    [sentence] = paper_sentences(compare_runs(confounded(slow=slow, fast=fast)))
    assert sentence.count(" and ") > 2, "three confounds are still named"
    slow["dataset"], fast["dataset"] = {"max_terms": 3}, {"max_terms": 4}
    [sentence] = paper_sentences(compare_runs(confounded(slow=slow, fast=fast, experiment="more")))
    assert sentence.startswith(
        "No sentence about atr and grpo can be quoted: besides their methods they differ in 4"
    )
    assert "`--by KEY`" in sentence


def test_seeds_paths_trackers_and_method_sections_are_no_confounds(make_run):
    outside = {"placement": "beside", "num_engines": 2, "engine_timeout_s": 9.0}  # of an earlier version
    served = {"placement": "server", "num_servers": 2, "servers": [], "weights_dir": None}
    places = [
        {
            "tracking": {"kind": kind},
            "compute": {"device": device},
            "checkpoint": {"keep_last": num},
            "rollout": rollout,
        }
        for kind, device, num, rollout in (("a", "cpu", 1, outside), ("b", "cuda", 2, served))
    ]
    counts = {("exam", 4): [1, 2, 3]}
    runs = [
        make_run(name, seed, counts, **place)
        for name, seed, place in zip(("atr", "grpo"), (0, 1), places, strict=True)
    ]
    assert compare_runs(runs).confounds == ()


def test_settings_tuned_by_a_sweep_or_grouped_by_are_no_confounds(confounded, tmp_path):
    runs = confounded(experiment="delta")
    assert [one.name for one in compare_runs(runs, by=["optimizer.learning_rate"]).confounds] == [
        "optimizer.num_minibatches"
    ]
    sweep = tmp_path / "runs" / "sweeps" / "delta"
    sweep.mkdir(parents=True)
    definition = {
        "space": {"optimizer.learning_rate": {"low": 1e-4, "high": 1e-2}},
        "baseline": {"space": {"optimizer.num_minibatches": {"choices": [1, 4]}}},
    }
    (sweep / "sweep.json").write_text(json.dumps({"definition": definition}))
    assert compare_runs(runs).confounds == ()


def test_settings_of_a_preset_are_confounds_only_if_changed(make_run):
    def confounds(engine):
        counts = {("exam", 4): [1, 2, 3]}
        own = {"rollout": {"engine": engine, "stored_frac": 0.5}}
        runs = [
            make_run("gvpo_offpolicy", 0, counts, **own),
            make_run("gvpo", 0, counts, rollout={"engine": "transformers", "stored_frac": 0.0}),
        ]
        return [one.name for one in compare_runs(runs).confounds]

    assert confounds("bank") == []
    assert confounds("vllm") == ["rollout.engine"]


def test_facts_about_code_and_machine_are_listed_below_confounds(make_study):
    runs = make_study({"grpo": 0.0, "atr": 0.1}, num_seeds=2)
    for run in runs:
        record = {
            "code": {"commit": "beef" * 10},
            "packages": {"torch": "2.12"},
            "data": {"grader_version": "2"},
        }
        if "atr" in run.name:
            run.provenance_file.write_text(json.dumps(record))
    comparison = compare_runs(runs)
    assert comparison.confounds == (), "the other arm did not record its grader"
    different = {one.name: one.words for one in comparison.environment if one.differs()}
    assert different == {
        "commit": "commit is c0ffeec0ff in grpo, beefbeefbe in atr",
        "torch": "torch is 2.11 in grpo, 2.12 in atr",
    }
    for run in runs:
        if "grpo" in run.name:
            run.provenance_file.write_text(json.dumps({"data": {"grader_version": "1"}}))
    assert [one.words for one in compare_runs(runs).confounds] == ["grader version is 1 in grpo, 2 in atr"]


@pytest.mark.parametrize(
    ("fact", "name"), [("prompt_hashes", "rendered prompts"), ("model_source", "content of model.source")]
)
def test_different_prompts_or_weights_under_one_name_are_confounds(make_study, fact, name):
    runs = make_study({"grpo": 0.0, "atr": 0.1}, num_seeds=2)
    for run in runs:
        value = {"the training set": "aa" if "atr" in run.name else "bb"}
        run.provenance_file.write_text(json.dumps({"data": {fact: value}}))
    assert [one.name for one in compare_runs(runs).confounds] == [name]


def test_each_fact_is_listed_once():
    assert len({fact.name for fact in FACTS}) == len(FACTS)


@pytest.mark.parametrize(
    ("key", "values", "words"),
    [
        ("optimizer.learning_rate", ("0.0003", "0.001"), "learning rates 3e-4 and 1e-3"),
        ("num_steps", ("80", "160"), "numbers of steps 80 and 160"),
        ("optimizer.kind", ("adamw", "muon"), "optimizer kinds adamw and muon"),
        ("rollout.mask_truncated", ("true", "false"), "mask truncated true and false"),
        ("dataset.difficulty", ("1", "2"), "difficulties 1 and 2"),
    ],
)
def test_confounds_are_quoted_in_plain_words(key, values, words):
    recorded = Recorded(name=key, values={"a": values[:1], "b": values[1:]})
    assert recorded.quoted("a", "b") == words


def test_packing_in_one_of_two_arms_is_a_confound(confounded):
    def named(one, other):
        slow, fast = ({"compute": {"packing": packing}} for packing in (one, other))
        comparison = compare_runs(confounded(slow=slow, fast=fast, experiment=f"packs-{one}-{other}"))
        return [confound.words for confound in comparison.confounds]

    assert named(True, False) == ["packing is false in grpo, true in atr"]
    assert named(True, True) == []


def test_settings_of_the_kind_that_runs_are_grouped_by_are_no_confounds(make_run):
    rewards = ({"kind": "correctness", "penalty": None}, {"kind": "mine", "penalty": 0.5})
    runs = [
        make_run("grpo", seed, {("exam", 4): [1]}, reward=reward) for reward in rewards for seed in (0, 1)
    ]
    assert compare_runs(runs, by=["reward.kind"]).confounds == ()


@pytest.mark.parametrize(("by", "kinds"), [("model.source", ("hub", "hub")), ("model.kind", ("hf", "hub"))])
def test_facts_that_follow_from_the_setting_that_runs_are_grouped_by_are_no_confounds(make_run, by, kinds):
    runs = []
    for source, kind in zip("ab", kinds, strict=True):
        for seed in (0, 1):
            runs.append(make_run("grpo", seed, {("exam", 4): [1]}, model={"kind": kind, "source": source}))
            runs[-1].provenance_file.write_text(json.dumps({"data": {"model_source": source * 20}}))
    assert compare_runs(runs, by=[by]).confounds == ()


def test_a_version_that_one_arm_did_not_record_is_not_said_of_all_arms():
    facts = [
        Recorded(name="vllm", values={"a": ("0.6",), "b": ()}),
        Recorded(name="python", values={"a": ("3.11",), "b": ("3.11",)}),
    ]
    assert environment_lines(facts) == ["all arms: python 3.11", "not recorded by all arms: vllm 0.6"]


@pytest.mark.parametrize("by", ["model.lora.rank", "grader.timeout_s"])
def test_a_setting_that_cannot_cause_a_difference_does_not_hide_it(by, make_run):
    runs = []
    for value, version in ((8, "math, grader 3"), (16, "math, grader 4")):
        for seed in (0, 1):
            settings = {"model": {"lora": {"rank": value}}, "grader": {"timeout_s": value}}
            runs.append(make_run("grpo", seed, {("exam", 4): [1]}, **settings))
            data = {"model_source": str(value) * 20, "grader_version": version}
            runs[-1].provenance_file.write_text(json.dumps({"data": data}))
    names = {one.name for one in compare_runs(runs, by=[by]).confounds}
    assert names >= {"grader version", "content of model.source"}
