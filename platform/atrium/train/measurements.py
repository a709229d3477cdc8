"""Adding up a step's metrics on the device, and moving them to the host once."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from atrium.metrics import Metric, Quantity, Reduction
from atrium.objective.diagnostics import Sums


class Measurements:
    """Sums, counts and extremes of a step, from tensors and from host numbers alike."""

    def __init__(self) -> None:
        self._pending: dict[Quantity, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self._metrics: dict[Quantity, Metric] = {}

    def add_sums(self, sums: Sums) -> None:
        """Add a micro-batch's totals and counts, without waiting for them."""
        for quantity, pair in sums.items():
            self._pending[quantity].append(pair)

    def add(self, quantity: Quantity, total: float, count: float = 1.0) -> None:
        """Add a total over `count` things, or an extreme."""
        added = Metric(total, count, quantity.reduction)
        present = self._metrics.get(quantity)
        self._metrics[quantity] = added if present is None else present.merge(added)

    def values(self) -> dict[Quantity, float]:
        """Every quantity's reduced value; quantities that counted nothing are left out.

        This is the step's one transfer from the device.
        """
        self._collect()
        values = {quantity: metric.value for quantity, metric in self._metrics.items()}
        return {quantity: value for quantity, value in values.items() if value is not None}

    def _collect(self) -> None:
        quantities = list(self._pending)
        if not quantities:
            return
        totals = torch.stack([_combine(quantity, self._pending[quantity]) for quantity in quantities])
        for quantity, (total, count) in zip(quantities, totals.tolist(), strict=True):
            self.add(quantity, total, count)
        self._pending.clear()


def _combine(quantity: Quantity, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    total = torch.stack([pair[0].double() for pair in pairs])
    count = torch.stack([pair[1].double() for pair in pairs]).sum()
    match quantity.reduction:
        case Reduction.MAX:
            return torch.stack([total.max(), count])
        case Reduction.MIN:
            return torch.stack([total.min(), count])
        case _:
            return torch.stack([total.sum(), count])
