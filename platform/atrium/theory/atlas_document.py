"""The document and figures of `atrium atlas`: classes of methods by gradient, and how drift splits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atrium.document.document import (
    Axis,
    Document,
    Grid,
    Lines,
    Picture,
    Row,
    Section,
    Sentence,
    Series,
    Table,
    plain_table,
)
from atrium.method.method import Method
from atrium.method.needs import Use
from atrium.theory.atlas import NEARLY, TOLERANCE, Drift, Partition, can_compute, partition, synthetic

_NUM_BATCHES = 3
_SAME = "equal up to one factor per batch"
_COUNTS = ("equal gradients", _SAME, f"the same within {NEARLY:.1%}")


def atlas_document(partitions: Sequence[Partition], source: str, left_out: Sequence[str]) -> Document:
    """Return a document on the classes of methods under each drift.

    The document states the number of classes under each drift, lists the classes under the first drift, and
    shows into how many directions the other drifts split each of these classes. `source` describes the
    rollouts. `left_out` names the methods that could not be compared.
    """
    first, *others = partitions
    answer = Sentence(
        f"{first.drift.name}: {len(first.names)} methods have {len(first.equal)} distinct gradients, and "
        f"{len(first.directions)} distinct directions.",
        key="classes",
    )
    said = f"Gradients are compared on {source}, each batch as one minibatch. "
    said += "More batches can only split classes."
    notes = [Sentence(said, "warning")]
    if left_out:
        names = ", ".join(left_out)
        notes.append(Sentence(f"Left out, since they need whole distributions: {names}.", "warning"))
    return Document(
        key="atlas",
        title="Classes of methods with the same gradient",
        answer=(answer,),
        sections=(
            Section(title="Distinct methods", tables=(_counts(partitions),)),
            Section(
                title=f"Classes: {first.drift.name}",
                sentences=tuple(map(Sentence, _classes(first))),
                tables=(_splits(first, others),) if others else (),
            ),
        ),
        notes=tuple(notes),
    )


def _counts(partitions: Sequence[Partition]) -> Table:
    columns = ("drift", *_COUNTS, "largest class", "distance within", "distance between")
    rows = [
        (one.drift.name, *_numbers(one), len(one.directions[0]), f"{one.within:.0e}", f"{one.between:.0e}")
        for one in partitions
    ]
    return plain_table(
        "Number of classes by distance between policies",
        columns,
        rows,
        f"Directions are equal if unit gradients differ by at most {TOLERANCE:.0e}. Distances within a "
        "class are due to rounding, distances between classes to settings.",
    )


def _numbers(one: Partition) -> tuple[int, int, int]:
    return len(one.equal), len(one.directions), one.num_nearly


def _classes(one: Partition) -> list[str]:
    """Return a line for each class of two or more methods that have the same gradient direction.

    Within a line, `|` separates groups of methods with equal gradients. The last line lists the methods that
    are alone in their class.
    """
    lines = []
    for number, group in enumerate(_several(one), 1):
        parts = [", ".join(part) for part in one.equal if part[0] in group]
        lengths = f", {len(parts)} step lengths" if len(parts) > 1 else ""
        lines.append(f"{number}. {len(group)} methods{lengths}: {' | '.join(parts)}")
    alone = [group[0] for group in one.directions if len(group) == 1]
    return [*lines, f"Classes of one method ({len(alone)}): {', '.join(alone)}"]


def _several(one: Partition) -> list[tuple[str, ...]]:
    return [group for group in one.directions if len(group) > 1]


def _splits(first: Partition, others: Sequence[Partition]) -> Table:
    rows = []
    for number, group in enumerate(_several(first), 1):
        name = f"{number}. {', '.join(group[:3])}{' ...' if len(group) > 3 else ''}"
        parts = [sum(bool(set(part) & set(group)) for part in other.directions) for other in others]
        rows.append(Row((name, len(group), *parts)))
    columns = ("class", "methods", *(other.drift.name for other in others))
    return plain_table("Number of directions in each class", columns, rows)


def atlas_pictures(partitions: Sequence[Partition]) -> list[Picture]:
    """Return figures of the number of classes by drift, and of distances between directions (first drift)."""
    places = tuple(float(number) for number in range(len(partitions)))
    counts = zip(*map(_numbers, partitions), strict=True)
    lines = Lines(
        key="atlas/counts",
        title=f"Distinct methods among {len(partitions[0].names)}",
        x=Axis(labels=tuple(one.drift.name for one in partitions)),
        y=Axis(title="classes", unit="count", low=0.0),
        series=tuple(
            Series(
                name=name, x=places, y=tuple(map(float, values)), place=place, has_points=True, is_line=False
            )
            for place, (name, values) in enumerate(zip(_COUNTS, counts, strict=True))
        ),
    )
    grid = _grid(partitions[0])
    return [Picture(name="atlas-counts", figures=(lines,)), Picture(name="atlas-distances", figures=(grid,))]


def _grid(one: Partition) -> Grid:
    """Return the heat map of distances between directions, each represented by its first method."""
    place = {name: number for number, name in enumerate(one.names)}
    chosen = [place[group[0]] for group in one.directions]
    labels = tuple(
        f"{group[0]} +{len(group) - 1}" if len(group) > 1 else group[0] for group in one.directions
    )
    return Grid(
        key="atlas/distances",
        title=f"Distance between directions: {one.drift.name}",
        caption="Half the largest distance of unit gradients over batches; dark: 1, opposite directions. "
        "Columns are in the order of the rows; +14: 14 more methods in the class.",
        x=Axis(labels=labels),
        rows=labels,
        values=tuple(tuple(float(one.distances[row, column]) / 2.0 for column in chosen) for row in chosen),
        ends=("equal", "opposite"),
    )


def alike(methods: Mapping[str, Method], use: Use) -> list[str]:
    """Return a sentence for each class of two or more methods that have equal gradients.

    `use` gives the number of updates per batch and whether batches are stale. Methods that need whole
    distributions are left out if the policy differs from the sampling policy. Gradients are compared on
    random rollouts whose engine log-probabilities differ from the trainer's. With several updates per batch,
    the policy's log-ratios have a spread of 1 nat, which reveals all differences.
    """
    spread = 0.0 if use.num_updates_per_batch == 1 else 1.0
    drift = Drift(name="", spread=spread, staleness=0.1 if use.is_stale else 0.0, mismatch=0.01)
    known = {name: method for name, method in methods.items() if can_compute(method, drift)}
    if len(known) < 2:
        return []
    found = partition(known, [synthetic(seed) for seed in range(_NUM_BATCHES)], drift)
    return [f"{_listed(group)} have identical gradients" for group in found.equal if len(group) > 1]


def alike_sentences(methods: Mapping[str, Method]) -> tuple[Sentence, ...]:
    """Return sentences on how the methods' gradients differ, for one and for several updates per batch.

    Several updates are represented by three spreads of the policy's log-ratios. A case (one update, or one of
    the spreads) is left out if at least one method needs whole distributions in this case.
    """
    drifts = {"one update per batch": Drift(name="", mismatch=0.01)}
    drifts |= {
        f"a log-ratio spread of {spread:g}": Drift(name="", spread=spread, mismatch=0.01)
        for spread in (0.02, 0.1, 1.0)
    }
    said = []
    for where, drift in drifts.items():
        if not all(can_compute(method, drift) for method in methods.values()):
            continue
        found = partition(methods, [synthetic(seed) for seed in range(_NUM_BATCHES)], drift)
        said.append(Sentence(f"{where}: {_difference(found)}"))
    return tuple(said)


def _difference(one: Partition) -> str:
    if len(one.equal) == 1:
        return "identical gradients"
    if len(one.directions) == 1:
        return "gradients that differ by one factor per batch, which Adam mostly hides"
    if len(one.names) == 2:
        return f"gradients differ; distance of unit gradients {float(one.distances.max()):.2g}"
    several = "; ".join(", ".join(group) for group in _several(one))
    return f"{len(one.directions)} distinct directions" + (f"; the same: {several}" if several else "")


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def records(partitions: Sequence[Partition]) -> list[Mapping[str, object]]:
    """Return one mapping per partition with its drift, classes and distances, as printed by `--json`."""
    return [
        {
            "drift": {name: getattr(one.drift, name) for name in ("name", "spread", "staleness", "mismatch")},
            "methods": list(one.names),
            "equal": [list(group) for group in one.equal],
            "directions": [list(group) for group in one.directions],
            "num_nearly": one.num_nearly,
            "within": one.within,
            "between": one.between,
            "distances": one.distances.tolist(),
        }
        for one in partitions
    ]
