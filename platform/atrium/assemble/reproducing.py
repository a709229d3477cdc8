"""Reproduction of a paper's claims at one scale: the predicted cost, the sweeps, and the results page.

Finished results are kept, and interrupted sweeps are resumed.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from atrium.assemble.memory import PROMPT_TOKENS, judge
from atrium.assemble.outlook import outlook
from atrium.assemble.shapes import exact_shape
from atrium.assemble.sweep_workers import predictions_commit, run_sweep
from atrium.base.atomic import explained, write_json, write_text
from atrium.base.errors import ConfigError
from atrium.base.recorded import read_object
from atrium.claim.computations import COMPUTATIONS
from atrium.claim.definition import Claim, Computation, Scale
from atrium.claim.document import PAGE_TITLE, page_introduction, paper_document, power_words
from atrium.claim.evidence import Runs, arm_runs, design, evidence_of_runs
from atrium.claim.figures import runs_picture
from atrium.claim.files import COMPUTED, FOLDER, claims_of, papers, results_file, stored_results, sweep_of
from atrium.claim.judgement import judge_error
from atrium.config.machine import visible_gpus
from atrium.document.document import Picture
from atrium.runs.find import list_runs
from atrium.runs.provenance import checkout_dir, code_version, cpu_model
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.plan import Stage, count_runs, trial_config
from atrium.views.figures.sheet import save
from atrium.views.markdown import markdown

PAGE = "reproductions.md"
PLANNED_GPU = "H100"
CPU_MS_PER_COMPLETION = (5.0, 1.5)
"""Rough CPU time per completion of the built-in model on one core, in milliseconds: in training (updates
included), and in evaluations. The values are not measured."""
_CACHE = Path("runs/.cache")


def plan_lines(claims: Sequence[Claim], scale: Scale, num_workers: int) -> list[str]:
    """Return lines with the predicted hours and memory of each sweep, and the power of each claim's test."""
    lines = []
    for sweep in _sweeps(claims, scale):
        lines.append(f"sweep {sweep.name}: {sweep.question}")
        cost = (
            _cpu_cost(sweep, num_workers) if scale == "laptop" else outlook(sweep, PLANNED_GPU, num_workers)
        )
        lines += [f"  {line}" for line in cost]
    with_design = [claim for claim in claims if scale in claim.designs]
    lines += [f"{claim.title}: {power_words(claim, scale)}" for claim in with_design]
    return lines or [f"no claim of the paper has a design for scale={scale}"]


def reproduce(
    claims: Sequence[Claim], scale: Scale, out: Path, *, num_workers: int, trains: bool = True
) -> int:
    """Judge the claims of a paper at one scale, and write the results page to the folder `out`.

    Claims about formulas are computed. Claims about runs are judged after their sweeps have been run, and are
    skipped without `trains`. Returns 0, the exit code of the command. Raises `ConfigError` before anything is
    computed if `trains` is set, the scale is not `laptop`, and no GPU is visible.
    """
    if trains and scale != "laptop" and not visible_gpus():
        raise ConfigError(
            f"scale={scale} requires a GPU, but no GPU is visible; choose another scale, or run the "
            "command on a machine with a GPU"
        )
    computed = [claim for claim in claims if isinstance(claim.outcome, Computation)]
    _store(out, claims[0].paper, COMPUTED, {claim.name: _computed(claim, out) for claim in computed})
    for sweep in _sweeps(claims, scale) if trains else []:
        run_sweep(sweep, None, num_workers, predictions_commit(sweep.name, sweep))
        runs = arm_runs(sweep, list_runs(Path(sweep.runs_dir) / sweep.name))
        judged = [c for c in claims if scale in c.designs and sweep_of(c, scale).name == sweep.name]
        _store(out, claims[0].paper, scale, {c.name: _judged(c, scale, runs, out) for c in judged})
    with explained("write", out / PAGE):
        out.mkdir(parents=True, exist_ok=True)
        write_text(out / PAGE, page(out))
    sys.stdout.write(f"wrote {out / PAGE}\n")
    return 0


