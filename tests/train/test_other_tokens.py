"""Rows in which tokens that the policy did not write stand between its own: computed, never trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tests.train.test_loop import build_scene

from atrium.engines.engine import Generation
from atrium.engines.stored_rollouts import read_stored
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import MathVerifier
from atrium.runs.sample_files import write_rollouts
from atrium.train.checkpoint.group_records import bytes_of_groups, groups_of_bytes

TOOL = (5, 6, 7)


def with_tool(completion, place):
    """The completion with a tool's tokens, whose log-probabilities are NaN, before its token at `place`."""
    own = np.insert(np.ones(len(completion.token_ids), bool), [place] * len(TOOL), False)
    return replace(
        completion,
        token_ids=np.insert(completion.token_ids, [place] * len(TOOL), TOOL),
        logprobs=np.insert(completion.logprobs, [place] * len(TOOL), np.float32(np.nan)),
        own=own,
    )


def tool_groups(make, seed=0):
    """Random groups; every row but each third has a tool's tokens before, between or behind its own."""
    return [
        replace(
            group,
            rollouts=tuple(
                replace(
                    rollout,
                    completion=with_tool(
                        rollout.completion, (rollout.sample_index * 2) % (rollout.completion.num_tokens + 1)
                    ),
                )
                if rollout.sample_index != 1
                else rollout
                for rollout in group.rollouts
            ),
        )
        for group in make.groups(seed)
    ]


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "padded"])
def test_the_gradient_is_that_of_the_policys_own_tokens_in_their_whole_context(make, packing):
    groups, model, by_hand = tool_groups(make), make.exact_model(seed=3), make.exact_model(seed=3)
    updater = make.updater(make.objective("algorithm=grpo"), model, micro_batch_tokens=60)
    updater.forward.packing = packing
    make.step(updater, make.rows(groups))

    optimizer = make.updater(make.objective("algorithm=grpo"), by_hand).optimizer
    terms = []
    for group in groups:
        rewards = torch.tensor([rollout.reward for rollout in group.rollouts], dtype=torch.float64)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        for advantage, rollout in zip(advantages, group.rollouts, strict=True):
            one = rollout.completion
            ids = torch.from_numpy(np.concatenate([group.prompt_token_ids, one.token_ids])).long()
            logprob = by_hand(input_ids=ids[None]).logits[0].log_softmax(-1)
            places = np.arange(len(ids) - len(one.token_ids), len(ids))
            places = places if one.own is None else places[one.own]
            terms.append(advantage * logprob[places - 1, ids[places]].mean())
    (-torch.stack(terms).mean()).backward()
    optimizer.step(1)
    moved = model.state_dict()
    for name, value in by_hand.state_dict().items():
        assert torch.allclose(moved[name], value, rtol=0.0, atol=1e-9), name


@dataclass
class ToolEngine:
    """The answers of another engine, with a tool's tokens in each."""

    engine: object

    def __getattr__(self, name: str) -> object:
        return getattr(self.engine, name)

    def generate(self, requests, sampling) -> Iterator[Generation]:
        for generation in self.engine.generate(requests, sampling):
            completions = tuple(with_tool(one, one.num_tokens // 2) for one in generation.completions)
            yield replace(generation, completions=completions)


def test_a_run_trains_on_rows_with_a_tools_answer_and_records_which_tokens_were_its_own(make, tmp_path):
    with GraderPool(MathVerifier(num_workers=1, timeout_s=60.0, memory_limit_mb=512)) as grader:
        scene = build_scene(make, tmp_path, grader, rollouts_at=(2,))
        engine = ToolEngine(scene.run.engine)
        run = replace(scene.run, engine=engine, collector=replace(scene.run.collector, engine=engine))
        before = scene.weights()
        replace(scene, run=run).play()
    assert any(not value.equal(before[name]) for name, value in scene.weights().items())
    groups, traces = scene.diary.groups_at[2]
    completions = [rollout.completion for group in groups for rollout in group.rollouts]
    measured = scene.diary.metrics[2]
    assert all(np.isfinite(value) for value in measured.values())
    assert measured["rollout/num_tokens"] == sum(one.own.sum() for one in completions)
    assert measured["rollout/num_tokens"] == sum(len(one.token_ids) - len(TOOL) for one in completions)

    path = tmp_path / "step-000002.parquet"
    write_rollouts(path, 2, groups, traces)
    rows = pq.read_table(path).to_pylist()
    for row, one in zip(rows, completions, strict=True):
        assert row["own"] == one.own.tolist()
        assert np.isnan(row["ratio"]).tolist() == np.logical_not(one.own).tolist()
        assert not any(cut for cut, own in zip(row["clipped"], row["own"], strict=True) if not own)
    stored = read_stored([path], [group.problem for group in groups])
    assert [one.own.tolist() for one in stored] == [one.own.tolist() for one in completions]


def test_which_tokens_are_the_policys_own_passes_between_processes_and_through_checkpoints(make):
    groups = tool_groups(make)
    again = groups_of_bytes(bytes_of_groups(groups))
    for group, other in zip(groups, again, strict=True):
        for one, two in zip(group.rollouts, other.rollouts, strict=True):
            assert one.completion.token_ids.tolist() == two.completion.token_ids.tolist()
            assert (one.completion.own is None) == (two.completion.own is None)
            assert one.completion.own is None or one.completion.own.tolist() == two.completion.own.tolist()
