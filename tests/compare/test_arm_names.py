"""What arms are called, and which runs stand apart as other runs."""

from __future__ import annotations

import pytest

from atrium.base.errors import ConfigError
from atrium.cli.app import main
from atrium.compare.arm_names import find_arm, name_arms
from atrium.compare.run_comparison import compare_runs
from atrium.config.compose import compose
from atrium.runs.method_settings import method_key


def runs(*rows):
    """Settings by run name, from rows of `algorithm, seed, {setting: value}`."""
    found = {}
    for algorithm, seed, more in rows:
        settings = {"num_steps": "12", "divergence.delta": "0.1", "optimizer.learning_rate": "0.001", **more}
        found[f"study/{algorithm}-s{seed}-{len(found)}"] = {
            "algorithm.name": algorithm,
            "seed": str(seed),
            **settings,
        }
    return found


STUDY = [(name, seed, {}) for seed in (0, 1, 2) for name in ("atr", "grpo")]


def names(settings, **options):
    return [arm.name for arm in name_arms(settings, **options)]


def test_an_arm_is_named_after_its_algorithm():
    assert names(runs(*STUDY)) == ["atr", "grpo"]


@pytest.mark.parametrize("odd", [{"num_steps": "6"}, {"divergence.delta": "0.2"}, {"evaluation.k": "4"}])
def test_a_single_odd_run_is_listed_apart_and_renames_no_arm(odd):
    usual = {"evaluation.k": "8"}
    study = [(name, seed, {**usual, **more}) for name, seed, more in STUDY]
    arms = name_arms(runs(*study, ("atr", 3, {**usual, **odd})))
    assert [arm.name for arm in arms if not arm.is_other] == ["atr", "grpo"]
    [other] = [arm for arm in arms if arm.is_other]
    key, value = next(iter(odd.items()))
    assert other.name == f"atr · {key.rpartition('.')[2]} {value}"
    assert other.difference == f"{key.rpartition('.')[2]} {value}"


def test_a_chosen_odd_run_is_an_arm_and_the_others_keep_their_names():
    settings = runs(*STUDY, ("atr", 3, {"num_steps": "6"}))
    arms = name_arms(settings, chosen=[list(settings)[-1]])
    assert [(arm.name, arm.is_other) for arm in arms] == [
        ("atr", False),
        ("grpo", False),
        ("atr · num_steps 6", False),
    ]
    assert find_arm(arms, "atr", "baseline").name == "atr"


def test_arms_of_one_name_get_only_the_settings_that_distinguish_them():
    slow = {"optimizer.learning_rate": "0.0003"}
    wide = {"divergence.delta": "0.2"}
    settings = runs(
        *STUDY,
        *[("atr", seed, slow) for seed in (0, 1)],
        *[("atr", seed, wide) for seed in (0, 1)],
    )
    assert names(settings) == [
        "atr · delta 0.1 · learning_rate 1e-3",
        "grpo",
        "atr · learning_rate 3e-4",
        "atr · delta 0.2",
    ]


def test_an_odd_run_whose_rounded_name_is_taken_makes_both_names_exact():
    near = {"divergence.delta": "0.023143551"}
    arms = [("atr", seed, delta) for delta in (near, {"divergence.delta": "0.05"}) for seed in (0, 1, 2)]
    settings = runs(*arms, ("atr", 0, {"divergence.delta": "0.02314"}))
    assert names(settings) == ["atr · delta 0.023143551", "atr · delta 0.05", "atr · delta 0.02314"]


def test_an_arm_without_a_value_is_named_after_the_setting_that_it_lacks():
    study = [("atr", seed, {"regularizer.kl": value}) for seed in (0, 1) for value in ("null", "k3")]
    assert names(runs(*study)) == ["atr · kl null", "atr · k3"]


def test_single_runs_of_one_method_are_arms_where_no_arm_has_several_seeds():
    settings = runs(("atr", 0, {}), ("atr", 0, {"num_steps": "6"}), ("grpo", 0, {}))
    assert names(settings) == ["atr · num_steps 12", "atr · num_steps 6", "grpo"]
    assert names(settings, at_last_step=False) == ["atr", "grpo"]


def test_a_label_replaces_the_algorithm_name_and_splits_no_arm():
    study = [
        (name, seed, {"label": "ours" if (name, seed) == ("atr", 2) else "null"}) for name, seed, _ in STUDY
    ]
    arms = name_arms(runs(*study))
    assert [arm.name for arm in arms] == ["ours", "grpo"]
    assert find_arm(arms, "atr", "baseline").name == "ours"


