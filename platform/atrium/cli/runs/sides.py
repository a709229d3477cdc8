"""What `atrium show` says of sampling beside training: the times of both sides, and what overlap allows."""

from __future__ import annotations

from collections.abc import Iterator

from atrium.base.nested import setting
from atrium.base.recorded import as_integer
from atrium.document.formatting import counted, number, share
from atrium.planning.sides import Sides, sides_of
from atrium.runs.reader import RunOverview, read_steps


def sides_lines(run: RunOverview) -> list[str]:
    """A title and its lines; none for a run whose steps do not tell, or whose completions come from disk."""

    def value(key: str, least: int) -> int:
        return max(least, as_integer(setting(run.config, key)) or least)

    if setting(run.config, "rollout.stored_frac") is not None:
        return []
    is_inside = setting(run.config, "rollout.placement") in (None, "inside")
    num_trainers = value("compute.num_processes", 1) * value("compute.num_nodes", 1)
    lag = value("rollout.lag", 0)
    urls = setting(run.config, "rollout.servers")
    num_urls = len(urls) if isinstance(urls, list) else 0
    num_engines = max(num_urls, value("rollout.num_engines", 1), value("rollout.num_servers", 1))
    sides = sides_of(
        [metrics for _, metrics in read_steps(run.folder)],
        num_engines=num_trainers if is_inside else num_engines,
        num_trainers=num_trainers,
        overlaps=lag > 0 and not is_inside,
    )
    if sides is None:
        return []
    missing = [*(["rollout.lag=1"] if lag == 0 else []), *(["rollout.placement=server"] if is_inside else [])]
    return [f"sampling and training (medians of {counted(sides.num_steps, 'step')})", *_lines(sides, missing)]


def _lines(sides: Sides, missing: list[str]) -> Iterator[str]:
    """What the step takes, what it can take, and with how many devices; `missing` lets both sides overlap."""
    engines, trainers = counted(sides.num_engines, "engine"), counted(sides.num_trainers, "trainer")
    yield (
        f"a step takes {_s(sides.step_s)}: sampling {_s(sides.sampling_s)} on {engines}, training "
        f"{_s(sides.training_s)} on {trainers}, neither {_s(sides.rest_s)}"
    )
    least, times = _s(sides.bound_s), number(sides.step_s / sides.bound_s)
    if missing:
        how = f"each on devices of its own ({' '.join(missing)})"
        yield f"both at once, {how}: at least {least}, {times} times as fast"
    else:
        # Medians of parts may add up to more than that of the whole.
        reached = share(min(1.0, sides.bound_s / sides.step_s))
        yield f"both at once: at least {least}, of which {reached} is reached"
    for_engines, for_trainers = sides.balance
    wanted = max(1, round(sides.engines_per_trainer * sides.num_trainers))
    yield (
        f"equally long with {for_engines} to {for_trainers} devices, sampling to training: at least "
        f"{_s(sides.bound_with(wanted))} with {counted(wanted, 'engine')}, where sampling scales with them"
    )


def _s(seconds: float) -> str:
    return f"{number(seconds)} s"
