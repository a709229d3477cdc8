"""Accumulation of a step's metrics on the device, moved to the host once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from atrium.base import metrics
from atrium.base.metrics import (
    CATALOGUE,
    RATIO_QUANTILES,
    TIME_STAGES,
    Metric,
    Quantity,
    Reduction,
    quantity_of,
)
from atrium.base.records import Floats, RatioHistogram
from atrium.method.diagnostics import Sums
from atrium.method.ratio_histogram import NUM_BINS, SIGNS, log_ratio_edges, ratio_quantile
from atrium.train.measure.clock import Span
from atrium.train.ranks.ranks import Ranks


class Measurements:
    """Sums, counts and extremes of a step's quantities, from tensors and from host numbers."""

    def __init__(self) -> None:
        self._pending: dict[Quantity, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self._metrics: dict[Quantity, Metric] = {}
        self._pending_ratios: Tensor | None = None
        self._pending_spans: list[tuple[Quantity, Span]] = []
        self._ratio_counts = np.zeros((len(SIGNS), NUM_BINS), dtype=np.int64)

    def add_sums(self, sums: Sums) -> None:
        """Add a micro-batch's totals and counts without waiting for the device."""
        for quantity, pair in sums.items():
            self._pending[quantity].append(pair)

    def add_ratios(self, counts: Tensor) -> None:
        """Add a micro-batch's histogram of importance ratios without waiting for the device.

        `counts` has the shape [S, NUM_BINS]: one row for each sign of the advantage.
        """
        pending = self._pending_ratios
        self._pending_ratios = counts if pending is None else pending + counts

    def add(self, quantity: Quantity, total: float, count: float = 1.0) -> None:
        """Add a total over `count` items, or a value of a quantity that is reduced by maximum or minimum."""
        added = Metric(total, count, quantity.reduction)
        present = self._metrics.get(quantity)
        self._metrics[quantity] = added if present is None else present.merge(added)

    def add_span(self, quantity: Quantity, span: Span) -> None:
        """Add the seconds of a span that has ended, without waiting for the device's work in it."""
        self._pending_spans.append((quantity, span))

    def sum_over(self, ranks: Ranks) -> None:
        """Combine the pending sums and ratio counts of all ranks. Call this once, after all are added.

        Values added by `add` are not combined: they are the same on all ranks or, like times, each rank's own
        (see `agree`).
        """
        if ranks.is_alone:
            return
        own = Measurements()
        own._pending, own._pending_ratios = self._pending, self._pending_ratios
        self._pending, self._pending_ratios = defaultdict(list), None
        own._collect()
        bins = own._ratio_counts.nonzero()
        ratios = [*(part.tolist() for part in bins), own._ratio_counts[bins].tolist()]
        pairs: dict[str, list[list[float]]] = defaultdict(list)
        for found, (sign, place, counts) in ranks.gather([own.as_record(), ratios]):
            for name, pair in found.items():
                pairs[name].append(pair)
            self._ratio_counts[sign, place] += np.array(counts, dtype=np.int64)
        for name, parts in pairs.items():
            # `Metric.merge` ignores totals with count 0, but all ranks add to a loss that only one counts.
            self.add(CATALOGUE[name], *_combine(CATALOGUE[name], np.array(parts)))

    def agree(self, ranks: Ranks) -> None:
        """Set each time and memory peak to its maximum over the ranks."""
        if ranks.is_alone:
            return
        own = {name: pair for name, pair in self.as_record().items() if name.startswith(TIME_STAGES)}
        for found in ranks.gather(own):
            for name, (total, count) in found.items():
                quantity = CATALOGUE[name]
                present = self._metrics.get(quantity)
                if present is None or present.total < total:
                    self._metrics[quantity] = Metric(total, count, quantity.reduction)

    def as_record(self) -> dict[str, list[float]]:
        """Return [total, count] of each quantity by name, for a file; ratio counts are not included."""
        self._collect()
        return {quantity.name: [metric.total, metric.count] for quantity, metric in self._metrics.items()}

    @classmethod
    def from_record(cls, record: Mapping[str, Sequence[float]]) -> Self:
        """Return the measurements from a record made by `as_record`."""
        measurements = cls()
        for name, (total, count) in record.items():
            quantity = quantity_of(name)
            assert quantity is not None, f"{name} is not declared"
            measurements.add(quantity, total, count)
        return measurements

    def values(self) -> dict[Quantity, float]:
        """Return every quantity's reduced value, except quantities with count zero.

        Pending values are moved from the device in one transfer.
        """
        self._collect()
        values = {quantity: metric.value for quantity, metric in self._metrics.items()}
        found = {quantity: value for quantity, value in values.items() if value is not None}
        if self._ratio_counts.any():
            counts_N = self._ratio_counts.sum(axis=0)
            found |= {
                quantity: ratio_quantile(counts_N, share) for share, quantity in RATIO_QUANTILES.items()
            }
        return found

    def named(self) -> dict[str, float]:
        """Return every quantity's reduced value by name, including derived quantities."""
        values = self.values()
        named = {quantity.name: value for quantity, value in values.items()}
        if total := values.get(metrics.SLOPE_SQUARED):
            named[metrics.HEAVIEST_TOKEN_FRAC.name] = values[metrics.SLOPE_SQUARED_MAX] / total
        if square := values.get(metrics.RATIO_SQUARED):
            # At most 1 by Cauchy-Schwarz; squares rounded to float32 may exceed it in the eighth digit.
            named[metrics.EFFECTIVE_SAMPLE_FRAC.name] = min(1.0, values[metrics.RATIO_MEAN] ** 2 / square)
        return named

    def ratio_histogram(self) -> RatioHistogram | None:
        """Return the distribution of the ratios counted so far, or None if there are none."""
        self._collect()
        bins = np.flatnonzero(self._ratio_counts.any(axis=0))
        if not len(bins):
            return None
        occupied = slice(bins[0], bins[-1] + 1)
        edges = np.exp(log_ratio_edges()[bins[0] : bins[-1] + 2])
        counts = {
            sign: tuple(row[occupied].tolist()) for sign, row in zip(SIGNS, self._ratio_counts, strict=True)
        }
        return RatioHistogram(edges=tuple(edges.tolist()), **counts)

    def _collect(self) -> None:
        self._collect_spans()
        ratios = self._pending_ratios
        parts = [value.double() for pairs in self._pending.values() for pair in pairs for value in pair]
        moving = [torch.stack(parts)] if parts else []
        if ratios is not None:
            moving.append(ratios.flatten().double())  # whole numbers below 2^53 stay exact
        if not moving:
            return
        moved = torch.cat(moving).cpu().numpy()
        sums_N, ratios_N = np.split(moved, [len(parts)])
        for quantity, pairs in self._pending.items():
            found_N, sums_N = np.split(sums_N, [2 * len(pairs)])
            self.add(quantity, *_combine(quantity, found_N.reshape(-1, 2)))
        if ratios is not None:
            self._ratio_counts += ratios_N.astype(np.int64).reshape(ratios.shape)
        self._pending.clear()
        self._pending_ratios = None

    def _collect_spans(self) -> None:
        spans, self._pending_spans = self._pending_spans, []
        if spans:
            spans[-1][1].wait()  # a device works in order: the others are finished too
        for quantity, span in spans:
            self.add(quantity, span.seconds())


def _combine(quantity: Quantity, pairs_N2: Floats) -> tuple[float, float]:
    """Combine the (total, count) pairs of a quantity into one pair.

    Counts are summed; totals are summed, or reduced by maximum or minimum.
    """
    total_N, count_N = pairs_N2.T
    match quantity.reduction:
        case Reduction.MAX:
            total = total_N.max()
        case Reduction.MIN:
            total = total_N.min()
        case _:
            total = total_N.sum()
    return float(total), float(count_N.sum())
