"""Regrading of stored answers, to compare the grader's current verdicts with the stored ones.

Stored answers and verdicts are not changed. They may come from files of other programs (`stored_answers`).
Only the text of an answer is graded; truncated answers are graded like complete ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atrium.assemble.graders import grader_version
from atrium.assemble.stored_answers import StoredAnswer, answers_of_file
from atrium.base import plugins
from atrium.base.errors import ConfigError
from atrium.base.nested import mapping_at, setting
from atrium.base.recorded import read_object
from atrium.base.records import VerdictKind
from atrium.base.rows import READERS
from atrium.config.compose import check_overrides, compose
from atrium.config.nearest import shown
from atrium.document.document import Document, Section, Sentence, Table, plain_table
from atrium.document.formatting import share
from atrium.grading.pool import GraderPool
from atrium.grading.verifiers import Verifier
from atrium.runs.find import WITH_SAMPLES, find_run
from atrium.runs.sample_files import read_evaluated

_MAX_LISTED = 20
_READ = ("grader", "model.thinking")


@dataclass(frozen=True, slots=True, kw_only=True)
class Regraded:
    """A stored answer with the grader's current verdict."""

    stored: StoredAnswer
    verdict: VerdictKind
    extracted: str | None
    reason: str

    @property
    def is_correct(self) -> bool:
        """Whether the answer is correct by the current verdict."""
        return self.verdict is VerdictKind.CORRECT

    @property
    def is_changed(self) -> bool:
        """Whether a stored verdict exists and differs from the current one."""
        return self.stored.was_correct is not None and self.stored.was_correct != self.is_correct


def regrade(answers: Sequence[StoredAnswer], verifier: Verifier, *, thinking: bool) -> list[Regraded]:
    """Grade the answers again with the verifier; return one result per answer, in the same order.

    An answer with several references is correct if it matches any of them. With `thinking`, only the text
    after the reasoning (`</think>`) is graded.
    """
    with GraderPool(verifier, thinking=thinking) as pool:
        futures = [
            [pool.submit(answer.text, gold, answer.judged_by) for gold in (answer.gold, *answer.other_golds)]
            for answer in answers
        ]
        found = [[future.result() for future in own] for own in futures]
        verdicts = [next((one for one in own if one.is_correct), own[0]) for own in found]
    return [
        Regraded(stored=answer, verdict=verdict.kind, extracted=verdict.extracted, reason=verdict.reason)
        for answer, verdict in zip(answers, verdicts, strict=True)
    ]


