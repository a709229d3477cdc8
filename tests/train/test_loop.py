"""The loop on a real policy, grader and checkpoint store, with an engine that replays a script."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest
import torch
from tests.scripted_engine import ScriptedCompletion, ScriptedEngine

from atrium.base.errors import Interrupted, PluginError, TrainingDivergedError
from atrium.base.records import FinishReason, Problem, VerdictKind
from atrium.base.seeding import derive_seed
from atrium.config.presets import read_preset
from atrium.data.problems import ProblemStream
from atrium.engines.engine import SamplingParams
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import MathVerifier
from atrium.method.groups import GroupFilter
from atrium.method.objective import ObjectiveState
from atrium.method.references import ReferenceState
from atrium.models.policy import write_policy
from atrium.runs.listener import Listener
from atrium.train.checkpoint.checkpoint import CheckpointStore, TrainingState, latest_checkpoint
from atrium.train.checkpoint.group_records import bytes_of_groups, groups_of_bytes
from atrium.train.collect import RolloutCollector
from atrium.train.guard.faults import FaultHandling, UpdateState
from atrium.train.loop import train
from atrium.train.step import LoopSettings, Training
from atrium.train.update.reference import MovingReference

PROBLEMS = [
    Problem(problem_id=f"p{number}", question=f"{number}+1=", answer=str(number + 1)) for number in range(8)
]
GROUP_SIZE, NUM_PROMPTS = 6, 2


@dataclass
class Diary(Listener):
    """What happened, in order."""

    events: list = field(default_factory=list)
    metrics: dict = field(default_factory=dict)
    ratios_at: dict = field(default_factory=dict)
    groups_at: dict = field(default_factory=dict)
    rollouts_at: tuple = ()

    def wants_rollouts(self, step):
        return step in self.rollouts_at

    def step(self, step, metrics):
        self.events.append(f"metrics {step}")
        self.metrics[step] = dict(metrics)

    def ratios(self, step, histogram):
        self.ratios_at[step] = histogram

    def rollouts(self, step, groups, traces):
        self.events.append(f"rollouts {step}")
        self.groups_at[step] = (groups, traces)

    def phase(self, name, total=None):
        self.events.append(name)

    def sync(self):
        self.events.append("sync")


class DiaryEngine(ScriptedEngine):
    """Notes the weights that it is given."""

    def __init__(self, diary, *args, **settings):
        super().__init__(*args, **settings)
        self.diary = diary

    def update_weights(self, weights, version):
        super().update_weights(weights, version)
        self.diary.events.append(f"weights {version}")


@dataclass
class Scene:
    """A run in memory: what it is made of, and what happened in it."""

    run: Training
    diary: Diary
    policy: object

    def play(self, state=None):
        return train(self.run, state or TrainingState(objective=ObjectiveState()))

    def weights(self):
        return {name: value.clone() for name, value in self.policy.model.state_dict().items()}


@pytest.fixture
def scene(make, tmp_path):
    with GraderPool(MathVerifier(num_workers=1, timeout_s=60.0, memory_limit_mb=512)) as grader:
        yield partial(build_scene, make, tmp_path, grader)


def _following(rule):
    return "algorithm=grpo_kl", f"algorithm.reference={rule}"


def _correct(group):
    return [float(verdict.is_correct) for verdict in group.verdicts]


def _penalized(group):
    """Correctness less a penalty of the completion's own, so that hardly any two rewards are equal."""
    return [reward - 0.01 * sample_index for sample_index, reward in enumerate(_correct(group))]


