"""`atrium evaluate --regrade`: stored answers graded again, and what changed. Nothing stored is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from atrium.assemble.graders import grader_version
from atrium.assemble.regrading import Regraded, answers_of_rows, regrade
from atrium.assemble.stored_answers import answers_of_file, is_answer_file
from atrium.base import plugins
from atrium.base.errors import ConfigError
from atrium.base.nested import mapping_at, setting
from atrium.base.recorded import read_object
from atrium.base.records import VerdictKind
from atrium.cli.parser import files_explained
from atrium.cli.samples import read_rows
from atrium.config.compose import check_overrides, compose
from atrium.config.nearest import shown
from atrium.document.formatting import share
from atrium.grading.verifiers import Verifier
from atrium.runs.find import WITH_SAMPLES, find_run
from atrium.runs.sample_exports import write_csv
from atrium.views.terminal import print_cells, say, standard_output

_MAX_LISTED = 20
_FIELDS = (
    *("benchmark", "name", "gold", "was_correct", "is_correct", "was_extracted", "extracted", "reason"),
    *("was_grader", "grader"),
)
_READ = ("grader", "model.thinking")


def regrade_stored(wanted: str, runs_dir: str, overrides: Sequence[str], csv: Path | None) -> None:
    """Grade the answers of an evaluation, a run, or a file, and print and write what changed.

    The grader is the one that the record names, or the one that `overrides` give (`grader=math_tolerance`).
    """
    typed = [override.key_or_group for override in check_overrides(overrides)]
    for key, line in zip(typed, overrides, strict=False):
        if key not in _READ and not key.startswith("grader."):
            raise ConfigError(
                f"{shown(line)}: has no effect on answers that are graded again; allowed are settings of "
                "grader, and model.thinking"
            )
    is_chosen = any(key.startswith("grader") for key in typed)
    config: Mapping[str, object] = {}
    was_grader = "unknown"
    path = Path(wanted).expanduser()
    with files_explained():
        if is_answer_file(path):
            answers = {path.name: answers_of_file(path)}
        else:
            folder = find_run(runs_dir, wanted, last=WITH_SAMPLES)
            if not is_chosen:
                plugins.note_changes(folder.provenance_file)
            config, _ = read_object(folder.config_file)
            recorded = setting(read_object(folder.provenance_file)[0], "data.grader_version")
            was_grader = recorded if isinstance(recorded, str) else was_grader
            answers = {name: answers_of_rows(own) for name, own in read_rows(folder).items()}
    composed = compose(overrides)
    thinking = (
        composed.model.thinking if "model.thinking" in typed else setting(config, "model.thinking") is True
    )
    console = standard_output()
    rows: list[dict[str, object]] = []
    for name, own in answers.items():
        verifier = composed.grader if is_chosen else _verifier_of(config, name) or composed.grader
        found = regrade(own, verifier, thinking=thinking)
        _print(name, found, verifier, console)
        say(console, f"  graded by {grader_version(verifier)}; recorded: {was_grader}", "dim")
        versions = {"was_grader": was_grader, "grader": grader_version(verifier)}
        rows += [{**_row(name, one), **versions} for one in found]
    if csv is not None:
        with files_explained():
            write_csv(csv, rows, _FIELDS)


def _verifier_of(config: Mapping[str, object], name: str) -> Verifier | None:
    """The grader that judged a benchmark of a record."""
    benchmark = mapping_at(config, "benchmark")
    members = setting(config, "benchmark.members")
    for member in members.values() if isinstance(members, Mapping) else ():
        if isinstance(member, Mapping) and member.get("name") == name:
            benchmark = member
    own = benchmark.get("grader")
    if own is None and setting(benchmark, "fields.choices"):
        own = {"kind": "multiple_choice"}
    section = own or config.get("grader")
    if not isinstance(section, Mapping) or section.get("kind") not in Verifier.kinds:
        return None
    settings = {str(key): value for key, value in section.items() if key != "kind"}
    return Verifier.of(str(section["kind"]), **settings)


def _print(name: str, found: Sequence[Regraded], verifier: Verifier, console: Console) -> None:
    before = [one.stored.was_correct for one in found]
    now = share(sum(one.is_correct for one in found) / len(found))
    was = share(sum(map(bool, before)) / len(found)) if None not in before else "unknown"
    changed = [one for one in found if one.is_changed]
    scores = f"correct {was} -> {now}, {len(changed)} changed"
    line = f"{name}: {len(found)} answers graded by {verifier.kind}: {scores}"
    say(console, line, "bold")
    for note in _notes(found, verifier):
        say(console, f"  {note}", "dim")
    if not changed:
        return
    table = [
        (
            one.stored.name,
            "correct" if one.stored.was_correct else "wrong",
            one.verdict.value.replace("_", " "),
            " or ".join((one.stored.gold, *one.stored.other_golds)),
            one.extracted or "none",
            one.reason,
        )
        for one in changed[:_MAX_LISTED]
    ]
    print_cells(console, ("answer", "was", "is", "gold", "extracted", "reason"), table, wraps=True)
    if len(changed) > _MAX_LISTED:
        console.print(Text(f"  and {len(changed) - _MAX_LISTED} more; --csv FILE writes all"))


def _notes(found: Sequence[Regraded], verifier: Verifier) -> Iterator[str]:
    """What to know of the verdicts: several references, and a grader that finds no answer anywhere."""
    if num_several := sum(bool(one.stored.other_golds) for one in found):
        yield f"{num_several} answers have several references, any of which counts"
    if all(one.verdict is VerdictKind.NO_ANSWER for one in found):
        place = getattr(verifier, "answer", None)
        looked = f"looks for {place}" if place else "reads answers of another form"
        choice = "" if verifier.kind == "multiple_choice" else "; set grader=multiple_choice for letters"
        yield (
            f"no answer was found in any of them: the grader {verifier.kind} {looked}{choice}; "
            "elsewhere: grader.answer=last_number, or words such as grader.answer='Answer: {answer}'"
        )


def _row(name: str, one: Regraded) -> dict[str, object]:
    return {
        "benchmark": name,
        "name": one.stored.name,
        "gold": " or ".join((one.stored.gold, *one.stored.other_golds)),
        "was_correct": one.stored.was_correct,
        "is_correct": one.is_correct,
        "was_extracted": one.stored.extracted,
        "extracted": one.extracted,
        "reason": one.reason,
    }
