"""Evaluation of a policy on benchmarks outside of training, with its own run directory (`atrium evaluate`).

The evaluator, graders and engines are those of training. Each finished problem is recorded, so an interrupted
evaluation can be resumed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from atrium.assemble.benchmarks import LoadedBenchmark, load_benchmarks
from atrium.assemble.dry_run import try_grader
from atrium.assemble.fitting import changed
from atrium.assemble.graders import BenchmarkGraders, build_grader, grader_version
from atrium.assemble.pictures import draw_evaluation
from atrium.assemble.policies import build_policy, copy_out_of_mmap
from atrium.assemble.prepared import encoder_before_loading, loading_for
from atrium.assemble.prompts import checked_encoder, prompt_hashes
from atrium.assemble.run import Run, RunRequest, opened, start_of
from atrium.assemble.servers import build_placed_engine
from atrium.assemble.task import evaluated_benchmark, require_same_data
from atrium.base.errors import ConfigError, Interrupted
from atrium.base.processes import END_SIGNALS, stop_requests
from atrium.base.records import BenchmarkResult, EvaluatedSample
from atrium.config.dates import dated
from atrium.config.evaluation import EvaluationSettings
from atrium.config.schema import RunConfig
from atrium.config.tasks import ArithmeticBenchmarkConfig
from atrium.data.prompts import PromptEncoder
from atrium.document.formatting import number, share
from atrium.engines.engine import Engine
from atrium.evaluation.collection import Watch
from atrium.evaluation.evaluator import Benchmark, Draws, evaluate
from atrium.evaluation.results import summarize_all
from atrium.grading.grader import Grader
from atrium.models.context import Context
from atrium.models.digests import source_digests, weights_digest
from atrium.models.policy import Policy
from atrium.models.settings import HubModelSettings, TinyModelSettings
from atrium.runs.evaluation_parts import EvaluationParts
from atrium.runs.find import name_to_type
from atrium.runs.listener import Listener
from atrium.runs.provenance import DataProvenance

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+=-]+")


def run_evaluation(
    settings: EvaluationSettings, overrides: Sequence[str] = (), *, resume: Path | None = None
) -> Path:
    """Evaluate as configured, or resume the evaluation in `resume`; return its run directory.

    `status.json` records the outcome: finished, interrupted, or failed with an error. Raises `Interrupted`
    after Ctrl-C, SIGTERM or SIGHUP.
    """
    settings = replace(settings, config=dated(settings.config, start_of(resume)))
    config = settings.config
    torch.set_num_threads(config.compute.num_threads)
    request = RunRequest(
        config=config,
        label=evaluation_label(settings),
        seed=config.evaluation.seed,
        record=settings.as_record(),
        resume=resume,
        mirrors=(),
        draw=draw_evaluation,
        conclude=lambda folder: None,  # the command prints the scores
    )
    lines: list[str] = []
    with loading_for(config, resume, lines.append) as loading:
        loaded = load_benchmarks(config.benchmark, config.dataset, verifier=config.grader, loading=loading)
    if resume is None:
        if isinstance(config.benchmark, ArithmeticBenchmarkConfig):
            try_grader(config, loaded[0].problems[0])
        _check_prompts(config, loaded)
    with opened(request, overrides) as run, _stopped_at_once(run):
        for line in lines:
            run.log(line)
        evaluations = _evaluate_all(settings, run, loaded)
        run.summary["num_tokens"] = sum(int(one.results["num_tokens"]) for one in evaluations)
        if len(evaluations) > 1:
            run.summary["macro_average"] = summarize_all([one.samples for one in evaluations])
    return run.folder.path


def evaluation_label(settings: EvaluationSettings) -> str:
    """Return the label (at most 60 characters) after which an evaluation's run directory is named.

    For a checkpoint, the label is the part of the run's name after the last hyphen, followed by `-step` and
    the step. Otherwise, it is the model's name.
    """
    model, checkpoint = settings.config.model, settings.checkpoint
    if checkpoint is not None:
        name = f"{checkpoint.run.rpartition('-')[2]}-step{checkpoint.step}"
    else:
        name = "tiny" if isinstance(model, TinyModelSettings) else Path(model.source).name
    return (_NOT_IN_NAMES.sub("_", name).strip("._+=-") or "model")[:60]


def _check_prompts(config: RunConfig, loaded: Sequence[LoadedBenchmark]) -> None:
    """Check, before the weights are loaded, that the model can process the prompts of all benchmarks.

    Raises `ConfigError` if the chat template is unsuitable, or if a prompt leaves too little space for an
    answer in the model's context. If the length of the context is not known yet, the lengths of the prompts
    are not checked.
    """
    encode, context = encoder_before_loading(config, loaded[0].problems[0])
    for one in loaded if context.length else ():
        fitted_benchmark(evaluated_benchmark(one, config), context, encode, lambda line: None)


@contextmanager
def _stopped_at_once(run: Run) -> Iterator[None]:
    """Raise `Interrupted` at once on Ctrl-C, SIGTERM or SIGHUP; finished problems are already recorded."""

    def stop(number: int) -> None:
        raise KeyboardInterrupt

    with stop_requests(stop, END_SIGNALS):
        try:
            yield
        except KeyboardInterrupt as interrupt:
            resume = f"atrium evaluate --resume {name_to_type(run.folder)}"
            said = f"stopped; finished problems are recorded; resume with `{resume}`"
            raise Interrupted(said) from interrupt


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The objects that an evaluation uses for all its benchmarks."""

    settings: EvaluationSettings
    run: Run
    policy: Policy
    draws: Draws