def build_scene(
    make,
    folder,
    grader,
    *,
    num_steps=2,
    evaluate_every=None,
    checkpoint_every=100,
    keep_best=False,
    scores=(),
    silent=(),
    reward=_correct,
    group_filter=None,
    stop_after=None,
    rollouts_at=(),
    reference_rule=None,
    algorithm="grpo",
):
    policy, diary = make.tiny_policy(), Diary(rollouts_at=rollouts_at)
    encode_text = partial(policy.tokenizer.encode, add_special_tokens=False)

    def encode(problem):
        return np.array(encode_text(problem.question), np.int32)

    by_prompt = {tuple(encode(problem).tolist()): problem for problem in PROBLEMS}

    def answer(prompt, seed):
        problem = by_prompt[tuple(prompt.tolist())]
        is_right = problem.problem_id in silent or derive_seed(seed, "coin") % 2
        said = int(problem.answer) + (0 if is_right else 1)
        return ScriptedCompletion(text=f"{problem.question}\\boxed{{{said}}}")

    engine = DiaryEngine(
        diary,
        answer,
        encode=encode_text,
        decode=policy.tokenizer.decode,
        stop_token_ids=policy.stop_token_ids,
        context_length=64,
    )
    reference = None
    if reference_rule is not None:
        reference = MovingReference(model=make.tiny_policy().model, moves=True)
    remaining = list(scores)

    def evaluate(step, *, final):
        diary.events.append(f"evaluate {step}" + (" final" if final else ""))
        return remaining.pop(0) if remaining else None

    def save_policy(path):
        diary.events.append("save")
        write_policy(policy, path)

    run = Training(
        settings=LoopSettings(
            num_steps=num_steps,
            evaluate_every_num_steps=evaluate_every,
            checkpoint_every_num_steps=checkpoint_every,
            pad_token_id=policy.pad_token_id,
            device="cpu",
            seed=0,
        ),
        collector=RolloutCollector(
            stream=ProblemStream(PROBLEMS, seed=0),
            encode=encode,
            engine=engine,
            grader=grader,
            reward=reward,
            group_filter=group_filter or GroupFilter(),
            sampling=SamplingParams(max_new_tokens=20),
            num_prompts=NUM_PROMPTS,
            group_size=GROUP_SIZE,
            seed=0,
        ),
        updater=make.updater(
            make.objective(*(_following(reference_rule) if reference else [f"algorithm={algorithm}"])),
            policy.model,
            reference=reference.model if reference else None,
        ),
        engine=engine,
        weights=policy.model.state_dict,
        reference=reference,
        listener=diary,
        evaluate=evaluate,
        checkpoints=CheckpointStore(
            folder=folder / "checkpoints", save_policy=save_policy, keep_last=2, keep_best=keep_best
        ),
        should_stop=lambda: stop_after is not None and f"metrics {stop_after}" in diary.events,
    )
    return Scene(run=run, diary=diary, policy=policy)


def _only(events, *beginnings):
    return [event for event in events if event.startswith(beginnings)]


def test_a_step_samples_updates_hands_over_weights_evaluates_records_and_saves(scene):
    played = scene(num_steps=2, evaluate_every=1, checkpoint_every=1, rollouts_at=(2,))
    played.play()
    assert played.diary.events == [
        *("evaluation", "evaluate 0 final"),
        *("rollout", "update", "weights 1", "evaluation", "evaluate 1", "metrics 1"),
        *("checkpoint", "sync", "save"),
        *("rollout", "update", "rollouts 2", "weights 2", "evaluation", "evaluate 2 final", "metrics 2"),
        *("checkpoint", "sync", "save"),
    ]


@pytest.mark.parametrize(
    ("every", "expected"),
    [
        (2, ["evaluate 0 final", "evaluate 2", "evaluate 4", "evaluate 5 final"]),
        (5, ["evaluate 0 final", "evaluate 5 final"]),
        (None, ["evaluate 0 final", "evaluate 5 final"]),
    ],
)
def test_evaluation_comes_before_now_and_then_and_after(scene, every, expected):
    played = scene(num_steps=5, evaluate_every=every)
    played.play()
    assert _only(played.diary.events, "evaluate ") == expected


@pytest.mark.parametrize(("every", "saved"), [(1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3, 4]), (9, [4])])
def test_checkpoints_come_every_n_steps_and_after_the_last(scene, every, saved):
    played = scene(num_steps=4, checkpoint_every=every)
    played.play()
    events = _only(played.diary.events, "metrics", "save")
    steps = [int(a.split()[1]) for a, b in itertools.pairwise(events) if b == "save"]
    assert steps == saved


