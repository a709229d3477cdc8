"""Engines outside the trainer of two processes each: they answer as one, and are lost and started as one.

The engine is no vLLM. What it samples is added up over its processes: neither can do without the other.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from functools import partial

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from tests.rollout.conftest import (
    CLUSTER_ENGINES,
    Policy,
    actors,
    are_gone,
    build_model,
    build_tokenizer,
    processes,
    requests_for,
    start_dealt,
    trainer_of,
)

from atrium.errors import EngineError
from atrium.records import Completion, FinishReason
from atrium.rollout.engine import EngineFacts, Generation, SamplingParams
from atrium.rollout.engine_member import Member, meeting_memory
from atrium.rollout.placed_engine import PlacedEngine

SAMPLING = SamplingParams(max_new_tokens=1)
TEXTS = [f"{number}+{number}=" for number in range(8)]
PLACES = ["beside", pytest.param("cluster", marks=pytest.mark.full)]
EACH = [("beside", 0), ("beside", 1), pytest.param("cluster", 1, marks=pytest.mark.full)]


class SplitEngine:
    """Answers with its process's number plus 1, added up over all; calls `act` in each before it does."""

    def __init__(self, act=None):
        self._act = act or (lambda rank, prompt: None)
        self._version = 0
        self.facts = EngineFacts()

    def update_weights(self, weights, version):
        self._version = version

    def generate(self, requests, sampling):
        rank = dist.get_rank() if dist.is_initialized() else 0
        for place, request in enumerate(requests):
            self._act(rank, request.prompt_token_ids.tolist())
            token = torch.tensor([rank + 1])
            if dist.is_initialized():
                dist.all_reduce(token)
            completion = Completion(
                token_ids=np.array([int(token)], np.int32),
                logprobs=np.zeros(1, np.float32),
                text=str(request.prompt_token_ids.tolist()),
                finish_reason=FinishReason.LENGTH,
                weight_version=self._version,
            )
            yield Generation(request_index=place, completions=(completion,) * len(request.sample_seeds))


def once(path, wanted_rank, wanted_prompt, harm, rank, prompt):
    """Do harm at one request in one process, and never again."""
    if (rank, prompt) == (wanted_rank, wanted_prompt):
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            return
        harm()


def kill_this_process():
    os.kill(os.getpid(), signal.SIGKILL)


def hang_this_process():
    os.kill(os.getpid(), signal.SIGSTOP)


def diverge():
    raise EngineError("no numbers any more")


def note(path, rank, prompt):
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{prompt}\n")


@pytest.fixture
def requests(tokenizer):
    return requests_for(TEXTS, tokenizer)


@pytest.fixture
def start(policy):
    """Starts engines of two processes each, which end with the test."""
    started = []

    def start_split(place="beside", act=None, *, num_engines=2, num_processes=2, unit_samples=12):
        where = {"beside": processes, "cluster": actors}[place]
        if place == "cluster":  # a process joins one at a time
            for other in CLUSTER_ENGINES:
                other.close()
        started.append(
            start_dealt(
                policy,
                num_engines=num_engines,
                unit_samples=unit_samples,
                build=pickle.dumps(partial(SplitEngine, act)),
                place=partial(where, num_processes=num_processes),
            )
        )
        return started[-1]

    yield start_split
    for engine in started:
        engine.close()


def answered(engine, requests):
    """What is answered to each request, each once: by both processes of an engine together."""
    found = {one.request_index: one.completions for one in engine.generate(requests, SAMPLING)}
    assert len(found) == len(requests)
    for place, request in enumerate(requests):
        assert {one.text for one in found[place]} == {str(request.prompt_token_ids.tolist())}
        assert {one.token_ids.tolist()[0] for one in found[place]} == {1 + 2}


