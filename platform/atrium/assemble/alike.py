"""Warnings about arms of a comparison that have identical gradients."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping

from atrium.method.method import SECTIONS, Method
from atrium.runs.method_settings import method_of, use_of


def alike_notes(configs: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Return one line per group of arms that differ only in their methods and have identical gradients.

    `configs` maps the names of arms to their configurations. Arms with several updates per batch are left
    out, because their gradients may differ after the first update. Arms whose settings cannot be read are
    also left out, and so are groups in which all methods have the same settings. Torch is loaded only if at
    least two different methods remain to compare.
    """
    groups: dict[str, dict[str, Mapping[str, object]]] = defaultdict(dict)
    for name, config in configs.items():
        if (use := use_of(config)) is not None and use.num_updates_per_batch == 1:
            rest = {
                key: value
                for key, value in method_of(config, at_last_step=True).items()
                if key not in SECTIONS
            }
            groups[json.dumps([rest, use.is_stale], sort_keys=True, default=str)][name] = config
    notes = []
    for group in groups.values():
        methods = {name: method for name, one in group.items() if (method := Method.read(one)) is not None}
        use = use_of(next(iter(group.values())))
        if use is None or len({json.dumps(one.key(use), sort_keys=True) for one in methods.values()}) < 2:
            continue
        from atrium.theory.atlas_document import alike

        where = "one update per batch" + (", stale rollouts" if use.is_stale else "")
        notes += [
            f"{said} ({where}): with equal seeds their runs differ by rounding alone"
            for said in alike(methods, use)
        ]
    return notes
