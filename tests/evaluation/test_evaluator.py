"""The evaluator against a small engine and grader that implement the protocols and finish out of order."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from tests.scripted_engine import ScriptedCompletion, ScriptedEngine

from atrium.base.errors import EngineError
from atrium.base.records import Completion, FinishReason, Problem, Verdict, VerdictKind
from atrium.base.seeding import derive_seed
from atrium.engines.declaration import WaveSize
from atrium.engines.engine import Generation, SamplingParams
from atrium.evaluation import evaluator
from atrium.evaluation.collection import Watch
from atrium.evaluation.evaluator import Benchmark, Draws


def evaluate(benchmark, *, grader, watch=None, **draws):
    return evaluator.evaluate(benchmark, Draws(**draws), grader, watch or Watch())


def problem(index, *, level="1"):
    return Problem(problem_id=f"p{index}", question=f"q{index}", answer=str(index), metadata={"level": level})


def benchmark(num_problems=3, **changes):
    settings = {
        "name": "sums",
        "problems": tuple(problem(index, level=str(2 + index % 2)) for index in range(num_problems)),
        "num_samples": 4,
        "sampling": SamplingParams(max_new_tokens=8),
        "require_stop": True,
    }
    return Benchmark(**settings | changes)


def completion(text, *, finish_reason=FinishReason.STOP, num_tokens=3):
    return Completion(
        token_ids=np.arange(num_tokens, dtype=np.int32),
        logprobs=np.full(num_tokens, -0.5, dtype=np.float32),
        text=text,
        finish_reason=finish_reason,
        weight_version=0,
    )


class TableEngine:
    """Answers each prompt by `answer(prompt number, sample index)`, last request first."""

    def __init__(self, answer):
        self.answer = answer
        self.seeds = {}
        self.calls = []
        self.waves = []

    def generate(self, requests, sampling):
        prompts = [int(request.prompt_token_ids[0]) for request in requests]
        self.calls.append(prompts)
        self.waves.append([request.wave for request in requests])
        places = [prompts[:index].count(prompt) for index, prompt in enumerate(prompts)]
        for index in reversed(range(len(requests))):
            (seed,) = requests[index].sample_seeds
            self.seeds.setdefault(prompts[index], {})[places[index]] = seed
            yield Generation(request_index=index, completions=(self.answer(prompts[index], places[index]),))

    def update_weights(self, weights, version):
        raise AssertionError("an evaluation changes no weights")

    def close(self):
        pass


class EqualityGrader:
    """Grades by equality in a thread, so verdicts arrive later than they are asked for."""

    def __init__(self):
        self._threads = ThreadPoolExecutor(max_workers=2)

    def submit(self, text, gold, metadata) -> Future[Verdict]:
        return self._threads.submit(self._grade, text, gold)

    def compare(self, gold, answer) -> Future[Verdict]:
        return self._threads.submit(self._grade, answer, gold)

    def close(self):
        self._threads.shutdown()

    def _grade(self, text, gold):
        if not text:
            return Verdict(kind=VerdictKind.NO_ANSWER, reason="empty")
        kind = VerdictKind.CORRECT if text == gold else VerdictKind.INCORRECT
        return Verdict(kind=kind, reason="compared", extracted=text)


@pytest.fixture
def grader():
    grader = EqualityGrader()
    yield grader
    grader.close()


def encode(one):
    return np.array([int(one.answer)], dtype=np.int32)


def first_correct(num_correct):
    """The first `num_correct(prompt)` samples of a prompt are right, the rest wrong."""
    return lambda prompt, index: completion(str(prompt) if index < num_correct(prompt) else "x")


def test_samples_come_back_by_problem_and_sample_whatever_the_order_of_completion(grader):
    engine = TableEngine(first_correct(lambda prompt: prompt))
    evaluation = evaluate(benchmark(), engine=engine, grader=grader, encode=encode, seed=0)
    found = [(s.problem.problem_id, s.sample_index, s.is_correct) for s in evaluation.samples]
    assert found == [(f"p{p}", index, index < p) for p in range(3) for index in range(4)]


def test_results_hold_mean_and_pass_with_both_intervals_and_are_json(grader):
    engine = TableEngine(first_correct(lambda prompt: prompt))
    results = evaluate(benchmark(), engine=engine, grader=grader, encode=encode, seed=0).results
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    assert results["k"] == 4
    assert results["num_problems"] == 3
    assert results["num_samples"] == 12
    assert results["mean_at_k"] == pytest.approx(3 / 12)
    assert results["pass_at_k"] == pytest.approx(2 / 3)
    assert results["pass_at"] == {
        "1": pytest.approx(1 / 4),
        "2": pytest.approx((0 + 1 / 2 + 5 / 6) / 3),
        "4": pytest.approx(2 / 3),
    }
    assert results["interval_over_problems"][0] < 1 / 4 < results["interval_over_problems"][1]
    assert results["interval_sampling"][0] < 1 / 4 < results["interval_sampling"][1]
    assert results["pass_at_intervals"]["2"]["sampling"] is not None
    assert results["pass_at_intervals"]["4"]["sampling"] is None, "needs 8 samples"
    assert results["pass_at_intervals"]["4"]["over_problems"] is not None


def test_one_sample_per_problem_has_no_sampling_interval(grader):
    results = evaluate(
        benchmark(num_samples=1),
        engine=TableEngine(first_correct(lambda prompt: 1)),
        grader=grader,
        encode=encode,
        seed=0,
    ).results
    assert results["mean_at_k"] == 1.0
    assert results["interval_sampling"] is None


def test_the_scores_of_all_problems_and_of_each_level_are_those_of_their_counts(grader):
    engine = TableEngine(first_correct(lambda prompt: prompt))
    results = evaluate(benchmark(), engine=engine, grader=grader, encode=encode, seed=0).results
    assert results["mean_at_k"] == pytest.approx(0.25)
    assert results["pass_at"]["4"] == pytest.approx(2 / 3)
    assert results["verdicts"]["correct"] == pytest.approx(0.25)
    assert results["completion_length"] == 3.0
    assert results["breakdown"]["level"]["3"]["mean_at_k"] == pytest.approx(0.25)


@pytest.mark.parametrize(("require_stop", "mean"), [(True, 0.0), (False, 1.0)])
def test_a_truncated_answer_counts_only_where_no_stop_is_required(grader, require_stop, mean):
    engine = TableEngine(lambda p, _: completion(str(p), finish_reason=FinishReason.LENGTH))
    results = evaluate(
        benchmark(require_stop=require_stop), engine=engine, grader=grader, encode=encode, seed=0
    ).results
    assert results["mean_at_k"] == mean
    assert results["truncated_frac"] == 1.0
    assert results["verdicts"]["correct"] == 1.0, "a verdict ignores truncation"


def test_every_kind_of_verdict_has_its_share(grader):
    texts = ("0", "wrong", "", "")
    engine = TableEngine(lambda _, index: completion(texts[index]))
    results = evaluate(benchmark(num_problems=1), engine=engine, grader=grader, encode=encode, seed=0).results
    assert results["verdicts"] == {
        "correct": 0.25,
        "incorrect": 0.25,
        "no_answer": 0.5,
        "timed_out": 0.0,
        "crashed": 0.0,
    }


def test_results_are_broken_down_by_metadata_in_natural_order(grader):
    levels = ("10", "9", "hard", "9")
    problems = tuple(problem(index, level=level) for index, level in enumerate(levels))
    problems += (replace(problem(4), metadata={}),)
    results = evaluate(
        benchmark(problems=problems),
        engine=TableEngine(first_correct(lambda prompt: prompt)),
        grader=grader,
        encode=encode,
        seed=0,
    ).results
    assert list(results["breakdown"]) == ["level"], "no problem has a subject"
    levels_found = results["breakdown"]["level"]
    assert list(levels_found) == ["9", "10", "hard"]
    assert levels_found["9"]["mean_at_k"] == pytest.approx((1 + 3) / 8)
    assert levels_found["9"]["num_problems"] == 2
    assert levels_found["10"]["interval_over_problems"] is None
    assert results["num_problems"] == 5


def test_seeds_do_not_depend_on_what_else_is_evaluated(grader):
    everything = TableEngine(first_correct(lambda prompt: 0))
    last_only = TableEngine(first_correct(lambda prompt: 0))
    evaluate(benchmark(), engine=everything, grader=grader, encode=encode, seed=7)
    evaluate(
        benchmark(problems=(problem(2),), num_samples=6),
        engine=last_only,
        grader=grader,
        encode=encode,
        seed=7,
    )
    assert everything.seeds[2].items() <= last_only.seeds[2].items()
    assert everything.seeds[2][1] == derive_seed(7, "evaluation", "sums", "p2", 1)
    assert len({seed for seeds in everything.seeds.values() for seed in seeds.values()}) == 12


def test_seeds_of_runs_share_no_draws_and_equal_ones_share_all(grader):
    def draws(**seeds):
        engine = TableEngine(first_correct(lambda prompt: 0))
        found = evaluate(benchmark(), engine=engine, grader=grader, encode=encode, **seeds)
        drawn = {seed for by_sample in engine.seeds.values() for seed in by_sample.values()}
        return drawn, found.results["draws"]

    shared, recorded = draws(seed=7)
    assert recorded == {"evaluation_seed": 7, "run_seed": None}
    first, recorded = draws(seed=7, run_seed=0)
    assert recorded == {"evaluation_seed": 7, "run_seed": 0}
    assert first == draws(seed=7, run_seed=0)[0]
    others = [shared, draws(seed=7, run_seed=1)[0], draws(seed=8, run_seed=0)[0]]
    assert all(not first & other for other in others)


def test_progress_is_reported_after_each_sample_with_the_tokens_so_far(grader):
    seen = []
    evaluate(
        benchmark(),
        engine=TableEngine(first_correct(lambda prompt: 4)),
        grader=grader,
        encode=encode,
        seed=0,
        watch=Watch(on_progress=lambda *progress: seen.append(progress)),
    )
    assert [num_tokens for num_tokens, _ in seen] == list(range(3, 37, 3))
    assert {mean for _, mean in seen} <= {None, 1.0}


@pytest.mark.parametrize(
    ("size", "waves"),
    [
        (WaveSize(num_samples=8), [2, 1]),
        (WaveSize(num_samples=3), [1, 1, 1]),
        (WaveSize(num_tokens=(1 + 8) * 8), [2, 1]),  # a prompt of one token and an answer of up to eight
        (WaveSize(num_tokens=1), [1, 1, 1]),
        (WaveSize(), [3]),
        (None, [1, 1, 1]),
    ],
)
def test_the_engine_gets_all_waves_of_whole_problems_at_once(grader, size, waves):
    engine = TableEngine(first_correct(lambda prompt: 1))
    evaluate(benchmark(), engine=engine, grader=grader, encode=encode, seed=0, wave_size=size)
    ((prompts, numbers),) = zip(engine.calls, engine.waves, strict=True)
    problems = [
        {p for p, wave in zip(prompts, numbers, strict=True) if wave == n} for n in sorted({*numbers})
    ]
    assert [len(wave) for wave in problems] == waves
    assert sum(waves) == len(set.union(*problems)) == 3


@pytest.mark.parametrize("size", [WaveSize(num_samples=8), None])
def test_what_was_finished_is_not_sampled_again_and_the_results_are_those_of_one_go(grader, size):
    kept = []
    settings = {"grader": grader, "encode": encode, "seed": 0, "wave_size": size}
    whole = evaluate(
        benchmark(num_problems=5),
        engine=TableEngine(first_correct(lambda prompt: prompt)),
        watch=Watch(on_finished=kept.append),
        **settings,
    )
    assert sorted(len(samples) for samples in kept) == ([4, 8, 8] if size else [4] * 5)
    assert {sample for samples in kept for sample in map(id, samples)} == set(map(id, whole.samples))
    finished = {}
    for sample in kept[1]:
        finished.setdefault(sample.problem.problem_id, []).append(sample)
    engine = TableEngine(first_correct(lambda prompt: prompt))
    seen = []
    rest = evaluate(
        benchmark(num_problems=5),
        engine=engine,
        watch=Watch(on_progress=lambda *progress: seen.append(progress), finished=finished),
        **settings,
    )
    assert not {f"p{prompt}" for call in engine.calls for prompt in call} & finished.keys()
    assert len(seen) == len(whole.samples) - len(kept[1])
    assert rest.samples == whole.samples
    assert rest.results == whole.results


def test_with_everything_finished_the_engine_is_not_asked(grader):
    settings = {"grader": grader, "encode": encode, "seed": 0}
    engine = TableEngine(first_correct(lambda prompt: prompt))
    whole = evaluate(benchmark(), engine=engine, **settings)
    finished = {f"p{p}": [s for s in whole.samples if s.problem.problem_id == f"p{p}"] for p in range(3)}
    again = evaluate(benchmark(), engine=engine, watch=Watch(finished=finished), **settings)
    assert len(engine.calls) == 1
    assert again == whole


def test_grading_runs_while_the_engine_samples(grader):
    """The engine asks for the first verdict before it yields the second generation."""
    submitted = []

    class WatchedGrader(EqualityGrader):
        def submit(self, text, gold, metadata):
            submitted.append(super().submit(text, gold, metadata))
            return submitted[-1]

    class WaitingEngine(TableEngine):
        def generate(self, requests, sampling):
            for number, generation in enumerate(super().generate(requests, sampling)):
                assert len(submitted) == number
                assert all(future.result(timeout=30) for future in submitted)
                yield generation

    watched = WatchedGrader()
    try:
        evaluation = evaluate(
            benchmark(),
            engine=WaitingEngine(first_correct(lambda prompt: 4)),
            grader=watched,
            encode=encode,
            seed=0,
        )
    finally:
        watched.close()
    assert evaluation.results["mean_at_k"] == 1.0


@pytest.mark.parametrize(
    ("num_samples", "pass_at", "reported"),
    [(8, None, (1, 2, 4, 8)), (6, None, (1, 2, 4, 6)), (1, None, (1,)), (8, (8, 2, 2), (2, 8))],
)
def test_pass_at_defaults_to_powers_of_two_and_all_samples(num_samples, pass_at, reported):
    assert benchmark(num_samples=num_samples, pass_at=pass_at).reported_pass_at == reported


def test_an_engine_that_counts_tokens_is_evaluated_with_its_limits_and_log_probabilities(grader):
    """The scripted engine cuts at the length limit: "22" and its stop token do not fit into two tokens."""
    engine = ScriptedEngine(
        lambda prompt, seed: ScriptedCompletion(
            text=str(prompt[0]), logprobs=(-0.25,) * len(f"{prompt[0]}x")
        ),
        encode=lambda text: [int(character) for character in text],
        decode=lambda token_ids: "".join(map(str, token_ids)),
        stop_token_ids=(10,),
        context_length=16,
    )
    evaluation = evaluate(
        benchmark(problems=(problem(2), problem(22)), sampling=SamplingParams(max_new_tokens=2)),
        engine=engine,
        grader=grader,
        encode=encode,
        seed=0,
    )
    assert [s.is_correct for s in evaluation.samples] == [True] * 4 + [False] * 4
    assert {s.verdict for s in evaluation.samples} == {VerdictKind.CORRECT}
    assert {s.logprob_sum for s in evaluation.samples} == {-0.5}
    assert evaluation.results["truncated_frac"] == 0.5
    assert evaluation.results["num_tokens"] == 16


class _Drops(TableEngine):
    def generate(self, requests, sampling):
        return iter(list(super().generate(requests, sampling))[1:])


class _Repeats(TableEngine):
    def generate(self, requests, sampling):
        once = list(super().generate(requests, sampling))
        return iter(once + once[:1])


class _Shortens(TableEngine):
    def generate(self, requests, sampling):
        for generation in super().generate(requests, sampling):
            yield replace(generation, completions=())


@pytest.mark.parametrize("engine_class", [_Drops, _Repeats, _Shortens])
def test_an_engine_that_breaks_its_promise_is_an_error_not_a_score(grader, engine_class):
    engine = engine_class(first_correct(lambda prompt: 4))
    with pytest.raises(EngineError, match="benchmark 'sums'"):
        evaluate(benchmark(), engine=engine, grader=grader, encode=encode, seed=0)