def test_the_best_is_the_first_of_the_highest_scores_and_is_saved_at_once(scene):
    played = scene(num_steps=4, evaluate_every=1, keep_best=True, scores=[0.1, 0.3, 0.3, 0.5, 0.2])
    state = played.play()
    assert (state.best_step, state.best_value) == (3, 0.5)
    events = _only(played.diary.events, "metrics", "save")
    assert events == ["metrics 1", "save", "metrics 2", "metrics 3", "save", "metrics 4", "save"]


def test_a_request_to_stop_is_honoured_after_the_step_with_a_checkpoint(scene):
    played = scene(num_steps=4, stop_after=2)
    with pytest.raises(Interrupted, match="stopped after step 2 of 4"):
        played.play()
    assert played.diary.events[-4:] == ["metrics 2", "checkpoint", "sync", "save"]
    assert latest_checkpoint(played.run.checkpoints.folder).state.step == 2


def test_a_request_to_stop_after_the_last_step_interrupts_nothing(scene):
    assert scene(num_steps=2, stop_after=2).play().step == 2


@pytest.mark.parametrize("kind", ["drop", "skip", "resample"])
def test_a_step_whose_groups_all_lack_a_signal_updates_nothing(scene, kind):
    played = scene(
        num_steps=1,
        silent=[problem.problem_id for problem in PROBLEMS],
        group_filter=GroupFilter(kind=kind),
        rollouts_at=(1,),
    )
    before = played.weights()
    state = played.play()
    assert all(value.equal(before[name]) for name, value in played.weights().items())
    assert (state.step, state.cursor, state.weight_version) == (1, NUM_PROMPTS, 0)
    named = played.diary.metrics[1]
    assert named["rollout/no_signal_frac"] == named["rollout/reward"] == 1.0
    assert not any(name.startswith("objective/") for name in named)
    assert played.run.updater.optimizer.state() == {}


def test_a_step_with_a_signal_updates_the_weights_and_counts_it(scene):
    played = scene(num_steps=2)
    before = played.weights()
    state = played.play()
    assert any(not value.equal(before[name]) for name, value in played.weights().items())
    assert (state.step, state.cursor, state.weight_version) == (2, 2 * NUM_PROMPTS, 2)
    assert state.num_tokens == sum(named["rollout/num_tokens"] for named in played.diary.metrics.values())


@pytest.mark.parametrize(("limit", "num_kept", "num_sampled"), [(1, 0, 2), (2, 1, 4), (3, 2, 5), (9, 2, 5)])
def test_resampling_replaces_each_group_without_a_signal_until_the_batch_is_full(
    scene, limit, num_kept, num_sampled
):
    stream = ProblemStream(PROBLEMS, seed=0)
    silent = [problem.problem_id for problem in stream.take(0, 3)]
    played = scene(
        num_steps=1,
        silent=silent,
        group_filter=GroupFilter(kind="resample", max_num_rounds=limit),
        rollouts_at=(1,),
    )
    state = played.play()
    assert state.cursor == num_sampled
    named = played.diary.metrics[1]
    assert named["rollout/num_groups_sampled"] == num_sampled
    groups, _ = played.diary.groups_at.get(1, ((), None))
    wanted = [problem.problem_id for problem in stream.take(3, 2)][:num_kept]
    assert [group.problem.problem_id for group in groups] == wanted
    assert named.get("optimizer/num_updates", 0) == (num_kept > 0)