@pytest.mark.parametrize("place", PLACES)
def test_the_processes_of_an_engine_answer_as_one_and_listen_to_nobody_elsewhere(start, requests, place):
    engine = start(place)
    answered(engine, requests)
    assert engine.facts.described["processes"] == 4
    assert len(set(engine.process_ids)) == 4
    listening = [
        connection.laddr.ip
        for pid in engine.process_ids
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening  # gloo's
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


@pytest.mark.parametrize(("place", "rank"), EACH)
def test_one_that_is_killed_is_a_lost_engine_whose_work_is_asked_again(
    start, requests, tmp_path, capsys, place, rank
):
    victim = requests[5].prompt_token_ids.tolist()
    engine = start(place, partial(once, tmp_path / "done", rank, victim, kill_this_process))
    before = set(engine.process_ids)
    answered(engine, requests)
    assert capsys.readouterr().out.count("it is started again, and its work is asked again") == 1
    answered(engine, requests)
    assert len(before & set(engine.process_ids)) == 2, "those of the other engine"
    assert len(engine.process_ids) == 4


@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_hangs_is_a_lost_engine(start, requests, tmp_path, monkeypatch, rank):
    victim = requests[5].prompt_token_ids.tolist()
    engine = start(act=partial(once, tmp_path / "done", rank, victim, hang_this_process), num_engines=1)

    def hangs(engine):
        return any(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in engine.pids)

    before = [psutil.Process(pid) for pid in engine.process_ids]
    monkeypatch.setattr(PlacedEngine, "is_late", property(hangs))
    answered(engine, requests)
    assert not any(process.is_running() for process in before)


@pytest.mark.parametrize(("place", "rank"), EACH)
def test_an_error_in_one_is_raised_here_and_the_engine_goes_on_with_new_processes(
    start, requests, tmp_path, capsys, place, rank
):
    victim = requests[5].prompt_token_ids.tolist()
    engine = start(place, partial(once, tmp_path / "done", rank, victim, diverge), num_engines=1)
    with pytest.raises(EngineError, match="no numbers any more"):
        list(engine.generate(requests, SAMPLING))
    answered(engine, requests)
    assert "started again" not in capsys.readouterr().out


@pytest.mark.parametrize(("unit_samples", "num_asked_again"), [(None, 3), (100, 8)])
def test_of_a_lost_engines_work_what_has_no_answer_is_asked_again_where_units_need_not_stay_whole(
    start, policy, requests, tmp_path, unit_samples, num_asked_again
):
    victim, asked = requests[5].prompt_token_ids.tolist(), tmp_path / "asked"
    kill = partial(once, tmp_path / "done", 0, victim, kill_this_process)
    engine = start(
        act=partial(both, partial(note, asked), kill),
        num_engines=1,
        num_processes=1,
        unit_samples=unit_samples,
    )
    assert len(list(engine.generate(requests, SAMPLING))) == 8
    assert len(asked.read_text().splitlines()) == 6 + num_asked_again


def both(first, second, rank, prompt):
    first(rank, prompt)
    second(rank, prompt)


def sample_for_ever(connection):
    """The life of a trainer that is killed while the processes of its engine wait for each other."""
    policy = Policy(model=build_model(0), tokenizer=build_tokenizer())
    engine = start_dealt(
        policy,
        num_engines=1,
        unit_samples=None,
        build=pickle.dumps(partial(SplitEngine, sleep)),
        place=partial(processes, num_processes=2),
    )
    generations = engine.generate(requests_for(["1+2="] * 400, policy.tokenizer), SAMPLING)
    connection.send(engine.process_ids)
    next(generations)
    time.sleep(600)


def sleep(rank, prompt):
    time.sleep(600 * rank)


def test_a_trainer_that_is_killed_leaves_no_process_of_an_engine_behind():
    with trainer_of(sample_for_ever) as (trainer, connection):
        engines = connection.recv()
        trainer.kill()
        assert are_gone(engines)


@pytest.fixture
def torchruns_variables(monkeypatch):
    """What a rank of a run has in its environment."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name in (*names, "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "7")
    return names


def test_an_engine_of_one_process_drops_what_torchrun_told_the_trainer(torchruns_variables):
    Member().join("cpu")
    assert not set(torchruns_variables) & os.environ.keys()


def test_a_process_whose_others_do_not_come_says_so_in_time(torchruns_variables):
    meeting = f"/proc/self/fd/{meeting_memory()}"
    with pytest.raises(EngineError, match=r"process 1 of an engine did not reach the other 1 "):
        Member(rank=1, size=2, meeting=meeting, timeout_s=0.5).join("cpu")
    assert not dist.is_initialized()
    assert (os.environ["LOCAL_RANK"], os.environ["GLOO_SOCKET_IFNAME"]) == ("1", "lo")
    assert "MASTER_ADDR" not in os.environ
