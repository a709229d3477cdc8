"""What a plugin raises is one line with its file, line and function, without a traceback."""

from __future__ import annotations

import json
from typing import ClassVar, Literal

import pytest

from atrium.assemble.dry_run import try_reward
from atrium.base import plugins
from atrium.base.errors import ConfigError, PluginError
from atrium.base.records import Problem
from atrium.config.compose import compose
from atrium.grading.rewards import CorrectnessReward, Reward

CODE = """
def helper(value):
    return [number for number in range(1 // value)]


def fail():
    raise ValueError("no such answer")


class Mine:
    def __call__(self):
        return helper(0)
"""
PROBLEM = Problem(problem_id="p", question="3+4=", answer="7")


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    monkeypatch.setitem(plugins._loaded, "mine.py", plugins.Plugin(name="mine.py", sha256="0", path=path))
    names = {}
    exec(compile(CODE, str(path), "exec"), names)
    return names


def test_error_of_a_plugin_names_file_line_and_function(plugin):
    with pytest.raises(PluginError) as raised, plugins.explained():
        plugin["Mine"]()()
    said = str(raised.value)
    assert "mine.py, line 3, in helper: ZeroDivisionError: integer division or modulo by zero" in said
    with (
        pytest.raises(PluginError, match=r"mine.py, line 7, in fail: ValueError: no such answer"),
        plugins.explained(),
    ):
        plugin["fail"]()


def test_error_of_a_plugin_through_library_code_names_the_plugins_last_line(plugin):
    with pytest.raises(PluginError, match=r"mine.py, line 3, in helper"), plugins.explained():
        json.loads("1", parse_int=lambda text: plugin["helper"](0))


def test_plugin_for_modules_of_another_version_is_refused_in_one_line_that_says_where_to_look(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(plugins, "_SETTINGS", "not loaded")
    path = tmp_path / "earlier.py"
    path.write_text("import math\nfrom atrium.objective.surrogates import terms\n")
    with pytest.raises(ConfigError) as raised:
        plugins._run(plugins.Plugin(name="earlier.py", sha256="0", path=path, source=path.read_bytes()), "it")
    assert str(raised.value) == (
        "it, line 2: ModuleNotFoundError: No module named 'atrium.objective'; "
        "docs/extending.md lists the modules of this version"
    )


def test_plugin_file_that_cannot_be_read_is_refused_in_one_line():
    name = "x" * 300 + ".py"  # longer than names of files may be
    with pytest.raises(
        ConfigError, match=r"--plugin x+\.py: the file cannot be read \(File name too long\); "
    ):
        plugins.load([name])


def test_other_errors_stay_as_they_are():
    with pytest.raises(ZeroDivisionError), plugins.explained():
        _ = 1 // 0
    with pytest.raises(ConfigError, match="a setting"), plugins.explained():
        raise ConfigError("a setting")


class Changing(Reward):
    """Another number each time."""

    kind: Literal["correctness"] = "correctness"
    num_calls: ClassVar[list[int]] = []

    def __call__(self, group):
        self.num_calls.append(1)
        return [float(len(self.num_calls))] * len(group.completions)

    @classmethod
    def own_kinds(cls):
        return ()  # not known to the settings of other tests


class OnlyWhenRight(CorrectnessReward):
    """Fails where a group holds no right answer."""

    @classmethod
    def own_kinds(cls):
        return ()

    def __call__(self, group):
        best = min(
            one.num_tokens
            for one, verdict in zip(group.completions, group.verdicts, strict=True)
            if verdict.is_correct
        )
        return [float(best)] * len(group.completions)


def test_dry_run_finds_a_reward_that_fails_without_right_answers_or_does_not_repeat():
    config = compose(["debug=tiny_steps"])
    try_reward(config, PROBLEM)
    with pytest.raises(ValueError, match="empty"):
        try_reward(config.model_copy(update={"reward": OnlyWhenRight()}), PROBLEM)
    with pytest.raises(PluginError, match="Changing returned different rewards for the same group"):
        try_reward(config.model_copy(update={"reward": Changing()}), PROBLEM)