@pytest.mark.parametrize("preset", ["dapo", "fipo", "eighty_twenty"])
def test_dynamic_sampling_replaces_groups_that_are_all_right_whatever_their_penalties(scene, preset):
    stream = ProblemStream(PROBLEMS, seed=0)
    solved = [problem.problem_id for problem in stream.take(0, 3)]
    played = scene(
        num_steps=1,
        silent=solved,
        reward=_penalized,
        group_filter=GroupFilter(**read_preset(preset).algorithm.group_filter.model_dump()),
        rollouts_at=(1,),
    )
    played.play()
    groups, _ = played.diary.groups_at[1]
    assert [group.problem.problem_id for group in groups] == [
        problem.problem_id for problem in stream.take(3, 2)
    ]
    for group in groups:
        assert 0 < sum(rollout.verdict.is_correct for rollout in group.rollouts) < GROUP_SIZE


def test_another_sampling_stream_draws_the_same_problems_anew(scene):
    collector = replace(scene().run.collector, encode=lambda problem: np.array([1], np.int32))
    first, again, other = (
        replace(collector, sampling_stream=stream).request(PROBLEMS[0], 3).sample_seeds
        for stream in (0, 0, 1)
    )
    assert first == again == tuple(derive_seed(0, "rollout", 3, sample) for sample in range(GROUP_SIZE))
    assert not set(first) & set(other)


def test_an_answer_that_was_cut_off_is_not_correct_to_the_filter_where_it_is_not_to_the_reward(make):
    (group,) = make.groups(rewards=((1, 0, 0),))
    right = replace(group.rollouts[0].verdict, kind=VerdictKind.CORRECT)
    whole, cut, _ = (replace(rollout, verdict=right) for rollout in group.rollouts)
    cut = replace(cut, completion=replace(cut.completion, finish_reason=FinishReason.LENGTH))
    collector = RolloutCollector(
        stream=ProblemStream(PROBLEMS, seed=0),
        encode=None,
        engine=None,
        grader=None,
        reward=_correct,
        group_filter=GroupFilter(kind="drop", judge="correctness"),
        sampling=SamplingParams(max_new_tokens=20),
        num_prompts=1,
        group_size=2,
        seed=0,
    )
    both = replace(group, rollouts=(whole, cut))
    assert not collector.keeps(both)
    assert replace(collector, require_stop=True).keeps(both)
    assert not replace(collector, require_stop=True).keeps(replace(group, rollouts=(cut, cut)))


def _abstaining(*places):
    """Correctness, and no reward for the completions at these places of a group."""

    def reward(group):
        return [None if place in places else one for place, one in enumerate(_correct(group))]

    return reward


def test_completion_without_a_reward_takes_no_part_in_the_update(scene):
    played = scene(num_steps=1, reward=_abstaining(0, 3), rollouts_at=(1,))
    played.play()
    (groups, traces), metrics = played.diary.groups_at[1], played.diary.metrics[1]
    assert metrics["rollout/abstained_frac"] == pytest.approx(2 / GROUP_SIZE)
    rewards = [rollout.reward for group in groups for rollout in group.rollouts]
    assert len(rewards) == len(traces) == NUM_PROMPTS * (GROUP_SIZE - 2)
    assert metrics["rollout/reward"] == pytest.approx(sum(rewards) / len(rewards))
    remaining = iter(traces)
    for group in groups:
        own = np.array([rollout.reward for rollout in group.rollouts])
        for value in (own - own.mean()) / (own.std(ddof=1) + 1e-6):
            assert next(remaining).advantage[0] == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("kind", ["keep", "skip", "drop"])
def test_group_that_abstentions_leave_one_reward_is_dropped_and_counted(scene, kind):
    played = scene(
        num_steps=1, reward=_abstaining(*range(1, GROUP_SIZE)), group_filter=GroupFilter(kind=kind)
    )
    start = played.weights()
    played.play()
    metrics = played.diary.metrics[1]
    assert metrics["rollout/no_signal_frac"] == 1.0
    assert metrics["rollout/abstained_frac"] == pytest.approx(1 - 1 / GROUP_SIZE)
    assert all(value.equal(start[name]) for name, value in played.weights().items())


