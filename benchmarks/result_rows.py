"""Conversion of each benchmark's records to the rows of its table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pairs

COLUMNS = ("case", "measured", "ratio", "95 % interval", "n")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table. `interval` is the sign interval of the median over paired repeats."""

    case: str
    measured: str
    ratio: str = ""
    interval: str = ""
    n: str = ""

    def cells(self) -> tuple[str, ...]:
        """Return the cells in the order of `COLUMNS`."""
        return self.case, self.measured, self.ratio, self.interval, self.n


def rows_of(result: Mapping[str, Any]) -> list[Row]:
    """Return the rows of one benchmark's table, and a row with the reason of a failure."""
    rows = ROWS[result["benchmark"]](result["records"])
    failed = result.get("failed")
    return [*rows, Row(case="not measured", measured=failed)] if failed else rows


def _step_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    cases: dict[str, list[Mapping[str, Any]]] = {}
    for one in records:
        natural = "natural, at most " if one["free_length"] else ""
        case = (
            f"{one['params'] / 1e6:.2f}M parameters, {natural}{one['max_new_tokens']} tokens, {one['dtype']}"
        )
        cases.setdefault(case, []).append(one)
    return [row for case, found in cases.items() for row in _case_rows(case, found)]


def _case_rows(case: str, records: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    ours, theirs = ([one for one in records if one["arm"] == arm] for arm in ("atrium", "trl"))
    if theirs and theirs[0]["micro"] < theirs[0]["prompts"] * theirs[0]["group"]:
        case += f", TRL in micro-batches of {theirs[0]['micro']}"
    for key, what, unit in (
        *((("wall_med", f"time on {ours[0]['threads']} threads", "s"),) if ours[0]["threads"] > 1 else ()),
        ("cpu_step_med", "CPU", "s"),
        ("peak_rss_mb", "peak memory", "MB"),
        ("t_first_step_done", "cold start to first step", "s"),
    ):
        own = _median_of(ours, key, unit)
        if not theirs:
            yield Row(case=f"{case}: {what}", measured=own, n=str(len(ours)))
            continue
        ratio = pairs.ratio_of([one[key] for one in theirs], [one[key] for one in ours])
        yield _with_ratio(f"{case}: {what}", f"{own}, TRL {_median_of(theirs, key, unit)}", ratio, len(ours))


def _median_of(records: Sequence[Mapping[str, Any]], key: str, unit: str) -> str:
    """Format a median; CPU times of steps with natural lengths also state the number of sampled tokens."""
    told = f"{_number(_median(records, key))} {unit}"
    if key != "cpu_step_med" or not records[0]["free_length"]:
        return told
    return f"{told} ({_median(records, 'gen_tokens_per_step'):,.0f} tokens)"


def _loss_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [
        _with_ratio(
            f"vocabulary {one['vocabulary']:,}, {one['tokens']:,} tokens by {one['width']:,}: {one['arm']}",
            f"{_number(one['seconds_med'])} s, " + _peak(one["peak_mb"]),
            one,
            one["repeats"],
        )
        for one in records
    ]


def _divergence_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [
        _with_ratio(
            one["arm"].replace("_", " "),
            f"{_number(one['cpu_s_med'])} s",
            {
                "ratio": 1.0 + one["overhead_frac"],
                "interval": [1.0 + bound for bound in one["overhead_interval"]],
            },
            one["repeats"],
        )
        for one in records
    ]


def _packing_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [
        _with_ratio(
            f"{one['params'] / 1e6:.2f}M parameters, {one['completions']} completions: {one['arm']}",
            f"{_number(one['seconds_med'])} s, {one['positions']:,} positions, "
            f"{one['padding_frac']:.0%} padding",
            one,
            one["repeats"],
        )
        for one in records
    ]


def _cost_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [
        _with_ratio(
            f"{one['params'] / 1e6:.2f}M parameters, {one['total_tokens']:,} tokens",
            f"{_number(one['microseconds_per_token_med'])} µs per token",
            one,
            one["repeats"],
        )
        for one in records
    ]


def _grading_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    rows = []
    for one in records:
        if "num_answers" not in one:
            rows.append(Row(case=one["workload"], measured=f"{_number(one['wall_s'])} s", n="1"))
            continue
        measured = f"{one['answers_per_core_s']:,} per second and core"
        rows.append(Row(case=f"{one['workload']}, {one['num_answers']:,} answers", measured=measured, n="1"))
    return rows


def _start_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [
        Row(
            case=one["what"],
            measured=f"{_number(one['wall_s_med'])} s, {_number(one['cpu_s_med'])} s of CPU",
            interval=" to ".join(f"{_number(bound)} s" for bound in one["wall_interval"]),
            n=str(one["repeats"]),
        )
        for one in records
    ]


def _test_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    rows = []
    for file in dict.fromkeys(one["file"] for one in records):
        tests = [one for one in records if one["file"] == file]
        told = [f"{sum(one['outcome'] == 'passed' for one in tests)} passed"]
        told += [f"failed: {one['test']}" for one in tests if one["outcome"] == "failed"]
        reasons = {one["reason"] for one in tests if one["outcome"] == "skipped"}
        told += [f"skipped: {reason}" for reason in sorted(reasons)]
        rows.append(Row(case=file, measured="; ".join(told), n="1"))
    return rows


def _run_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    rows = []
    for one in records:
        for phase, predicted in one["predicted_mb"].items():
            measured = one["measured_mb"][phase]
            told = "not seen" if measured is None else f"{measured:,.0f} MB"
            ratio = "" if measured is None else f"{measured / predicted:.2f}"
            case = f"{one['model']}: {phase}, measured to predicted"
            rows.append(Row(case=case, measured=f"{told}, predicted {predicted:,.0f} MB", ratio=ratio))
        found = f"micro-batches of {one['micro_batch_tokens']:,} tokens"
        weights = f"weights handed over in {_number(one['weights_s'])} s"
        if "hand_over_gb_per_s" in one:
            weights += f", {_number(one['hand_over_gb_per_s'])} GB/s"
        rows.append(
            Row(case=f"{one['model']}: found", measured=f"{found}; {weights}", n=str(one["num_steps"]))
        )
    return rows


def _train_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    rows = []
    for one in records:
        phases = ", ".join(f"{name} {_number(seconds)}" for name, seconds in one["phases_s"].items())
        rows.append(
            Row(
                case=f"{one['model']}, engine {one['engine']}: a step",
                measured=f"{_number(one['step_s'])} s ({phases}); {one['rollout_tokens_per_s']:,.0f} sampled "
                f"tokens/s; engine and trainer differ by {_number(one['mismatch'])} nats",
                n=str(one["num_steps"]),
            )
        )
        if one.get("checkpoint_s") is not None:
            rows.append(
                Row(
                    case=f"{one['model']}: a checkpoint of {_number(one['checkpoint_gb'])} GB",
                    measured=f"{_number(one['checkpoint_s'])} s",
                    n="1",
                )
            )
    return [*rows, *_run_rows(records), *_kernel_rows(records)]


def _kernel_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the idle share of a profiled step, and a row per kernel."""
    rows = []
    for one in records:
        if "kernels" not in one:
            continue
        case = f"{one['model']}: idle share of a profiled step, at most"
        rows.append(
            Row(case=case, measured=f"{one['idle_frac']:.1%} of {_number(one['profiled_s'])} s", n="1")
        )
        for kernel in one["kernels"]:
            found = f"{_number(1e3 * kernel['seconds'])} ms in {kernel['calls']:,} calls"
            name = kernel["name"].replace("|", "/")
            rows.append(Row(case=f"kernel `{name}`", measured=f"{found}, {kernel['frac']:.1%} of all", n="1"))
    return rows


def _mismatch_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [
        Row(
            case=f"{one['model']}, bfloat16, cache {one['kv_cache_dtype']}: engine and trainer",
            measured=f"differ by {_number(one['mismatch'])} nats per token",
            n=str(one["num_steps"]),
        )
        for one in records
    ]


def _learning_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    rows = []
    for one in records:
        rewards = one["rewards"]
        shown = rewards[:: max(1, len(rewards) // 8)]
        told = " ".join(f"{reward:.2f}" for reward in shown)
        rows.append(Row(case=f"reward over {len(rewards)} steps", measured=told, n="1"))
        for name, (first, last) in one["evaluations"].items():
            low, high = last["interval"] or (None, None)
            rows.append(
                Row(
                    case=f"{name}, Mean@{last['k']}",
                    measured=f"{first['mean']:.1%} before, {last['mean']:.1%} at step {last['step']}",
                    interval="" if low is None else f"{low:.1%} to {high:.1%}",
                    n="1",
                )
            )
    return rows


def _rollout_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [
        Row(
            case=f"{one['parameters'] / 1e6:,.0f}M parameters, {one['completions']} completions of "
            f"{one['tokens_each']} tokens, runner {one['model_runner']}",
            measured=f"{one['atrium_per_s']:,} tokens/s, bare vLLM {one['bare_per_s']:,}; weights "
            f"handed over in {_number(one['sync_s_med'])} s, start {_number(one['start_s'])} s",
            ratio=f"{one['atrium_to_bare_per_s']:.2f}",
        )
        for one in records
    ]


def _placement_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    rows = []
    for one in records:
        inside, server = (_number(one[placement]["time/step_s"]) for placement in ("inside", "server"))
        factor = f"{one['machine_factor']:.2f} x " if one["machine_factor"] != 1 else ""
        reached = f"{one['reached']:.0%} of what {factor}max(sampling, update) allows"
        told = f"{server} s, inside {inside} s; {reached}"
        case = f"{one['model']}, {one['engine']}, rollout.lag=1: a step with a server to one inside"
        rows.append(Row(case=case, measured=told, ratio=f"{one['step_ratio']:.2f}", n=str(one["rounds"])))
    return rows


def _gpu_step_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [
        Row(
            case=f"{one['program'].partition('_')[0]}: {one['params'] / 1e6:.2f}M parameters, "
            f"{one['max_new_tokens']} tokens, {one['dtype']}",
            measured=f"{_number(one['wall_med'])} s, of which sampling {_number(one['generate_med'])} s",
            n=str(one["steps"]),
        )
        for one in records
    ]


def _throughput_rows(records: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [
        Row(
            case=f"{one['model']}, micro-batches of {one['micro_batch_tokens']:,} tokens"
            + (", compiled" if one["compile"] else ""),
            measured=f"{one['tokens_per_s']:,.0f} trained tokens/s, MFU {_percent(one['mfu_frac'])}, "
            f"peak {one['peak_mb']:,.0f} MB",
            n=str(one["repeats"]),
        )
        for one in records
    ]


ROWS = {
    "step": _step_rows,
    "pretrained": _step_rows,
    "loss_stage": _loss_rows,
    "divergences": _divergence_rows,
    "packing": _packing_rows,
    "update_cost": _cost_rows,
    "grading": _grading_rows,
    "placement": _placement_rows,
    "start_up": _start_rows,
    "gpu_correctness": _test_rows,
    "gpu_train": _train_rows,
    "gpu_update": _throughput_rows,
    "gpu_mismatch": _mismatch_rows,
    "gpu_vllm": _test_rows,
    "gpu_memory": _run_rows,
    "loss_stage_cuda": _loss_rows,
    "gpu_rollout": _rollout_rows,
    "gpu_learning": _learning_rows,
    "gpu_placement": _placement_rows,
    "gpu_compile": _throughput_rows,
    "gpu_step": _gpu_step_rows,
}


def _with_ratio(case: str, measured: str, ratio: Mapping[str, Any], num_repeats: int) -> Row:
    low, high = ratio["interval"]
    return Row(
        case=case,
        measured=measured,
        ratio=f"{ratio['ratio']:.2f}",
        interval=f"{low:.2f} to {high:.2f}",
        n=str(num_repeats),
    )


def _median(records: Sequence[Mapping[str, Any]], key: str) -> float:
    return statistics.median(one[key] for one in records)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _peak(megabytes: float | None) -> str:
    if megabytes is None:
        return "peak not seen"
    return f"peak {megabytes:,.0f} MB" if megabytes >= 1 else "within memory that was held already"


def _percent(share: float | None) -> str:
    return "unknown for this device" if share is None else f"{share:.1%}"