def page(out: Path) -> str:
    """Return the results page of all papers as Markdown, made from the results in the folder `out`."""
    stored = {paper: stored_results(paper, out) for paper in papers()}
    documents = [paper_document(claims_of(paper), results) for paper, results in stored.items()]
    introduction = page_introduction(documents, list(stored.values()))
    return "\n".join([f"# {PAGE_TITLE}\n", introduction, *map(markdown, documents)])


def _sweeps(claims: Sequence[Claim], scale: Scale) -> list[SweepDefinition]:
    """Return the different sweeps that test the claims at this scale."""
    found = [sweep_of(claim, scale) for claim in claims if scale in claim.designs]
    return list({sweep.name: sweep for sweep in found}.values())


def _cpu_cost(sweep: SweepDefinition, num_workers: int) -> list[str]:
    config = trial_config(sweep, sweep.base)
    num_trained = config.num_steps * config.rollout.num_prompts * config.rollout.group_size
    num_problems = config.dataset.num_test + (config.dataset.num_validation or 0)
    num_answers = 2 * num_problems * config.evaluation.num_samples
    in_training, in_evaluation = CPU_MS_PER_COMPLETION
    run_s = (num_trained * in_training + num_answers * in_evaluation) / 1000.0
    num_runs = count_runs(sweep)[Stage.SEARCH]
    _, plan = judge(config, exact_shape(config), PROMPT_TOKENS, psutil.virtual_memory().total)
    return [
        f"{num_runs} runs of about {run_s:.0f} s of one core: {num_runs * run_s / 3600:.1f} h, "
        f"{num_runs * run_s / 3600 / num_workers:.1f} h with {num_workers} free cores",
        f"memory of a worker: {plan.verdict}",
    ]


def _computed(claim: Claim, out: Path) -> dict[str, Any]:
    assert isinstance(claim.outcome, Computation)
    compute = COMPUTATIONS.get(claim.outcome.name)
    if compute is None:
        raise ConfigError(
            f"claim {claim.title}: unknown outcome.name={claim.outcome.name}; use one of "
            f"{', '.join(COMPUTATIONS)}"
        )
    found = compute()
    judged = judge_error(claim.expected, 0.0 if found.error is None else found.error)
    answer: dict[str, Any] = {"word": judged.word, "why": f"{judged.why}; {found.words}"}
    if found.figure is None:
        return answer
    return {**answer, "figure": _drawn(found.figure, out, f"{claim.paper}-{claim.name}")}


def _drawn(picture: Picture, out: Path, name: str) -> str:
    """Save a picture as a PNG file in the figures folder below `out`; return the file's name."""
    [path] = save([replace(picture, name=name)], out / FOLDER, _CACHE, ("png",))
    return path.name


def _judged(claim: Claim, scale: Scale, runs: Runs, out: Path) -> dict[str, Any]:
    wanted = design(claim, scale)
    evidence = evidence_of_runs(wanted, runs)
    judged = wanted.judge(evidence)
    return {
        "word": judged.word,
        "why": judged.why,
        "figure": _drawn(runs_picture(claim, runs), out, f"{claim.paper}-{claim.name}-{scale}"),
        "sweep": wanted.sweep.name,
        "seeds": list(wanted.sweep.seeds),
        "evidence": asdict(evidence),
    }


def _store(out: Path, paper: str, scale: str, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Merge `results`, keyed by claim, into the results file of a paper and scale.

    The file also records the commit, the software versions and the processor.
    """
    if not results:
        return
    path = results_file(paper, scale, out)
    before, _ = read_object(path)
    known = before.get("claims")
    merged = {**(known if isinstance(known, dict) else {}), **results}
    code = code_version(checkout_dir(), {}, but=(out / FOLDER, out / PAGE))
    about = {
        "commit": f"{code['commit']}{' and changes' if code['is_dirty'] else ''}",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("torch", "transformers")},
        "processor": cpu_model(),
    }
    with explained("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"about": about, "claims": merged})