@pytest.mark.parametrize(
    "algorithm", ["gvpo", "gvpo_no_covariance", "rpg_ufkl", "rpg_reinforce_rkl", "lite_ppo"]
)
def test_update_with_abstentions_is_that_of_groups_without_them(make, scene, algorithm):
    whole = scene(num_steps=1, reward=_penalized, rollouts_at=(1,), algorithm=algorithm)
    abstaining = scene(num_steps=1, reward=_abstaining(0, 3), algorithm=algorithm)
    start = whole.weights()
    whole.play()
    abstaining.play()
    left = [1, 2, 4, 5]
    groups = []
    for group in whole.diary.groups_at[1][0]:
        kept = [group.rollouts[place] for place in left]
        judged = [replace(one, reward=float(one.verdict.is_correct)) for one in kept]
        groups.append(replace(group, rollouts=tuple(judged)))
    model = make.tiny_policy().model
    make.step(make.updater(make.objective(f"algorithm={algorithm}"), model), make.rows(groups))
    expected = model.state_dict()
    for name, value in abstaining.weights().items():
        torch.testing.assert_close(value, expected[name], rtol=0.0, atol=1e-6)
    assert any((value - start[name]).abs().max() > 1e-4 for name, value in expected.items())
    assert any((value - expected[name]).abs().max() > 1e-5 for name, value in whole.weights().items())


def test_reward_that_always_abstains_has_no_mean(scene):
    played = scene(num_steps=1, reward=_abstaining(*range(GROUP_SIZE)))
    played.play()
    assert "rollout/reward" not in played.diary.metrics[1]
    assert played.diary.metrics[1]["rollout/abstained_frac"] == 1.0


def test_abstentions_count_for_no_filter(make):
    (group,) = make.groups(rewards=((1, 1, 0),))
    right, other, abstaining = group.rollouts
    group = replace(group, rollouts=(right, other, replace(abstaining, reward=None)))
    assert groups_of_bytes(bytes_of_groups([group]))[0].rollouts[2].reward is None
    collector = RolloutCollector(
        stream=ProblemStream(PROBLEMS, seed=0),
        encode=None,
        engine=None,
        grader=None,
        reward=_correct,
        group_filter=GroupFilter(kind="drop"),
        sampling=SamplingParams(max_new_tokens=20),
        num_prompts=1,
        group_size=3,
        seed=0,
    )
    assert not collector.keeps(group), "the other two are equal"
    assert collector.keeps(replace(group, rollouts=(right, replace(other, reward=0.0), group.rollouts[2])))


@pytest.mark.parametrize("given", ["good", None, [1.0], [float("nan")] * GROUP_SIZE, ["a"] * GROUP_SIZE])
def test_reward_that_is_no_number_for_each_names_its_place(scene, given):
    def wrong_reward(group):
        return given

    with pytest.raises(
        PluginError, match=r"test_loop.py, line \d+, in .*wrong_reward: .* for each of the 6 completions"
    ):
        scene(num_steps=1, reward=wrong_reward).play()


def test_rollouts_are_traced_only_where_the_tracker_wants_them(scene):
    played = scene(num_steps=3, rollouts_at=(2,))
    played.play()
    assert list(played.diary.groups_at) == [2]
    groups, traces = played.diary.groups_at[2]
    assert len(traces) == NUM_PROMPTS * GROUP_SIZE
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    for rollout, trace in zip(rollouts, traces, strict=True):
        lists = (trace.advantage, trace.ratio, trace.entropy, trace.clipped)
        assert {len(values) for values in lists} == {rollout.completion.num_tokens}
        assert (trace.advantage[0] > 0) == (rollout.reward == 1.0)
        assert rollout.completion.weight_version == 1


def test_no_problem_or_sample_repeats_within_an_epoch(scene):
    played = scene(num_steps=4, rollouts_at=(1, 2, 3, 4))
    played.play()
    seen = [group.problem.problem_id for groups, _ in played.diary.groups_at.values() for group in groups]
    assert sorted(seen) == sorted(problem.problem_id for problem in PROBLEMS)


