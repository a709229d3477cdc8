"""The differences between two runs: settings, code, environment and data, as recorded. Reads only."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from atrium.base.nested import flattened_text
from atrium.base.recorded import read_object
from atrium.document.document import Column, Document, Row, Section, Sentence, Table, Tone
from atrium.runs.run_folder import RunFolder

ABSENT = "–"
"""What is shown where only the other run recorded a key; a setting that is off is `null`."""
_CODE = ("code", "plugins")
_DIFF = "code.diff"
_MAX_VALUE = 300
_LINE_TONES: Mapping[str, Tone] = {"+": "better", "-": "worse", "@": "muted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifferences:
    """Values by dotted key where they differ, the first run's then the second's.

    `code_diff` are the lines of a unified diff between the uncommitted changes of both. `problems` says
    what could not be read.
    """

    settings: Mapping[str, tuple[str, str]]
    code: Mapping[str, tuple[str, str]]
    environment: Mapping[str, tuple[str, str]]
    code_diff: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing that was recorded differs."""
        return not (self.settings or self.code or self.environment or self.code_diff)


def run_differences(one: RunFolder, other: RunFolder) -> RunDifferences:
    """The differences between two runs; what a damaged folder lacks counts as absent and is named."""
    problems = []
    contents: list[tuple[Mapping[str, object], Mapping[str, object]]] = []
    for folder in (one, other):
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
    lines = difflib.unified_diff(
        changes[0].splitlines(), changes[1].splitlines(), one.name, other.name, lineterm="", n=2
    )
    return RunDifferences(
        settings=_between([flattened_text(config) for config, _ in contents]),
        code=_between(of_code),
        environment=_between(of_environment),
        code_diff=tuple(lines) if changes[0] != changes[1] else (),
        problems=tuple(problems),
    )


def differences_document(found: RunDifferences, names: tuple[str, str], *, num_lines: int | None) -> Document:
    """A table of differing values for settings, code and environment, and `num_lines` of changed code."""
    values = {"settings": found.settings, "code": found.code, "environment": found.environment}
    tables = (
        Table(
            title="",
            columns=tuple(Column(name, is_text=True) for name in (title, *names)),
            rows=tuple(Row((key, *both)) for key, both in differing.items()),
        )
        for title, differing in values.items()
        if differing
    )
    lines = [Sentence(line, _LINE_TONES.get(line[:1], "plain")) for line in found.code_diff[:num_lines]]
    if more := len(found.code_diff) - len(lines):
        lines.append(Sentence(f"… {more} more lines; --all shows them"))
    return Document(
        key="differences",
        title=f"{names[0]} and {names[1]}",
        alerts=tuple(Sentence(problem, "warning") for problem in found.problems),
        answer=(Sentence("nothing that was recorded differs"),) if found.is_empty else (),
        sections=(
            Section(title="Differences", tables=tuple(tables)),
            Section(title="uncommitted changes", sentences=tuple(lines)),
        ),
    )


def _between(sides: list[dict[str, str]]) -> dict[str, tuple[str, str]]:
    keys = dict.fromkeys(key for side in sides for key in side)
    return {
        key: (_shown(sides[0].get(key, ABSENT)), _shown(sides[1].get(key, ABSENT)))
        for key in keys
        if sides[0].get(key) != sides[1].get(key)
    }


def _shown(value: str) -> str:
    return value if len(value) <= _MAX_VALUE else value[: _MAX_VALUE - 1] + "…"