def test_a_typed_name_replaces_an_arms_name():
    assert names(runs(*STUDY), renamed={"atr": "ATR (ours)"}) == ["ATR (ours)", "grpo"]
    with pytest.raises(ConfigError, match="label at: unknown arm; use one of atr, grpo"):
        names(runs(*STUDY), renamed={"at": "x"})
    with pytest.raises(ConfigError, match="two would be named grpo"):
        names(runs(*STUDY), renamed={"atr": "grpo"})


def test_an_algorithm_name_selects_its_only_arm_but_none_of_several():
    slow = {"optimizer.learning_rate": "0.0003"}
    arms = name_arms(runs(*STUDY, *[("atr", seed, slow) for seed in (0, 1)]))
    assert find_arm(arms, "grpo", "baseline").name == "grpo"
    with pytest.raises(ConfigError, match=r"baseline atr matches 2 arms \(atr · learning_rate 1e-3, atr"):
        find_arm(arms, "atr", "baseline")


def test_arms_grouped_by_a_setting_are_named_after_its_values():
    slow = {"optimizer.learning_rate": "0.0003"}
    settings = runs(*STUDY, ("atr", 3, slow))
    assert names(settings, by=["optimizer.learning_rate"]) == ["learning_rate 1e-3", "learning_rate 3e-4"]
    assert names(settings, by=["algorithm.name"]) == ["atr", "grpo"]


@pytest.fixture
def command(make_study, capsys, tmp_path):
    """Run a command on two methods with three seeds each and one odd run; what it prints, in one line."""

    def run(*arguments, code=0):
        if not (tmp_path / "runs").exists():
            make_study({"atr": 0.2, "grpo": 0.0}, num_seeds=3)
            make_study({"atr": 0.2}, num_seeds=1, num_steps=6)
        assert main([*arguments, "--runs-dir", str(tmp_path / "runs"), "--no-files"]) == code
        said = capsys.readouterr()
        return " ".join((said.err if code else said.out).split())

    return run


@pytest.mark.parametrize("name", ["compare", "report"])
def test_commands_take_an_algorithm_as_baseline_beside_an_odd_run(command, name):
    said = command(name, "study", "--baseline", "grpo")
    assert "atr · num_steps 12" not in said
    assert "grpo" in said
    assert "baseline at: unknown arm" in command(name, "study", "--baseline", "at", code=2)


def test_without_runs_a_command_compares_the_default_experiment(command):
    assert "experiment study, the latest with two methods or more" in command("compare")


def test_runs_without_a_score_on_the_benchmark_do_not_change_the_names_of_arms(make_study, make_run):
    runs = make_study({"atr": 0.2, "grpo": 0.0})
    elsewhere = [make_run("atr", seed, {("other", 6): [1, 2]}, num_steps=6) for seed in range(3)]
    comparison = compare_runs([*runs, *elsewhere])
    assert [one.arm.name for one in comparison.arms] == ["grpo", "atr"]
    with pytest.raises(ConfigError, match="label atr · num_steps 6: unknown arm; use one of atr, grpo"):
        compare_runs([*runs, *elsewhere], renamed={"atr · num_steps 6": "longer"})


def test_an_odd_run_is_left_out_with_its_reason_until_it_is_named(command, tmp_path):
    said = command("compare", "study")
    assert "differs from the other runs of atr by num_steps 6; name the run to compare it" in said
    [odd] = [path for path in (tmp_path / "runs" / "study").iterdir() if '"num_steps": 6' in read(path)]
    assert "atr · num_steps 6" in command("compare", "study", odd.name)


def read(folder):
    return (folder / "config.json").read_text()


def test_labels_rename_arms_in_tables(command):
    said = command("compare", "study", "--label", "atr=ATR (ours)", "--baseline", "grpo")
    assert "ATR (ours) against grpo" in said
    assert "--label: expected OLD=NEW" in command("compare", "study", "--label", "atr", code=2)


def test_a_wrong_name_suggests_an_experiment(command):
    assert "did you mean study?" in command("compare", "stdy", code=2)


def test_a_methods_own_file_may_hold_a_label(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("defaults: [atr]\nname: mine\nlabel: ATR (ours)\n")
    config = compose([f"algorithm={file}"])
    assert (config.label, config.algorithm.name) == ("ATR (ours)", "mine")
    assert compose(["label=ours"]).label == "ours"
    assert method_key(config.as_record()) == method_key(
        compose([f"algorithm={file}", "label=null"]).as_record()
    )