def test_a_reference_moves_when_its_rule_says_so(scene):
    played = scene(num_steps=3, reference_rule="{kind:every_num_steps,num_steps:2}", checkpoint_every=1)
    start = played.weights()
    played.play()
    reference = played.run.reference.model.state_dict()
    assert any(not value.equal(start[name]) for name, value in reference.items())
    assert any(not value.equal(played.weights()[name]) for name, value in reference.items())
    checkpoint = latest_checkpoint(played.run.checkpoints.folder)
    assert checkpoint.state.step == 3
    assert all(value.equal(reference[name]) for name, value in checkpoint.reference.items())


class Follower(MovingReference):
    """Notes the policies that it follows, how far, and the state before the first."""

    def follow(self, weights, share):
        seen = self.__dict__.setdefault("seen", [])
        seen.append((weights["lm_head.weight"].clone(), share))
        super().follow(weights, share)


def test_a_reference_that_averages_is_the_weighted_mean_of_all_policies_so_far(scene):
    played = scene(num_steps=3, reference_rule="{kind:moving_average,decay:0.75}")
    reference = Follower(model=played.run.reference.model, moves=True)
    expected = reference.model.lm_head.weight.detach().clone()
    played.run = replace(played.run, reference=reference)
    played.play()
    assert [share for _, share in reference.seen] == [0.25, 0.25, 0.25]
    for policy, share in reference.seen:
        expected = (1.0 - share) * expected + share * policy
    torch.testing.assert_close(reference.model.lm_head.weight, expected)


def test_a_reference_bounded_by_the_kl_moves_when_the_running_mean_passes_it_and_begins_anew(scene):
    played = scene(num_steps=4, reference_rule="{kind:token_kl,bound:1e-9,smoothing:0.0}")
    reference = Follower(model=played.run.reference.model, moves=True)
    played.run = replace(played.run, reference=reference)
    state = played.play()
    kls = [played.diary.metrics[step]["objective/reference_kl"] for step in (1, 2, 3, 4)]
    # Measured at the step's start: a reference that has just moved is the policy.
    assert kls[0] == kls[2] == 0.0 < min(kls[1], kls[3])
    assert [share for _, share in reference.seen] == [0.0, 1.0, 0.0, 1.0]
    assert state.objective.reference == ReferenceState(share=1.0)


@pytest.mark.parametrize(
    "rule", ["{kind:moving_average,decay:0.9}", "{kind:token_kl,bound:1e-7,smoothing:0.5}"]
)
def test_a_moving_reference_goes_on_from_a_checkpoint_bit_for_bit(make, scene, rule):
    whole = scene(num_steps=4, reference_rule=rule, checkpoint_every=4)
    end = whole.play()
    split = scene(num_steps=2, reference_rule=rule, checkpoint_every=2)
    split.play()
    saved = latest_checkpoint(split.run.checkpoints.folder)
    split.run.reference.load(make.tiny_policy(5).model.state_dict())
    split.run.reference.load(saved.reference)
    split.run = replace(split.run, settings=replace(split.run.settings, num_steps=4))
    assert replace(split.play(saved.state), wall_s=0.0) == replace(end, wall_s=0.0)
    one, other = (s.run.reference.model.state_dict() for s in (whole, split))
    assert all(value.equal(other[name]) for name, value in one.items())


def test_a_frozen_reference_stays_and_is_not_saved(make):
    reference = MovingReference(model=make.tiny_policy(0).model, moves=False)
    before = {name: value.clone() for name, value in reference.model.state_dict().items()}
    reference.follow(make.tiny_policy(1).model.state_dict(), 0.0)
    assert all(value.equal(before[name]) for name, value in reference.model.state_dict().items())
    assert reference.saved_weights() is None


def test_the_ratios_of_every_step_with_an_update_are_recorded(scene):
    played = scene(num_steps=2)
    played.play()
    assert sorted(played.diary.ratios_at) == [1, 2]
    for step, histogram in played.diary.ratios_at.items():
        num_tokens = sum(histogram.positive) + sum(histogram.negative) + sum(histogram.zero)
        assert num_tokens == played.diary.metrics[step]["optimizer/num_trained_tokens"]
        assert played.diary.metrics[step]["objective/ratio_p50"] == 1.0


