"""`atrium train` up to the point where a run begins; runs themselves are tested in `tests/train`."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import yaml

from atrium.assemble import beginning
from atrium.base.errors import DataError, Interrupted
from atrium.cli import main
from atrium.cli.train import train_parser
from atrium.config.compose import compose, to_json
from atrium.config.help import help_text
from atrium.config.schema import RunConfig
from atrium.runs.provenance import DataProvenance, collect_provenance
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState, StatusWriter


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """The configurations of the runs that would begin, in an empty folder; errors to raise, by seed."""
    monkeypatch.chdir(tmp_path)
    configs = []
    errors = {}

    def begin(config, overrides):
        configs.append(config)
        if config.seed in errors:
            raise errors[config.seed]

    monkeypatch.setattr(beginning, "train_here", begin)
    return configs, errors


@pytest.fixture
def stored(tmp_path, begun):
    """A run with its configuration, in `runs/`."""
    config = compose(["algorithm=grpo", "seed=5"])
    folder = RunFolder.create(tmp_path / "runs", "quickstart", "grpo", 5)
    folder.config_file.write_text(to_json(config))
    return config, folder


def _written(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_one_run_begins_with_what_was_given(begun):
    configs, _ = begun
    assert main(["train", "algorithm=grpo", "seed=3"]) == 0
    assert [(config.algorithm.name, config.seed) for config in configs] == [("grpo", 3)]


def test_the_thread_count_and_passive_waiting_are_set_and_said(monkeypatch, capsys):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    beginning.set_threads(compose())
    assert (os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]) == ("1", "PASSIVE")
    assert capsys.readouterr().out.count("\n") == 1


def test_a_users_own_choices_of_threads_are_kept(monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    config = compose()
    beginning.set_threads(config)
    assert config.compute.num_threads == 2
    assert (os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]) == ("2", "ACTIVE")
    assert "2 threads waiting actively" in capsys.readouterr().out


def test_the_profile_flag_is_the_setting_of_the_second_step(begun):
    configs, _ = begun
    assert main(["train", "--profile", "seed=3"]) == 0
    assert main(["train", "seed=3", "compute.profile_step=4"]) == 0
    assert [config.compute.profile_step for config in configs] == [2, 4]


def test_a_step_that_never_comes_cannot_be_profiled(begun, capsys):
    assert main(["train", "--profile", "num_steps=1"]) == 2
    assert "compute.profile_step must be at most num_steps=1, got 2" in capsys.readouterr().err


def test_flags_may_stand_anywhere(begun, capsys):
    assert main(["train", "seed=3", "--cfg", "job", "num_steps=5", "--package", "optimizer"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["learning_rate"] == 3e-4


def test_showing_the_configuration_trains_and_writes_nothing(begun, tmp_path, capsys):
    configs, _ = begun
    argv = sys.argv
    assert main(["train", "--cfg", "job", "--resolve", "seed=3", "algorithm.advantage.offset=0.1"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["seed"], shown["algorithm"]["advantage"]["offset"]) == (3, 0.1)
    assert shown["evaluation"]["max_new_tokens"] == 64
    assert configs == []
    assert list(tmp_path.iterdir()) == []
    assert sys.argv is argv


def test_the_help_lists_only_flags_that_the_parser_accepts():
    listed = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", help_text()))
    assert listed <= set(train_parser()._option_string_actions)
    assert "--multirun" in listed


def test_help_lists_the_parts_with_their_files_and_fits_the_terminal(begun, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["train", "--help"]) == 0
    printed = capsys.readouterr().out
    parts = re.findall(r"^(\w+) +", printed, re.MULTILINE)
    assert {"divergence", "algorithm", "model", "compute", "experiment", "debug"} <= set(parts)
    assert all(option in printed for option in (" asymmetric_ratio,", " quickstart,", " one_gpu,"))
    assert "--resume RUN" in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert list(tmp_path.iterdir()) == []


def test_help_on_a_section_says_what_each_of_its_settings_means(begun, capsys):
    assert main(["train", "--help", "divergence", "rollout.lag"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "divergence.kind=asymmetric_ratio The clip-higher range 1 - epsilon_low <= w <=" in printed
    assert (
        "divergence.epsilon_low (number >= 1e-12 and <= 100) Maximum decrease of the ratio below 1."
        in printed
    )
    assert (
        "rollout.lag (integer >= 0 and <= 64; default 0) Number of steps by which sampling is ahead"
        in printed
    )


@pytest.mark.parametrize("section", [name for name in RunConfig.model_fields if name != "resume"])
def test_help_has_words_for_every_section(begun, capsys, section):
    assert main(["train", "--help", section]) == 0
    assert len(capsys.readouterr().out.split()) > 5


def test_help_on_an_unknown_section_names_the_nearest(begun, capsys):
    assert main(["train", "--help", "algorithm.surogate"]) == 2
    assert "did you mean surrogate?" in capsys.readouterr().err


def test_config_prints_what_a_run_would_store(begun, capsys):
    assert main(["config", "seed=3"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(to_json(compose(["seed=3"])))


@pytest.mark.full
def test_a_multirun_begins_every_job_and_writes_only_below_the_runs(begun, tmp_path, capsys):
    configs, _ = begun
    assert (
        main(["train", "--multirun", "seed=3", "algorithm=atr,grpo", "algorithm.advantage.offset=0.1"]) == 0
    )
    jobs = [(config.seed, config.algorithm.name, config.algorithm.advantage.offset) for config in configs]
    assert jobs == [(3, "atr", 0.1), (3, "grpo", 0.1)]
    printed = capsys.readouterr()
    assert "run 2 of 2: seed=3 algorithm=grpo" in printed.out
    assert printed.err == ""
    assert all(path.startswith("runs/.cache/multirun/") for path in _written(tmp_path))


@pytest.mark.full
def test_a_multirun_of_methods_with_equal_gradients_says_so(begun, capsys):
    once = ["optimizer.num_minibatches=1", "optimizer.num_epochs=1"]
    assert main(["train", "--multirun", "seed=3,4", "algorithm=grpo,gspo", *once]) == 0
    assert "note: algorithm=grpo and algorithm=gspo have identical gradients" in capsys.readouterr().out


@pytest.mark.full
def test_each_run_of_a_multirun_records_a_command_that_repeats_it(begun, monkeypatch):
    configs, _ = begun
    commands = []

    def begin(config, overrides):
        configs.append(config)
        commands.append(shlex.split(collect_provenance(DataProvenance())["command"]))

    monkeypatch.setattr(beginning, "train_here", begin)
    assert main(["train", "--multirun", "seed=3,4", "algorithm=grpo", "model.kind=tiny"]) == 0
    first = list(configs)
    for words in commands[:2]:  # the runs that follow record commands of their own
        assert words[:2] == ["atrium", "train"], words
        assert main(words[1:]) == 0
    assert [config.seed for config in first] == [3, 4]
    assert configs == first * 2


@pytest.mark.full
def test_a_multirun_goes_on_after_an_error_and_ends_with_its_code(begun, capsys):
    configs, errors = begun
    errors[0] = DataError("the dataset is missing")
    assert main(["train", "--multirun", "seed=0,1"]) == 2
    assert [config.seed for config in configs] == [0, 1]
    assert capsys.readouterr().err == "error: the dataset is missing\n"


@pytest.mark.full
def test_an_interrupted_multirun_stops(begun):
    configs, errors = begun
    errors[0] = Interrupted("stopped after step 3")
    assert main(["train", "--multirun", "seed=0,1"]) == 130
    assert [config.seed for config in configs] == [0]


@pytest.mark.full
def test_a_multirun_goes_on_after_a_defect_and_raises_it_at_its_end(begun, capsys):
    configs, errors = begun
    errors[1], errors[2] = ZeroDivisionError(), RuntimeError()
    with pytest.raises(ZeroDivisionError):
        main(["train", "--multirun", "seed=1,2,3"])
    assert [config.seed for config in configs] == [1, 2, 3]
    said = capsys.readouterr().err
    assert "run 1 failed: ZeroDivisionError; the first traceback follows at the end\nrun 2 failed: " in said


@pytest.mark.parametrize("how", ["--resume NAME", "--resume=NAME", "resume=NAME", "--resume PATH"])
def test_a_run_is_continued_with_its_own_configuration(begun, stored, how):
    configs, _ = begun
    config, folder = stored
    how = how.replace("NAME", folder.path.name).replace("PATH", str(folder.path))
    assert main(["train", *how.split(), "num_steps=90"]) == 0
    assert os.path.samefile(configs[0].resume, folder.path)  # noqa: PTH121 - a path is text here
    assert (configs[0].num_steps, configs[0].seed, configs[0].algorithm) == (90, 5, config.algorithm)


def test_a_run_can_be_repeated_with_its_stored_configuration(begun, stored, capsys):
    configs, _ = begun
    config, folder = stored
    assert main(["train", "--from-config", str(folder.config_file)]) == 0
    assert configs == [config]
    assert main(["train", "--from-config", str(folder.config_file), "seed=1"]) == 2
    assert "seed=1" in capsys.readouterr().err


def test_no_run_is_continued_where_resume_is_null(begun):
    configs, _ = begun
    assert main(["train", "resume=null"]) == 0
    assert configs[0].resume is None


def test_a_change_to_a_continued_run_is_refused_by_name(begun, stored, capsys):
    _, folder = stored
    assert main(["train", "--resume", folder.path.name, "seed=6"]) == 2
    assert capsys.readouterr().err.startswith("error: seed=6 cannot be used")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--resume", "RUN", "num_steps=20"],
            "must be at least 24, the step from which RUN resumes, got 20; raise num_steps, or rewind",
        ),
        (["--resume", "RUN", "num_steps=9"], "or rewind with --from-step 0"),
        (["--resume", "RUN@24", "num_steps=20"], "must be at least 24, the step from which RUN resumes"),
        (["--resume", "RUN", "--from-step", "12", "num_steps=9"], "must be at least 12"),
    ],
)
def test_a_resumed_run_cannot_end_before_the_step_it_goes_on_from(
    begun, stored, capsys, monkeypatch, arguments, said
):
    _, folder = stored
    for step in (12, 24):
        folder.checkpoint_path(step).mkdir(parents=True)
    monkeypatch.setattr("atrium.assemble.branching.check_files", lambda path: None)
    assert main(["train", *(word.replace("RUN", folder.path.name) for word in arguments)]) == 2
    assert said.replace("RUN", folder.path.name) in capsys.readouterr().err
    assert begun[0] == []


def test_a_resumed_run_may_end_at_the_step_it_goes_on_from(begun, stored):
    _, folder = stored
    folder.checkpoint_path(24).mkdir(parents=True)
    assert main(["train", "--resume", folder.path.name, "num_steps=24"]) == 0


def test_finished_run_is_not_resumed_without_more_steps(begun, stored, capsys):
    configs, _ = begun
    config, folder = stored
    folder.checkpoint_path(config.num_steps).mkdir(parents=True)
    StatusWriter(folder.status_file).end(RunState.FINISHED)
    assert main(["train", "--resume", folder.path.name]) == 0
    assert configs == []
    assert f"num_steps=N, greater than {config.num_steps}" in capsys.readouterr().out
    assert main(["train", "--resume", folder.path.name, f"num_steps={config.num_steps + 1}"]) == 0
    assert len(configs) == 1


def test_a_resumed_run_with_a_longer_schedule_prints_and_logs_its_learning_rate(begun, tmp_path, capsys):
    folder = RunFolder.create(tmp_path / "runs", "quickstart", "grpo", 5)
    folder.config_file.write_text(to_json(compose(["optimizer.schedule=cosine", "num_steps=20"])))
    folder.checkpoint_path(20).mkdir(parents=True)
    assert main(["train", "--resume", folder.path.name, "num_steps=40"]) == 0
    note = "note: optimizer.schedule=cosine ends at step 40 instead of 20: the learning rate is"
    assert note in capsys.readouterr().out
    assert note in folder.log_file.read_text()


def test_a_run_that_is_nearly_right_is_suggested(begun, stored, capsys):
    _, folder = stored
    wrong = folder.path.name[:-6] + "zzzz"
    assert main(["train", "--resume", wrong]) == 2
    assert f"did you mean {folder.path.name}?" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{", '{"seed": 1}'])
def test_a_run_whose_configuration_is_damaged_is_refused(begun, stored, capsys, text):
    _, folder = stored
    folder.config_file.write_text(text)
    assert main(["train", "--resume", folder.path.name]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"error: resume={folder.path.name}: ")
    assert printed.count("\n") == 1


def test_a_run_without_a_configuration_is_refused(begun, stored, capsys):
    _, folder = stored
    folder.config_file.unlink()
    assert main(["train", "--resume", folder.path.name]) == 2
    assert "config.json cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("atrium tr", "train"),
        ("atrium train algorithm=at", "algorithm=atr"),
        ("atrium train optimizer.learning_r", "optimizer.learning_rate="),
        ("atrium config see", "seed="),
        ("atrium show las", ""),
    ],
)
def test_the_shell_completes_commands_groups_options_and_keys(begun, monkeypatch, capsys, line, expected):
    monkeypatch.setenv("COMP_LINE", line)
    assert main(["-sc", "query=bash"]) == 0
    assert capsys.readouterr().out.split() == ([expected] if expected else [])


def test_the_completion_script_is_for_this_command(begun, capsys):
    assert main(["-sc", "install=bash"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("-F _atrium_completion atrium")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
@pytest.mark.parametrize(
    ("line", "expected"), [("atrium tr", ["train"]), ("atrium train algorithm=at", ["algorithm=atr"])]
)
def test_zsh_takes_each_completion_as_a_word(begun, capsys, line, expected):
    assert main(["-sc", "install=zsh"]) == 0
    stand_ins = f"""
        compdef() {{ }}
        compadd() {{ print -l -- $found }}
        atrium() {{ {sys.executable} -m atrium "$@" }}
        LBUFFER="{line}"
    """
    script = f"{stand_ins}\n{capsys.readouterr().out}\n_atrium_completion\n"
    done = subprocess.run(["zsh", "-f", "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.stdout.split(), done.stderr) == (expected, "")


@pytest.mark.parametrize(
    "asked", [[], ["install=nonsense"], ["install="], ["query=tcsh"], ["a=b", "c"], ["query=bash"]]
)
def test_what_no_shell_asks_is_one_line(begun, monkeypatch, capsys, asked):
    monkeypatch.delenv("COMP_LINE", raising=False)
    assert main(["-sc", *asked]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["--lr", "1e-5"], "optimizer.learning_rate=1e-5"),
        (["--lr=1e-5"], "optimizer.learning_rate=1e-5"),
        (["--learning-rate", "1e-5"], "optimizer.learning_rate=1e-5"),
        (["--seed", "3"], "seed=3"),
        (["--max-new-tokens=64"], "rollout.max_new_tokens=64"),
        (["--batch-size", "16"], "rollout.num_prompts=16"),
        (["--algorithm", "grpo", "seed=1"], "algorithm=grpo"),
        (["--lr", "seed=1"], "optimizer.learning_rate=VALUE"),
        (["--mulitrun", "seed=0,1"], "--multirun"),
    ],
)
def test_an_unknown_flag_suggests_the_setting_with_its_value_or_the_nearest_flag(begun, capsys, argv, meant):
    assert main(["train", *argv]) == 2
    assert f"unknown flag; did you mean {meant}?" in capsys.readouterr().err
