"""The document of a memory plan: what each item takes in each phase, and whether the run fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atrium.base.records import MemoryItem, Phase
from atrium.document.document import Cell, Column, Document, Row, Section, Sentence, Table, Value
from atrium.planning.memory import peak_by_phase

_GB = 1e9
_PRIORITIES = {Phase.START: 2, Phase.SAVING: 1}
"""The phases that a narrow terminal leaves out, which seldom decide whether a run fits."""


@dataclass(frozen=True, kw_only=True)
class FittedPlan:
    """A plan of a run's memory, the memory that there is, and the changes with which the run fits.

    `device_bytes` is None where it is not known, `changes` where that is so or none is known that suffices.
    """

    items: tuple[MemoryItem, ...]
    device: str
    device_bytes: int | None
    changes: tuple[str, ...] | None

    @property
    def verdict(self) -> str:
        """Whether the run fits, and with which settings it would; empty where the memory is not known."""
        if self.device_bytes is None:
            return ""
        where = "main memory" if self.device == "cpu" else "GPU memory"
        there_is = f"{self.device_bytes / _GB:.1f} GB of {where}"
        if self.changes == ():
            return f"it fits {there_is}"
        phase, needed = max(peak_by_phase(self.items).items(), key=lambda peak: peak[1])
        text = f"it does not fit {there_is}: {phase} takes {needed / _GB:.1f} GB"
        if self.changes is None:
            return f"{text}; no setting known here makes it fit, a smaller model or more memory does"
        return f"{text}; it fits with {' '.join(self.changes)}"


def memory_document(plan: FittedPlan, notes: Sequence[str], times: Sequence[str] = ()) -> Document:
    """The bytes of each item by phase, whether they fit, and lines about the run's time.

    `notes` say what the plan is for.
    """
    rows = [
        Row((item.name, *_sizes(dict.fromkeys(item.phases, item.num_bytes)), item.lowered_by))
        for item in plan.items
    ]
    together = Row(("together", *_sizes(peak_by_phase(plan.items)), ""))
    table = Table(
        title="",
        columns=(
            Column("memory"),
            *(Column(str(phase), priority=_PRIORITIES.get(phase, 0)) for phase in Phase),
            Column("what lowers it", is_text=True, priority=3),
        ),
        rows=(*rows, together),
        note="\n".join(notes),
    )
    sentences = tuple(Sentence(line) for line in (plan.verdict, *times) if line)
    sections = (Section(title="Memory", tables=(table,)), Section(title="", sentences=sentences))
    return Document(key="memory", title="Memory", sections=sections)


def _sizes(by_phase: Mapping[Phase, int]) -> list[Cell]:
    return [Value(by_phase[phase], "bytes") if phase in by_phase else "" for phase in Phase]
