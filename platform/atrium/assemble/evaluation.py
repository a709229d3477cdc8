"""`run_evaluation`: a policy on benchmarks, into a folder of its own that no interruption can cost.

The same evaluator, graders and engines as inside training, without the training. Problems are recorded as
they are finished, so a folder whose process ended, in whatever way, goes on where it stands.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from atrium.assemble.benchmarks import LoadedBenchmark, load_benchmarks
from atrium.assemble.evaluated_policy import fitted_benchmark, load_evaluated_policy, wave_size
from atrium.assemble.graders import BenchmarkGraders, build_grader, grader_version
from atrium.assemble.policies import build_engine
from atrium.assemble.task import evaluated_benchmark
from atrium.compare.figures.pass_at_k import draw_pass_at_k
from atrium.config.evaluation import EvaluationSettings
from atrium.config.models import TinyModelConfig
from atrium.config.schema import RunConfig
from atrium.data.prompts import PromptTemplate, find_prompt_template, prompt_encoder
from atrium.errors import Interrupted
from atrium.evaluation.collection import Progress, Watch
from atrium.evaluation.evaluator import Benchmark, Evaluation, evaluate
from atrium.evaluation.results import summarize_all
from atrium.grading.grader import Grader
from atrium.models.policy import Policy
from atrium.processes import stop_requests
from atrium.records import EvaluatedSample, Problem, TokenIds
from atrium.rollout.engine import Engine
from atrium.tracking.atomic import explained, write_json
from atrium.tracking.end_summary import name_to_type
from atrium.tracking.evaluation_parts import EvaluationParts
from atrium.tracking.formatting import number, share
from atrium.tracking.provenance import DataProvenance, collect_provenance
from atrium.tracking.run_folder import RunFolder
from atrium.tracking.run_folder_tracker import RunFolderSettings, RunFolderTracker
from atrium.tracking.status import RunState
from atrium.tracking.summary import summarize
from atrium.tracking.terminal import ProgressDisplay, progress_display
from atrium.watchdog import on_hang

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._+=-]+")


def run_evaluation(
    settings: EvaluationSettings, overrides: Sequence[str] = (), *, resume: Path | None = None
) -> Path:
    """Evaluate as configured, or go on where the evaluation in `resume` stands; its folder.

    The folder records how it ended: whole, by `Interrupted` (Ctrl-C or SIGTERM), or by an error.
    """
    config = settings.config
    torch.set_num_threads(config.compute.num_threads)
    folder = _open_folder(settings, overrides, resume)
    with ExitStack() as stack:
        stack.enter_context(folder.lock())
        folder.write_config(settings.as_record())
        display = progress_display(config.tracking.progress, folder.append_log)
        stack.callback(display.close)
        tracker = RunFolderTracker(folder, RunFolderSettings(), log=display.message)
        with _end_recorded(tracker):
            evaluations = _evaluate_all(settings, folder, tracker, display, stack)
        _write_summary(folder, evaluations)
        if config.tracking.figures:
            draw_pass_at_k(folder)
    return folder.path


def evaluation_label(settings: EvaluationSettings) -> str:
    """What an evaluation's folder is called after: the model, or the run and its step."""
    model, checkpoint = settings.config.model, settings.checkpoint
    if checkpoint is not None:
        name = f"{checkpoint.run.rpartition('-')[2]}-step{checkpoint.step}"
    else:
        name = "tiny" if isinstance(model, TinyModelConfig) else Path(model.source).name
    return (_NOT_IN_NAMES.sub("_", name).strip("._+=-") or "model")[:60]


def _open_folder(settings: EvaluationSettings, overrides: Sequence[str], resume: Path | None) -> RunFolder:
    config = settings.config
    if resume is not None:
        folder = RunFolder.open(resume)
        folder.require_known_format()
        return folder
    folder = RunFolder.create(
        config.runs_dir, config.experiment_name, evaluation_label(settings), config.evaluation.seed
    )
    folder.write_overrides(overrides)
    return folder