def test_training_goes_on_from_a_state(scene):
    whole = scene(num_steps=4)
    end = whole.play()
    split = scene(num_steps=2, checkpoint_every=2)
    middle = split.play()
    settings = replace(split.run.settings, num_steps=4)
    split.run = replace(split.run, settings=settings)
    assert replace(split.play(middle), wall_s=0.0) == replace(end, wall_s=0.0)
    assert "evaluate 0 final" not in split.diary.events[split.diary.events.index("metrics 2") :]
    assert all(value.equal(whole.weights()[name]) for name, value in split.weights().items())


def test_time_goes_on_where_it_stood(scene):
    played = scene(num_steps=1)
    state = played.play(TrainingState(objective=ObjectiveState(), wall_s=100.0))
    assert 100.0 < state.wall_s < 160.0


def test_the_time_of_a_checkpoint_is_recorded_with_the_next_step(scene):
    played = scene(num_steps=2, checkpoint_every=1)
    played.play()
    assert played.diary.metrics[1]["time/checkpoint_s"] == 0.0
    assert played.diary.metrics[2]["time/checkpoint_s"] > 0.0
    assert played.diary.metrics[2]["memory/peak_mb"] > 100.0


def test_a_state_at_the_last_step_has_nothing_to_do(scene):
    played = scene(num_steps=2)
    state = TrainingState(step=2, objective=ObjectiveState())
    assert played.play(state) is state
    assert played.diary.events == []


def test_nothing_draws_from_torchs_global_random_state(scene):
    played = scene(num_steps=1)
    before = torch.get_rng_state()
    played.play()
    assert torch.get_rng_state().equal(before)


def test_updates_skipped_in_a_row_are_counted_across_checkpoints(scene):
    played = scene(num_steps=3, checkpoint_every=1)
    played.run.updater.faults = FaultHandling(max_skipped=2)
    next(played.policy.model.parameters()).register_hook(lambda gradient: gradient * torch.nan)
    with pytest.raises(TrainingDivergedError, match=r"step 3 .* 3 updates in a row"):
        played.play()
    checkpoint = latest_checkpoint(played.run.checkpoints.folder)
    assert checkpoint.state.update == UpdateState(num_skipped=2)
    assert checkpoint.state.weight_version == 0
    with pytest.raises(TrainingDivergedError, match=r"step 3 .* 3 updates in a row"):
        played.play(checkpoint.state)


def test_a_run_that_diverges_is_evaluated_by_its_last_finite_weights(scene):
    played = scene(num_steps=5)
    calls = itertools.count(1)
    played.run.updater.faults = FaultHandling(max_skipped=0)
    next(played.policy.model.parameters()).register_hook(
        lambda gradient: gradient * (torch.nan if next(calls) > 1 else 1.0)
    )
    with pytest.raises(TrainingDivergedError, match="the gradient of step 2 is not finite"):
        played.play()
    assert played.diary.events[-2:] == ["weights 2", "evaluate 2 final"]
    assert all(value.isfinite().all() for value in played.weights().values())


def test_the_phases_of_a_step_and_what_is_left_add_up_to_it(scene):
    played = scene(num_steps=2, evaluate_every=1)
    played.play()
    for named in played.diary.metrics.values():
        phases = (
            "rollout",
            "grade_wait",
            "score",
            "update",
            "kl",
            "weights",
            "evaluate",
            "checkpoint",
            "other",
        )
        total = sum(named[f"time/{phase}_s"] for phase in phases)
        assert total == pytest.approx(named["time/step_s"])
        idle = named["time/grade_wait_s"] + named["time/other_s"]
        assert named["time/idle_frac"] == pytest.approx(idle / named["time/step_s"])
        assert "time/mfu_frac" not in named  # a CPU has no peak to compare with
        assert "memory/update_peak_mb" not in named
