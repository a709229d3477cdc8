"""Evaluation of a policy on a benchmark: sampling, grading and estimation.

Training and `atrium evaluate` use the same code. The grader grades answers while the engine continues to
sample. Nothing is written to disk: the caller records the results at the end or after each wave, so that
an interruption loses little. A sample's seed depends only on the evaluation seed, the run's seed, the
benchmark, the problem and the sample's index. Evaluating more often, or on more problems, therefore
changes no other random choice.

The composition of a batch can change the last bits of a log-probability. A fixed rule therefore divides
the problems into waves. A batch never contains samples of two waves, and a wave is recorded only as a
whole. A resumed evaluation thus uses the same batches as an uninterrupted one, and gives the same
results. The engine receives all waves at once, so that all of its processes are busy until the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from atrium.base.errors import EngineError
from atrium.base.records import BenchmarkResult, Completion, EvaluatedSample, Floats, Problem, TokenIds
from atrium.base.seeding import derive_seed
from atrium.data.prompts import PromptEncoder
from atrium.engines.declaration import WaveSize
from atrium.engines.engine import Engine, GenerationRequest, SamplingParams
from atrium.evaluation.collection import Collection, Watch
from atrium.evaluation.majority import majority_at
from atrium.evaluation.results import summarize
from atrium.grading.grader import Grader

_SMALL_WAVES = WaveSize()
_UNWATCHED = Watch()


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A set of problems, with the settings for sampling and scoring answers.

    With `require_stop`, a truncated completion counts as wrong regardless of its answer. `pass_at` lists the
    values of k for Pass@k, each at most `num_samples`; None means `num_samples` and the powers of two below
    it. `breakdown_by` names the metadata keys by which results are broken down.

    This class does not check the values: the configuration ensures that no k is above `num_samples`, and
    `Dataset` ensures that problem ids are unique.
    """

    name: str
    problems: tuple[Problem, ...]
    num_samples: int
    sampling: SamplingParams
    require_stop: bool
    pass_at: tuple[int, ...] | None = None
    breakdown_by: tuple[str, ...] = ("level", "subject")

    @property
    def reported_pass_at(self) -> tuple[int, ...]:
        """The values of k for which Pass@k is reported, ascending and without duplicates."""
        if self.pass_at is not None:
            return tuple(sorted(set(self.pass_at)))
        powers = {2**power for power in range(self.num_samples.bit_length())}
        return tuple(sorted(powers | {self.num_samples}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """The engine that samples answers, the encoder of prompts, the random seeds, and limits on batches.

    Attributes
    ----------
    engine, encode
        The engine that samples, and a function from a problem to its prompt's token ids.
    seed
        The evaluation seed. With equal seeds, equal weights give equal samples.
    run_seed
        The seed of the run that trained the weights, or None for weights that no run has trained. It makes
        the sampling noise of runs with different seeds independent.
    wave_size
        Limits on the size of a wave (problems that are sampled together). None means one problem per wave,
        for an engine that forms batches itself.
    """

    engine: Engine
    encode: PromptEncoder
    seed: int
    run_seed: int | None = None
    wave_size: WaveSize | None = _SMALL_WAVES


def evaluate(
    benchmark: Benchmark, draws: Draws, grader: Grader, watch: Watch = _UNWATCHED, *, step: int = 0
) -> BenchmarkResult:
    """Sample completions of every problem of a benchmark, grade them, and compute the estimates.

    The samples in the result are sorted by problem and sample index. `watch` contains callbacks, and the
    samples of finished problems; these problems are not sampled again. `step` is the training step of the
    policy. Raises `EngineError` if the engine does not return each sample exactly once.
    """
    work = Collection(
        problems=benchmark.problems,
        num_samples=benchmark.num_samples,
        require_stop=benchmark.require_stop,
        grader=grader,
        watch=watch,
    )
    prompts = {
        index: draws.encode(problem)
        for index, problem in enumerate(benchmark.problems)
        if problem.problem_id not in watch.finished
    }
    waves = [[index for index in wave if index in prompts] for wave in _waves(benchmark, draws)]
    wave_of = {index: wave for wave in waves for index in wave}
    whole: set[int] = set()
    for index, sample_index, completion in _sampled(benchmark, waves, prompts, draws):
        if work.add(index, sample_index, completion):
            whole.add(index)
            if whole.issuperset(wave_of[index]):
                work.hand_over(wave_of[index])
    samples_PK = work.wait()
    samples = tuple(sample for samples_K in samples_PK for sample in samples_K)
    results = summarize(
        samples,
        num_samples=benchmark.num_samples,
        pass_at=benchmark.reported_pass_at,
        majority_P=_majority(benchmark, samples_PK, grader),
        breakdown_by=benchmark.breakdown_by,
    )
    results["draws"] = {"evaluation_seed": draws.seed, "run_seed": draws.run_seed}
    return BenchmarkResult(step=step, benchmark=benchmark.name, samples=samples, results=results)


def _majority(
    benchmark: Benchmark, samples_PK: Sequence[Sequence[EvaluatedSample]], grader: Grader
) -> dict[int, Floats]:
    """Return a mapping from k to an array [P] with each problem's Maj@k.

    The keys are K, the number of samples per problem, and, if K is at most 1,000, every k in
    `benchmark.reported_pass_at`.
    """
    ks = sorted({*benchmark.reported_pass_at, benchmark.num_samples})
    return majority_at(samples_PK, ks, require_stop=benchmark.require_stop, compare=grader.compare)


def sample_only(benchmark: Benchmark, draws: Draws) -> None:
    """Send the requests that `evaluate` sends if no samples are finished, but do not grade the answers.

    All processes that share an engine must send the same requests: one of them calls `evaluate` and grades
    the answers, and the others call this function.
    """
    prompts = {index: draws.encode(problem) for index, problem in enumerate(benchmark.problems)}
    for _ in _sampled(benchmark, list(_waves(benchmark, draws)), prompts, draws):
        pass


def _waves(benchmark: Benchmark, draws: Draws) -> Iterator[list[int]]:
    """Divide all problems, including finished ones, into waves; yield each wave's problem indices.

    The longest prompts come first. If `draws.wave_size` is None, each problem is a wave, in the benchmark's
    order.
    """
    size = draws.wave_size
    places = list(range(len(benchmark.problems)))
    if size is None:
        yield from ([place] for place in places)
        return
    lengths = [len(draws.encode(problem)) for problem in benchmark.problems]
    places.sort(key=lambda index: -lengths[index])
    while places:
        longest = lengths[places[0]] + benchmark.sampling.max_new_tokens
        num_rows = min(size.num_samples, size.num_tokens // longest)
        num_problems = max(1, num_rows // benchmark.num_samples)
        yield places[:num_problems]
        places = places[num_problems:]


def _sampled(
    benchmark: Benchmark,
    waves: Sequence[Sequence[int]],
    prompts: Mapping[int, TokenIds],
    draws: Draws,
) -> Iterator[tuple[int, int, Completion]]:
    """Sample the problems of all waves; yield problem index, sample index and completion of each sample.

    Each request is for one sample, so that a sample is yielded without waiting for other samples of its
    problem. Raises `EngineError` unless the engine returns each sample exactly once.
    """
    key = (benchmark.name,) if draws.run_seed is None else (draws.run_seed, benchmark.name)
    places = [
        (index, sample_index, number)
        for number, wave in enumerate(waves)
        for index in wave
        for sample_index in range(benchmark.num_samples)
    ]
    requests = [
        GenerationRequest(
            prompt_token_ids=prompts[index],
            sample_seeds=(
                derive_seed(
                    draws.seed, "evaluation", *key, benchmark.problems[index].problem_id, sample_index
                ),
            ),
            wave=number,
        )
        for index, sample_index, number in places
    ]
    missing = set(range(len(requests)))
    for generation in draws.engine.generate(requests, benchmark.sampling) if requests else ():
        request, num_completions = generation.request_index, len(generation.completions)
        if request not in missing or num_completions != 1:
            raise EngineError(
                f"the engine returned {num_completions} completions for request {request} of benchmark "
                f"{benchmark.name!r}, expected 1"
            )
        missing.remove(request)
        yield (*places[request][:2], generation.completions[0])
    if missing:
        raise EngineError(
            f"the engine returned nothing for {len(missing)} of {len(requests)} samples of benchmark "
            f"{benchmark.name!r}; run the evaluation again"
        )