@contextmanager
def _end_recorded(tracker: RunFolderTracker) -> Iterator[None]:
    """Write into the folder how the evaluation ended; SIGTERM ends it as Ctrl-C does, at once."""

    def stop(number: int) -> None:
        raise KeyboardInterrupt

    with stop_requests(stop, [signal.SIGTERM]):
        try:
            with on_hang(partial(tracker.end, RunState.FAILED)):
                yield
        except KeyboardInterrupt as interrupt:
            resume = f"atrium evaluate --resume {name_to_type(tracker.folder)}"
            tracker.end(RunState.INTERRUPTED, f"stopped; `{resume}` goes on")
            said = f"stopped; every finished problem is recorded, `{resume}` goes on"
            raise Interrupted(said) from interrupt
        except BaseException as failure:
            tracker.end(RunState.FAILED, str(failure) or type(failure).__name__)
            raise
    tracker.end(RunState.FINISHED)


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What all benchmarks of an evaluation share."""

    settings: EvaluationSettings
    folder: RunFolder
    tracker: RunFolderTracker
    display: ProgressDisplay
    policy: Policy
    engine: Engine
    template: PromptTemplate
    encode: Callable[[Problem], TokenIds]


def _evaluate_all(
    settings: EvaluationSettings,
    folder: RunFolder,
    tracker: RunFolderTracker,
    display: ProgressDisplay,
    stack: ExitStack,
) -> list[Evaluation]:
    """Evaluate every benchmark; each is recorded as it is done."""
    config = settings.config
    loaded = load_benchmarks(
        config.benchmark,
        config.dataset,
        grader=config.grader,
        cache_dir=folder.cache_dir,
        log=display.message,
    )
    template = find_prompt_template(config.model.prompt)
    _record_provenance(config, folder, loaded, template)
    own = build_grader(config.grader, config.model)
    stack.callback(own.close)
    graders = BenchmarkGraders(config.grader, config.model, own)
    stack.callback(graders.close)
    policy = load_evaluated_policy(config, folder.cache_dir, display)
    engine = build_engine(config, policy)
    stack.callback(engine.close)
    parts = _Parts(
        settings=settings,
        folder=folder,
        tracker=tracker,
        display=display,
        policy=policy,
        engine=engine,
        template=template,
        encode=prompt_encoder(policy.tokenizer, template),
    )
    count = _Count(tracker, sum(len(one.problems) for one in loaded))
    return [_evaluate_one(parts, one, graders.of(one), count) for one in loaded]


def _evaluate_one(parts: _Parts, loaded: LoadedBenchmark, grader: Grader, count: _Count) -> Evaluation:
    """Evaluate and record one benchmark; what an earlier process finished is read, not sampled."""
    settings, display = parts.settings, parts.display
    benchmark = fitted_benchmark(
        evaluated_benchmark(loaded, settings.config.evaluation), parts.policy, parts.encode, display
    )
    num_problems, num_samples = len(benchmark.problems), benchmark.num_samples
    whole = parts.folder.evaluation_path(benchmark.name, settings.step)
    stored = EvaluationParts(whole, step=settings.step)
    finished = stored.read(benchmark.problems, num_samples=num_samples)
    if finished:
        display.message(f"{benchmark.name}: {len(finished)} of {num_problems} problems are finished already")
    count.add(len(finished))
    display.phase(benchmark.name, num_problems * num_samples)
    if finished:
        display.advance(len(finished) * num_samples)

    def keep(samples: Sequence[EvaluatedSample]) -> None:
        stored.append(samples)
        count.add(len(samples) // num_samples)

    outcome = evaluate(
        benchmark,
        engine=parts.engine,
        grader=grader,
        encode=parts.encode,
        seed=settings.config.evaluation.seed,
        run_seed=settings.run_seed,
        wave_size=wave_size(settings.config, parts.policy),
        watch=Watch(on_progress=_ProgressLine(display), on_finished=keep, finished=finished),
    )
    results = {**outcome.results, "settings": _described(parts, benchmark)}
    step, name = settings.step, benchmark.name
    parts.tracker.log_evaluation(step=step, benchmark=name, samples=outcome.samples, results=results)
    parts.tracker.sync()
    stored.remove()
    display.evaluation(step=step, benchmark=name, results=results)
    return replace(outcome, results=results)


class _Count:
    """Tells `status.json` how many problems are finished."""

    def __init__(self, tracker: RunFolderTracker, num_problems: int) -> None:
        self._tracker = tracker
        self._num_problems = num_problems
        self._num_finished = 0

    def add(self, num: int) -> None:
        """So many more."""
        self._num_finished += num
        self._tracker.begin(step=self._num_finished, num_steps=self._num_problems)


class _ProgressLine:
    """Shows each sample with the running mean and the speed of this process."""

    def __init__(self, display: ProgressDisplay) -> None:
        self._display = display
        self._started = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """One sample more."""
        passed_s = max(time.monotonic() - self._started, 1e-9)
        speed = number(progress.num_tokens / passed_s)
        self._display.advance(1, f"{share(progress.mean)} correct so far  {speed} tokens/s")


def _described(parts: _Parts, benchmark: Benchmark) -> dict[str, object]:
    """How the answers came about: without it a score says little."""
    config, sampling = parts.settings.config, benchmark.sampling
    return {
        "prompt_template": parts.template.name,
        "prompt_template_hash": parts.template.content_hash,
        "thinking": config.model.thinking,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_new_tokens": sampling.max_new_tokens,
        "seed": config.evaluation.seed,
        "require_stop": benchmark.require_stop,
        "engine": config.rollout.engine,
        "grader": grader_version(config.grader),
        # The commit that a branch of the Hub stood at; transformers keeps it in a private attribute.
        "model_commit": getattr(parts.policy.model.config, "_commit_hash", None),
    }


def _record_provenance(
    config: RunConfig, folder: RunFolder, loaded: Sequence[LoadedBenchmark], template: PromptTemplate
) -> None:
    data = DataProvenance(
        benchmark_content_hashes={one.name: one.dataset.content_hash for one in loaded},
        prompt_template_hash=template.content_hash,
        grader_version=grader_version(config.grader),
    )
    extra = {"benchmarks": {one.name: one.origin.as_record() for one in loaded}}
    folder.write_provenance(collect_provenance(data, num_threads=config.compute.num_threads, extra=extra))


def _write_summary(folder: RunFolder, evaluations: Sequence[Evaluation]) -> None:
    """The summary of any run, with what only an evaluation knows: its tokens, and the macro average."""
    summary = summarize(folder)
    summary["num_tokens"] = sum(int(one.results["num_tokens"]) for one in evaluations)
    if len(evaluations) > 1:
        summary["macro_average"] = summarize_all([one.samples for one in evaluations])
    with explained("write", folder.summary_file):
        write_json(folder.summary_file, summary)
