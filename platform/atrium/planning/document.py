"""The document of a memory plan: bytes of each item by phase, and whether the run fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atrium.base.records import MemoryItem, Phase
from atrium.document.document import Cell, Column, Document, Row, Section, Sentence, Table, Value
from atrium.planning.memory import peak_by_phase

_GB = 1e9
_PRIORITIES = {Phase.START: 2, Phase.SAVING: 1}
"""Phases whose columns a narrow terminal drops, since they seldom determine whether a run fits."""


@dataclass(frozen=True, kw_only=True)
class FittedPlan:
    """A run's memory plan, the available memory and the changes of settings that make the run fit.

    `device_bytes` is None if unknown. `changes` is empty if the run fits with its current settings, and None
    if the memory is unknown or no sufficient changes are known.
    """

    items: tuple[MemoryItem, ...]
    device: str
    device_bytes: int | None
    changes: tuple[str, ...] | None

    @property
    def verdict(self) -> str:
        """A sentence that says whether the run fits in memory and, if not, which changes would make it fit.

        It is empty if the memory is unknown.
        """
        if self.device_bytes is None:
            return ""
        where = "main memory" if self.device == "cpu" else "GPU memory"
        there_is = f"{self.device_bytes / _GB:.1f} GB of {where}"
        if self.changes == ():
            return f"it fits in {there_is}"
        phase, needed = max(peak_by_phase(self.items).items(), key=lambda peak: peak[1])
        text = f"it does not fit in {there_is}, a tenth of which is kept free: {phase} takes "
        text += f"{needed / _GB:.1f} GB"
        if self.changes is None:
            return f"{text}; no known change of settings makes it fit: use a smaller model or more memory"
        return f"{text}; it fits with {' '.join(self.changes)}"


def memory_document(plan: FittedPlan, notes: Sequence[str], times: Sequence[str] = ()) -> Document:
    """Return the document with the bytes of each item by phase, and the verdict.

    `notes` are lines on the planned run, which are shown below the table. `times` are sentences on the
    predicted times, which follow the verdict.
    """
    rows = [
        Row((item.name, *_sizes(dict.fromkeys(item.phases, item.num_bytes)), item.lowered_by))
        for item in plan.items
    ]
    total = Row(("total", *_sizes(peak_by_phase(plan.items)), ""))
    table = Table(
        title="",
        columns=(
            Column("memory"),
            *(Column(str(phase), priority=_PRIORITIES.get(phase, 0)) for phase in Phase),
            Column("reduced by", is_text=True, priority=3),
        ),
        rows=(*rows, total),
        note="\n".join(notes),
    )
    sentences = tuple(Sentence(line) for line in (plan.verdict, *times) if line)
    sections = (Section(title="Memory", tables=(table,)), Section(title="", sentences=sentences))
    return Document(key="memory", title="Memory", sections=sections)


def _sizes(by_phase: Mapping[Phase, int]) -> list[Cell]:
    return [Value(by_phase[phase], "bytes") if phase in by_phase else "" for phase in Phase]