def _evaluate_all(
    settings: EvaluationSettings, run: Run, loaded: Sequence[LoadedBenchmark]
) -> list[BenchmarkResult]:
    """Load the policy and the engine, then evaluate and record the benchmarks one after the other."""
    config = settings.config
    own = build_grader(config.grader, config.model)
    run.closing.callback(own.close)
    graders = BenchmarkGraders(config.grader, config.model, own)
    run.closing.callback(graders.close)
    policy = load_evaluated_policy(config, run.folder.cache_dir, run.listener)
    is_resumed = run.folder.provenance_file.is_file()
    encode = checked_encoder(config, policy, loaded[0].problems[0], run.log, is_resumed=is_resumed)
    _record_provenance(run, loaded, policy, encode)
    engine = _engine(run, policy)
    run.closing.callback(engine.close)
    run.record_engine(engine.facts)
    if config.rollout.is_apart:
        policy.model.to("meta")  # shapes are still needed, weights are not
    draws = Draws(
        engine=engine,
        encode=encode,
        seed=config.evaluation.seed,
        run_seed=settings.run_seed,
        wave_size=config.rollout.wave_size(policy.num_parameters),
    )
    parts = _Parts(settings=settings, run=run, policy=policy, draws=draws)
    count = _Count(run.listener, sum(len(one.problems) for one in loaded))
    return [_evaluate_one(parts, one, graders.of(one.verifier), count) for one in loaded]


def _engine(run: Run, policy: Policy) -> Engine:
    """Build the engine; servers use the first GPUs unless `rollout.devices` names others."""
    config, rollout = run.config, run.config.rollout
    if rollout.placement == "server":
        run.listener.phase("starting the servers")
        if rollout.devices is None and not rollout.servers:
            num_gpus = rollout.num_servers * rollout.processes_per_engine
            run = replace(run, config=changed(config, rollout={"devices": tuple(range(num_gpus))}))
    return build_placed_engine(run, policy)