def answers_of_rows(rows: Sequence[Mapping[str, object]]) -> list[StoredAnswer]:
    """Return the stored answers in the rows of an evaluation's sample file."""
    return [
        StoredAnswer(
            name=f"{row['problem_id']} #{row['sample_index']}",
            gold=str(row["gold"]),
            text=str(row["text"]),
            was_correct=row["verdict"] == VerdictKind.CORRECT.value,
            extracted=None if row["extracted"] is None else str(row["extracted"]),
            judged_by=json.loads(str(row["metadata"])) | json.loads(str(row.get("verifier") or "{}")),
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegradedSet:
    """The regraded answers of one benchmark or file, and the verifier that regraded them.

    `grader` is the version of the current grader. `was_grader` is the version of the grader that gave the
    stored verdicts, or `unknown` if it was not recorded.
    """

    name: str
    answers: Sequence[Regraded]
    verifier: Verifier
    grader: str
    was_grader: str


def regrade_stored(wanted: str, runs_dir: str, overrides: Sequence[str]) -> list[RegradedSet]:
    """Regrade the stored answers of the evaluation, run or file `wanted`.

    The grader is the recorded one, unless `overrides` choose another one (`grader=math_tolerance`). If no
    usable grader is recorded, as for a file, the default grader is used. Raises `ConfigError` for overrides
    other than settings of `grader` and `model.thinking`, `RunFolderError` if there are no stored answers, and
    `DataError` for an unusable file.
    """
    typed = [override.key_or_group for override in check_overrides(overrides)]
    for key, line in zip(typed, overrides, strict=False):
        if key not in _READ and not key.startswith("grader."):
            raise ConfigError(
                f"{shown(line)} has no effect on regrading; only settings of grader and model.thinking "
                "can be changed"
            )
    is_chosen = any(key.startswith("grader") for key in typed)
    config: Mapping[str, object] = {}
    was_grader: object = None
    path = Path(wanted).expanduser()
    if path.suffix.lower() in READERS:
        answers = {path.name: answers_of_file(path)}
    else:
        folder = find_run(runs_dir, wanted, last=WITH_SAMPLES)
        if not is_chosen:
            plugins.note_changes(folder.provenance_file)
        config, _ = read_object(folder.config_file)
        was_grader = setting(read_object(folder.provenance_file)[0], "data.grader_version")
        answers = {name: answers_of_rows(own) for name, own in read_evaluated(folder).items()}
    composed = compose(overrides)
    is_typed = "model.thinking" in typed
    thinking = composed.model.thinking if is_typed else setting(config, "model.thinking") is True
    found = []
    for name, own in answers.items():
        recorded = _verifier_of(config, name)
        verifier = composed.grader if is_chosen else recorded or composed.grader
        found.append(
            RegradedSet(
                name=name,
                answers=regrade(own, verifier, thinking=thinking),
                verifier=verifier,
                grader=grader_version(verifier),
                was_grader=_version_of(recorded, was_grader),
            )
        )
    return found


def _version_of(recorded: Verifier | None, version: object) -> str:
    """Return the version of the grader that graded a benchmark's stored answers, or `unknown`.

    `version` is the recorded version of the run's own grader, and begins with the kind of its verifier. If
    the benchmark has a recorded verifier (`recorded`), the kind of that verifier is used instead.
    """
    if not isinstance(version, str):
        return "unknown"
    # A run records the version of its own grader; all kinds share its versions.
    return f"{recorded.kind}, {version.partition(', ')[2]}" if recorded else version


def _verifier_of(config: Mapping[str, object], name: str) -> Verifier | None:
    """Return the recorded verifier for the benchmark `name`, or None if `config` names no known verifier."""
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
    return Verifier.build(str(section["kind"]), **settings)


def regraded_document(found: Sequence[RegradedSet]) -> Document:
    """Return a document with the stored and current scores, and the answers whose verdict changed."""
    sections = [
        Section(
            title=_scores_text(one),
            sentences=tuple(Sentence(text, "muted") for text in _notes(one)),
            tables=tuple(_changed_tables(one)),
        )
        for one in found
    ]
    return Document(key="regraded", title="Graded again", sections=tuple(sections))


def regraded_rows(found: Sequence[RegradedSet]) -> tuple[list[dict[str, object]], Sequence[str]]:
    """Return the regraded answers as table rows, and a list of the column names.

    There is one row per answer, which contains the stored and the current verdict.
    """
    rows: list[dict[str, object]] = [
        {
            "benchmark": one.name,
            "name": answer.stored.name,
            "gold": _gold(answer),
            "was_correct": answer.stored.was_correct,
            "is_correct": answer.is_correct,
            "was_extracted": answer.stored.extracted,
            "extracted": answer.extracted,
            "reason": answer.reason,
            "was_grader": one.was_grader,
            "grader": one.grader,
        }
        for one in found
        for answer in one.answers
    ]
    return rows, list(rows[0])


def _scores_text(found: RegradedSet) -> str:
    before = [one.stored.was_correct for one in found.answers]
    num = len(found.answers)
    now = share(sum(one.is_correct for one in found.answers) / num)
    was = share(sum(map(bool, before)) / num) if None not in before else "unknown"
    num_changed = sum(one.is_changed for one in found.answers)
    scores = f"correct {was} -> {now}, {num_changed} changed"
    return f"{found.name}: {num} answers graded by {found.verifier.kind}: {scores}"


def _changed_tables(found: RegradedSet) -> list[Table]:
    """Return a table of the first answers whose verdict changed, or an empty list if none changed."""
    changed = [one for one in found.answers if one.is_changed]
    rows = [
        (
            one.stored.name,
            "correct" if one.stored.was_correct else "wrong",
            one.verdict.value.replace("_", " "),
            _gold(one),
            one.extracted or "none",
            one.reason,
        )
        for one in changed[:_MAX_LISTED]
    ]
    titles = ("answer", "was", "is", "gold", "extracted", "reason")
    more = len(changed) - len(rows)
    note = f"and {more} more; write all of them with --csv FILE" if more else ""
    return [plain_table("", titles, rows, note, is_text=True)] if rows else []


def _gold(one: Regraded) -> str:
    return " or ".join((one.stored.gold, *one.stored.other_golds))


def _notes(found: RegradedSet) -> Iterator[str]:
    """Yield notes on the regraded answers, for the document.

    They cover answers with several reference answers, a grader that finds no answer at all, and the versions
    of the current and the earlier grader.
    """
    if num_several := sum(bool(one.stored.other_golds) for one in found.answers):
        yield f"{num_several} answers have several references, any of which counts"
    if all(one.verdict is VerdictKind.NO_ANSWER for one in found.answers):
        place = getattr(found.verifier, "answer", None)
        looked = f"looks for {place}" if place else "expects answers in another form"
        choice = (
            "" if found.verifier.kind == "multiple_choice" else "; set grader=multiple_choice for letters"
        )
        yield (
            f"no answer was found in any of them: the grader {found.verifier.kind} {looked}{choice}; "
            "for answers elsewhere, set grader.answer=last_number, or a pattern such as "
            "grader.answer='Answer: {answer}'"
        )
    yield f"graded by {found.grader}; recorded: {found.was_grader}"
