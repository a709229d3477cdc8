"""The recorded differences between runs: settings, code, environment and data."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from atrium.base.nested import flattened_text
from atrium.base.recorded import read_object
from atrium.document.document import Document, Section, Sentence, Tone, plain_table
from atrium.runs.run_folder import RunFolder

ABSENT = "–"
"""The text for a key that a run did not record but another one did; a disabled setting is `null`."""
_CODE = ("code", "plugins")
_DIFF = "code.diff"
_MAX_VALUE = 300
_LINE_TONES: Mapping[str, Tone] = {"+": "better", "-": "worse", "@": "muted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifferences:
    """The recorded values in which runs differ: for each dotted key a text per run, in the order of the runs.

    Texts longer than 300 characters are cut. `code_diff` has the lines of unified diffs that compare the
    uncommitted changes of the first run with those of every later run. `problems` describes files that could
    not be read.
    """

    settings: Mapping[str, tuple[str, ...]]
    code: Mapping[str, tuple[str, ...]]
    environment: Mapping[str, tuple[str, ...]]
    code_diff: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether no recorded value differs."""
        return not (self.settings or self.code or self.environment or self.code_diff)


def run_differences(*folders: RunFolder) -> RunDifferences:
    """Return the differences between runs. Missing files of a damaged directory count as absent values."""
    problems = []
    contents: list[tuple[Mapping[str, object], Mapping[str, object]]] = []
    for folder in folders:
        config, without_config = read_object(folder.config_file)
        provenance, without_provenance = read_object(folder.provenance_file)
        problems += [f"{folder.name}: {text}" for text in (without_config, without_provenance) if text]
        contents.append((config, provenance))
    recorded = [flattened_text(provenance) for _, provenance in contents]
    changes = [flat.pop(_DIFF, "") for flat in recorded]
    of_code, of_environment = (
        [{k: v for k, v in flat.items() if (k.partition(".")[0] in _CODE) is wanted} for flat in recorded]
        for wanted in (True, False)
    )
    first, *others = zip(folders, changes, strict=True)
    return RunDifferences(
        settings=_between([flattened_text(config) for config, _ in contents]),
        code=_between(of_code),
        environment=_between(of_environment),
        code_diff=tuple(line for other in others for line in _diff(first, other)),
        problems=tuple(problems),
    )


def _diff(one: tuple[RunFolder, str], other: tuple[RunFolder, str]) -> Iterator[str]:
    (name, before), (other_name, after) = ((folder.name, changes) for folder, changes in (one, other))
    return difflib.unified_diff(before.splitlines(), after.splitlines(), name, other_name, lineterm="", n=2)


def differences_document(found: RunDifferences, names: Sequence[str], *, num_lines: int | None) -> Document:
    """Return a document with the differences and at most `num_lines` lines of changed code (None for all)."""
    found_values = {"settings": found.settings, "code": found.code, "environment": found.environment}
    tables = (
        plain_table(
            "",
            (title, *names),
            [(key, *values) for key, values in differing.items()],
            key=title,
            is_text=True,
        )
        for title, differing in found_values.items()
        if differing
    )
    lines = [Sentence(line, _LINE_TONES.get(line[:1], "plain")) for line in found.code_diff[:num_lines]]
    if more := len(found.code_diff) - len(lines):
        lines.append(Sentence(f"… {more} more lines; show them with --all"))
    return Document(
        key="differences",
        title=f"{', '.join(names[:-1])} and {names[-1]}",
        alerts=tuple(Sentence(problem, "warning") for problem in found.problems),
        answer=(Sentence("no recorded value differs"),) if found.is_empty else (),
        sections=(
            Section(title="Differences", tables=tuple(tables), sentences=_of_commits(found)),
            Section(title="uncommitted changes", sentences=tuple(lines)),
        ),
    )


def _of_commits(found: RunDifferences) -> tuple[Sentence, ...]:
    """Return sentences with `git diff` commands between the first run's commit and each other commit."""
    first, *others = dict.fromkeys(found.code.get("code.commit", (ABSENT,)))
    known = [other for other in others if ABSENT not in (first, other)]
    return tuple(Sentence(f"git diff {first[:12]} {one[:12]} shows what the commits change") for one in known)


def _between(sides: list[dict[str, str]]) -> dict[str, tuple[str, ...]]:
    keys = dict.fromkeys(key for side in sides for key in side)
    return {
        key: tuple(_shown(side.get(key, ABSENT)) for side in sides)
        for key in keys
        if len({side.get(key) for side in sides}) > 1
    }


def _shown(value: str) -> str:
    return value if len(value) <= _MAX_VALUE else value[: _MAX_VALUE - 1] + "…"
