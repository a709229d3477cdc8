"""Registration of reward functions from TRL and `verifiers` as rewards of this package.

A plugin calls `from_trl` or `from_verifiers` once per function. A configuration then selects the reward by
its kind, alone or as one of several. Functions may be asynchronous. Callables that are not Python functions,
such as `functools.partial` objects, raise `TypeError`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from atrium.base.records import Completion, Problem
from atrium.grading.rewards import GradedGroup, Reward


def from_trl(function: Callable[..., Any], *, kind: str | None = None, messages: bool = True) -> type[Reward]:
    """Register a TRL reward function as the reward `kind`, which defaults to the function's name.

    The function is called once per group, by keyword, with the arguments that it declares: `prompts`,
    `completions`, `completion_ids`, `answer` and `solution` (both the reference answer), and the problem's
    metadata and verifier values, each by its name. An argument is a list with one element per completion. The
    function returns a number or None for each completion. With `messages`, prompts and completions are lists
    of messages, as in a conversational dataset; otherwise they are texts.
    """

    def rewards(_: Reward, group: GradedGroup) -> Sequence[float | None]:
        prompt = _prompt(group.problem) if messages else group.problem.asked
        columns = {"answer": group.problem.answer, "solution": group.problem.answer}
        columns |= group.problem.judged_by
        num = len(group.completions)
        given = {
            **{name: [value] * num for name, value in columns.items()},
            "prompts": [prompt] * num,
            "completions": [_answer(one) if messages else one.text for one in group.completions],
            "completion_ids": [one.token_ids.tolist() for one in group.completions],
        }
        found: Sequence[float | None] = _called(function, given)
        return found

    return _declared(function, rewards, kind)


def from_verifiers(function: Callable[..., Any], *, kind: str | None = None) -> type[Reward]:
    """Register a reward function of `verifiers` as the reward `kind`, which defaults to the function's name.

    The function is called once per completion with the arguments that it declares: `prompt` and `completion`
    (lists of messages), `answer`, `info` (the problem's metadata and verifier values), `task` (the problem's
    id) and `state` (a mapping with all of these). It returns a number, or None to abstain.
    """

    def rewards(_: Reward, group: GradedGroup) -> list[float | None]:
        problem, found = group.problem, []
        for one in group.completions:
            given: dict[str, Any] = {
                "prompt": _prompt(problem),
                "completion": _answer(one),
                "answer": problem.answer,
                "info": dict(problem.judged_by),
                "task": problem.problem_id,
            }
            found.append(_called(function, given | {"state": dict(given)}))
        return found

    return _declared(function, rewards, kind)


def _declared(function: Callable[..., Any], rewards: Callable[..., Any], kind: str | None) -> type[Reward]:
    """Return a reward class that calls `rewards`; error messages give the file and line of `function`.

    `kind` defaults to the name of `function`.
    """
    if not inspect.isfunction(function):
        raise TypeError(f"a reward function must be a Python function, got {function!r}; define it with def")
    name = kind or function.__name__
    settings = {"kind": name, "__annotations__": {"kind": Literal[name]}, "__module__": function.__module__}
    call = functools.wraps(function)(rewards)
    document = inspect.getdoc(function) or f"The reward function {function.__name__}."
    return type(name, (Reward,), {**settings, "__call__": call, "__doc__": document})


def _called(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a user's code
    """Call a function, which may be asynchronous, with the arguments that it declares."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)
    taken = given if takes_all else {one.name: given[one.name] for one in parameters if one.name in given}
    found = function(**taken)
    return asyncio.run(found) if inspect.iscoroutine(found) else found


def _prompt(problem: Problem) -> list[dict[str, str]]:
    turns = [{"role": role, "content": text} for role, text in problem.turns]
    return [*turns, {"role": "user", "content": problem.question}]


def _answer(completion: Completion) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": completion.text}]
