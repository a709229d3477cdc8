"""Engines outside the trainer's process: equal results whoever answers, and what becomes of those lost."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import signal
import time
from functools import partial

import numpy as np
import psutil
import pytest
from tests.rollout.conftest import (
    CLUSTER_ENGINES,
    DEALT_UNIT_SAMPLES,
    Policy,
    are_gone,
    build_model,
    build_tokenizer,
    cluster_engine,
    dealt_engine,
    requests_for,
    scripted_engine,
    start_dealt,
    trainer_of,
    transformers_engine,
)

from atrium.errors import ConfigError, EngineError, PolicyDivergedError
from atrium.rollout.engine import GenerationRequest, SamplingParams
from atrium.rollout.engine_worker import Take, Unit
from atrium.rollout.placed_engine import PlacedEngine
from atrium.rollout.units import cut_units

SAMPLING = SamplingParams(max_new_tokens=24)
TEXTS = [f"{number}+{number}=" for number in range(8)]


def bits(generations):
    """All that is sampled, by request, to the last bit."""
    return {
        generation.request_index: [
            (one.token_ids.tolist(), one.logprobs.tobytes(), one.text, one.weight_version)
            for one in generation.completions
        ]
        for generation in generations
    }


@pytest.fixture
def requests(tokenizer):
    return requests_for(TEXTS, tokenizer)


ENGINES = {"beside": dealt_engine, "cluster": cluster_engine}
ON_CLUSTER = pytest.param("cluster", marks=pytest.mark.full)


@pytest.fixture(params=["beside", ON_CLUSTER])
def engine(request, policy):
    """Two engines as one, which live until the tests end."""
    return ENGINES[request.param](policy)


@pytest.fixture
def expected(policy, requests):
    """What the engine in this process samples."""
    return bits(transformers_engine(policy, unit_samples=DEALT_UNIT_SAMPLES).generate(requests, SAMPLING))


@pytest.mark.parametrize(
    ("group_sizes", "unit_samples", "units"),
    [
        ([], 4, []),
        ([2, 2, 2, 2, 2], 4, [range(2), range(2, 4), range(4, 5)]),
        ([9, 1, 9], 4, [range(1), range(1, 2), range(2, 3)]),
        ([0, 4, 0, 1], 4, [range(3), range(3, 4)]),
        ([2, 2, 2], None, [range(3)]),
    ],
)
def test_a_unit_is_as_many_whole_requests_as_fit(group_sizes, unit_samples, units):
    requests = [
        GenerationRequest(prompt_token_ids=np.array([1], np.int32), sample_seeds=tuple(range(size)))
        for size in group_sizes
    ]
    assert cut_units(requests, unit_samples) == units
    for unit in units:
        whole = [requests[place] for place in unit]
        assert cut_units(whole, unit_samples) == [range(len(whole))]


def test_requests_of_different_waves_share_no_unit():
    prompt = np.array([1], np.int32)
    requests = [
        GenerationRequest(prompt_token_ids=prompt, sample_seeds=(seed,), wave=wave)
        for seed, wave in enumerate([0, 0, 0, 3, 3, 1])
    ]
    assert cut_units(requests, 2) == [range(2), range(2, 3), range(3, 5), range(5, 6)]
    assert cut_units(requests, None) == [range(3), range(3, 5), range(5, 6)]


def test_processes_answer_what_the_engine_inside_answers_to_the_last_bit(engine, requests, expected):
    assert bits(engine.generate(requests, SAMPLING)) == expected
    parents = {psutil.Process(pid).ppid() for pid in engine.process_ids}
    assert len(parents) == (2 if engine in CLUSTER_ENGINES else 1)  # each of Ray's nodes forks its own


@pytest.mark.parametrize("number", [0, 1])
def test_a_process_killed_while_it_samples_changes_nothing(
    engine, policy, requests, expected, number, capsys
):
    generations = engine.generate(requests, SAMPLING)
    first = next(generations)
    killed = engine.process_ids[number]
    os.kill(killed, signal.SIGKILL)
    assert bits([first, *generations]) == expected
    engine.update_weights(policy.model.state_dict(), 0)  # finds the process gone, if nothing before did
    assert killed not in engine.process_ids
    assert f"engine {number} died" in capsys.readouterr().out


def test_a_process_that_hangs_is_killed_and_changes_nothing(engine, requests, expected, monkeypatch):
    stopped = engine.process_ids[0]
    os.kill(stopped, signal.SIGSTOP)
    monkeypatch.setattr(PlacedEngine, "is_late", property(lambda process: stopped in process.pids))
    assert bits(engine.generate(requests, SAMPLING)) == expected
    assert not psutil.pid_exists(stopped)


class SilentEngine(PlacedEngine):
    """One that is asked and never answers."""

    printed = ""

    def end(self): ...
    def _send(self, question): ...
    def _next(self): ...
    def _has_lost_one(self, timeout_s): ...


@pytest.mark.parametrize(("max_new_tokens", "patience_s"), [(1, 10.0), (8192, 10.0), (32_768, 40.0)])
def test_an_engine_may_say_nothing_for_longer_where_answers_are_longer(max_new_tokens, patience_s):
    engine = SilentEngine(0, num_processes=1, timeout_s=10.0)
    engine.ask(Unit((0,), (), SamplingParams(max_new_tokens=max_new_tokens)))
    assert engine.patience_s == patience_s
    engine.question = Take(1)
    assert engine.patience_s == 10.0


def test_a_process_that_lives_although_its_start_failed_takes_nothing_from_the_next(
    policy, requests, expected, monkeypatch
):
    read, orphans = multiprocessing.forkserver.read_signed, []

    def killed_before_it_says_whom_it_forked(descriptor):
        orphans.append(read(descriptor))
        if len(orphans) == 1:
            raise EOFError
        return orphans[-1]

    monkeypatch.setattr(multiprocessing.forkserver, "read_signed", killed_before_it_says_whom_it_forked)
    engine = start_dealt(policy, num_engines=1, unit_samples=DEALT_UNIT_SAMPLES)
    try:
        assert bits(engine.generate(requests, SAMPLING)) == expected
        orphan, living = orphans
        assert engine.process_ids == [living]
        assert are_gone([orphan])
    finally:
        engine.close()


def test_completions_that_nobody_takes_leave_no_trace(engine, requests, expected):
    generations = engine.generate(requests, SAMPLING)
    next(generations)
    generations.close()
    assert bits(engine.generate(requests, SAMPLING)) == expected


def test_an_interrupted_engine_samples_again_with_new_weights(engine, policy, requests, expected):
    generations = engine.generate(requests, SAMPLING)
    engine.interrupt()
    with pytest.raises(InterruptedError):
        next(generations)
    engine.update_weights(policy.model.state_dict(), 0)
    assert bits(engine.generate(requests, SAMPLING)) == expected


def test_weights_that_change_while_completions_are_taken_are_an_error(engine, policy, requests):
    generations = engine.generate(requests, SAMPLING)
    next(generations)
    engine.update_weights(policy.model.state_dict(), 1)
    with pytest.raises(EngineError, match="from version 0 to 1"):
        list(generations)


def test_what_is_raised_in_a_process_is_raised_here(engine, requests):
    engine.update_weights({name: value * 1e30 for name, value in build_model(0).state_dict().items()}, 1)
    with pytest.raises(PolicyDivergedError):
        list(engine.generate(requests, SAMPLING))


class WrongVersion:
    """An engine that says it took another version than the one that it was given."""

    def __init__(self, policy):
        self._engine = scripted_engine(policy)
        self.generate, self.facts = self._engine.generate, self._engine.facts

    def update_weights(self, weights, version):
        self._engine.update_weights(weights, version + 1)


def fail_to_start(_):
    raise ConfigError("there is no such engine")


def die_at_the_start(_):
    os._exit(3)


def started(policy, build):
    return start_dealt(policy, num_engines=1, unit_samples=4, build=pickle.dumps(partial(build, policy)))


def test_a_process_that_samples_with_other_weights_is_an_error(policy, requests):
    engine = started(policy, WrongVersion)
    with pytest.raises(EngineError, match=r"version 1, and version 0 was asked for"):
        list(engine.generate(requests, SAMPLING))
    engine.close()


def test_an_engine_that_cannot_start_says_why(policy):
    with pytest.raises(ConfigError, match="there is no such engine"):
        started(policy, fail_to_start)


def test_an_engine_whose_processes_die_again_and_again_gives_up(policy):
    with pytest.raises(EngineError, match="the last of 4 that were lost"):
        started(policy, die_at_the_start)


def sample_for_ever(connection):
    """The life of a trainer that is killed."""
    policy = Policy(model=build_model(0), tokenizer=build_tokenizer())
    engine = start_dealt(policy, num_engines=2, unit_samples=4)
    endless = SamplingParams(max_new_tokens=150, ignore_stop=True)
    generations = engine.generate(requests_for(["1+2="] * 400, policy.tokenizer), endless)
    next(generations)
    connection.send(engine.process_ids)
    time.sleep(600)


def close_one_that_hangs(connection):
    """The life of a trainer that has lost what its engine was forked from."""
    policy = Policy(model=build_model(0), tokenizer=build_tokenizer())
    engine = start_dealt(policy, num_engines=1, unit_samples=4)
    hanging = psutil.Process(engine.process_ids[0])
    hanging.suspend()
    hanging.parent().kill()
    while multiprocessing.active_children():  # it then takes the engine for ended
        time.sleep(0.01)
    engine.close()
    connection.send([hanging.pid])


def test_a_trainer_that_is_killed_leaves_no_engine_behind():
    with trainer_of(sample_for_ever) as (trainer, connection):
        engines = connection.recv()
        trainer.kill()
        assert are_gone(engines)


def test_an_engine_that_hangs_is_killed_although_what_it_was_forked_from_is_gone():
    with trainer_of(close_one_that_hangs) as (_, connection):
        assert are_gone(connection.recv())