def _evaluate_one(parts: _Parts, loaded: LoadedBenchmark, grader: Grader, count: _Count) -> BenchmarkResult:
    """Evaluate and record one benchmark; problems finished before an interruption are not sampled again."""
    settings, run = parts.settings, parts.run
    benchmark = fitted_benchmark(
        evaluated_benchmark(loaded, settings.config), parts.policy.context, parts.draws.encode, run.log
    )
    num_problems, num_samples = len(benchmark.problems), benchmark.num_samples
    whole = run.folder.evaluation_path(benchmark.name, settings.step)
    stored = EvaluationParts(whole, step=settings.step)
    finished = stored.read(benchmark.problems, num_samples=num_samples)
    if finished:
        run.log(f"{benchmark.name}: {len(finished)} of {num_problems} problems are already finished")
    count.add(len(finished))
    run.listener.phase(benchmark.name, num_problems * num_samples)
    if finished:
        run.listener.advance(len(finished) * num_samples)

    started = time.monotonic()

    def show(num_tokens: int, mean: float | None) -> None:
        """Advance the progress bar by one sample; show the mean score and the sampling speed so far."""
        speed = number(num_tokens / max(time.monotonic() - started, 1e-9))
        run.listener.advance(1, f"{share(mean)} correct so far  {speed} tokens/s")

    def keep(samples: Sequence[EvaluatedSample]) -> None:
        stored.append(samples)
        count.add(len(samples) // num_samples)

    watch = Watch(on_progress=show, on_finished=keep, finished=finished)
    outcome = evaluate(benchmark, parts.draws, grader, watch, step=settings.step)
    described = _described(parts, benchmark, loaded)
    outcome = replace(outcome, results={**outcome.results, "settings": described})
    run.listener.evaluation(outcome)
    run.listener.sync()
    stored.remove()
    return outcome


class _Count:
    """A counter of finished problems over all benchmarks, which reports to `listener`."""

    def __init__(self, listener: Listener, num_problems: int) -> None:
        self._listener = listener
        self._num_problems = num_problems
        self._num_finished = 0

    def add(self, num: int) -> None:
        """Add `num` finished problems, and report the new total to the listener."""
        self._num_finished += num
        self._listener.progress(step=self._num_finished, num_steps=self._num_problems)


def _described(parts: _Parts, benchmark: Benchmark, loaded: LoadedBenchmark) -> dict[str, object]:
    """Return the settings of prompting, sampling and grading that are stored with a benchmark's results."""
    config, sampling = parts.settings.config, benchmark.sampling.model_dump()
    del sampling["ignore_stop"]  # only speed benchmarks set it
    return {
        "prompt_template": config.model.prompt.name,
        "prompt_template_hash": config.model.prompt.content_hash,
        "thinking": config.model.thinking,
        "published": loaded.published,
        "released": config.model.released if isinstance(config.model, HubModelSettings) else None,
        **sampling,
        "seed": config.evaluation.seed,
        "require_stop": benchmark.require_stop,
        "engine": config.rollout.engine,
        "grader": grader_version(loaded.verifier or config.grader),
        # The commit that a branch of the Hub pointed to; transformers keeps it in a private attribute.
        "model_commit": getattr(parts.policy.model.config, "_commit_hash", None),
    }


def _record_provenance(
    run: Run, loaded: Sequence[LoadedBenchmark], policy: Policy, encode: PromptEncoder
) -> None:
    """Record the model, data and prompts; raise `DataError` if they changed since the evaluation began."""
    config = run.config
    is_loaded = isinstance(config.model, HubModelSettings) and config.model.weights == "pretrained"
    data = DataProvenance(
        benchmark_content_hashes={one.name: one.dataset.content_hash for one in loaded},
        prompt_template_hash=config.model.prompt.content_hash,
        grader_version=grader_version(config.grader),  # of each benchmark: `settings.grader` of its result
        prompt_hashes=prompt_hashes({one.name: one.problems for one in loaded}, encode),
        model_source=source_digests(policy, weights_digest(policy.weights())) if is_loaded else None,
    )
    recorded = run.folder.provenance_file
    for line in require_same_data(recorded, data) if recorded.is_file() else ():
        run.log(line)
    run.record_provenance(data, benchmarks={one.name: one.origin.as_record() for one in loaded})


def load_evaluated_policy(config: RunConfig, cache_dir: Path, listener: Listener) -> Policy:
    """Load the policy onto the device, or into main memory if the engine has its own copy of the weights."""
    device = "cpu" if config.rollout.is_apart else config.compute.device
    policy = build_policy(config, cache_dir, listener, trains=False, device=device)
    copy_out_of_mmap(policy.model)
    return policy


def fitted_benchmark(
    benchmark: Benchmark, context: Context, encode: PromptEncoder, log: Callable[[str], None]
) -> Benchmark:
    """Return the benchmark, with `max_new_tokens` reduced if the model's context requires it.

    The reduced value is logged. Raises `ConfigError` if a prompt leaves no space for an answer. If the rotary
    embedding limits the context (see `context.reason`), raises `ConfigError` instead of reducing the value.
    """
    wanted, length = benchmark.sampling.max_new_tokens, context.length
    last = max(benchmark.problems, key=lambda problem: len(encode(problem)))
    room = length - len(encode(last))
    prompt = (
        f"benchmark {benchmark.name!r}: the prompt of problem {last.problem_id!r} has {length - room} tokens"
    )
    if room < 1:
        raise ConfigError(
            f"{prompt}, but the model's context has only {length} tokens; remove the problem, or choose "
            "another model or benchmark"
        )
    if wanted > room and context.reason:
        raise ConfigError(
            f"{prompt}, so evaluation.max_new_tokens must be at most {room} to fit the model's context "
            f"of {length} tokens{context.reason}, got {wanted}; lower it"
        )
    if wanted > room:
        log(
            f"{benchmark.name}: answers are limited to {room} tokens, not "
            f"evaluation.max_new_tokens={wanted}: the model's context of {length} leaves no more after the "
            "longest prompt"
        )
        return replace(benchmark, sampling=benchmark.sampling.model_copy(update={"max_new_tokens": room}))
    return benchmark
