"""`atrium sweep`: run a sweep with workers on this machine, join one from elsewhere, report on one."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence

from atrium.base.errors import ConfigError
from atrium.cli.seed_plan import with_seed_plan
from atrium.config.nearest import suggestion

_USAGE = """\
Usage: atrium sweep NAME [workers=N] [budget=tiny] [KEY=VALUE ...]
       atrium sweep report NAME [storage=URL] [runs_dir=PATH]
       atrium sweep worker NAME [storage=URL] [runs_dir=PATH]
       atrium sweep list [runs_dir=PATH]

{names}

  workers=N        processes on this machine, each with a GPU of its own where there are some (default 1)
  budget=tiny      the same sweep in about two minutes: everything runs, nothing can be concluded
  storage=URL      journal (default), sqlite, or a database: postgresql+psycopg://user@host/name
  runs_dir=PATH    where runs and sweeps are written (default runs)
  name=NAME        another name, to keep one beside an earlier one
  trials=N         more or fewer settings than the file says
  seeds=0,1,2      other seeds
  --planned-seeds N, --looks 3,N
                   seeds at which comparisons of these runs give their verdicts (default: all)
  plan=H100        only say how many runs, hours and GB it would take on such GPUs, which need not be here
  KEY=VALUE        any setting of a run, for all trials: num_steps=20 rollout.group_size=4 ...

Ctrl-C stops after the step in progress; the same command goes on where the sweep stands. More workers
may join at any time, from any machine that sees the storage and runs_dir: `atrium sweep worker NAME`.
`atrium sweep report NAME` writes settings with intervals, figures, CSV and winner.yaml into
runs/sweeps/NAME/report/; `atrium train experiment=runs/sweeps/NAME/report/winner.yaml` runs the winner.
"""
_OWN = ("workers", "budget", "storage", "runs_dir", "name", "trials", "seeds", "plan")


def main(argv: Sequence[str]) -> int:
    """Do what `argv` says; the exit code, or an `AtriumError`."""
    command, rest = (argv[0], list(argv[1:])) if argv else ("--help", [])
    if command in ("-h", "--help", "help"):
        from atrium.sweep.files import shipped_names

        names = f"NAME is one of {', '.join(shipped_names())}, or a path to a YAML file of your own."
        sys.stdout.write(_USAGE.format(names=textwrap.fill(names, 80)))
        return 0
    if command == "list":
        return _list(rest)
    if command in ("report", "worker"):
        if not rest:
            raise ConfigError(f"atrium sweep {command}: no sweep is named; `atrium sweep list` lists them")
        return (_report if command == "report" else _worker)(rest[0], rest[1:])
    return _run(command, rest)


def _options(arguments: Sequence[str], allowed: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The sweep's own options, and the overrides of runs among the arguments."""
    options: dict[str, str] = {}
    overrides = []
    for argument in arguments:
        key, has_value, value = argument.removeprefix("--").partition("=")
        if not has_value:
            raise ConfigError(f"atrium sweep {argument}: write KEY=VALUE{suggestion(key, _OWN)}")
        if key not in _OWN:
            overrides.append(argument)
        elif key in allowed:
            options[key] = value
        else:
            raise ConfigError(
                f"atrium sweep {argument}: does not go with this command; allowed are {', '.join(allowed)}"
            )
    return options, overrides


def _no_overrides(overrides: Sequence[str], allowed: Sequence[str]) -> None:
    if overrides:
        raise ConfigError(
            f"atrium sweep {overrides[0]}: a sweep keeps its settings; allowed are {', '.join(allowed)}"
        )


def _run(wanted: str, arguments: Sequence[str]) -> int:
    options, overrides = _options(with_seed_plan(arguments), _OWN)
    num_workers = _count(options.get("workers", "1"), "workers")
    from atrium.cli.sweep.run import predictions_commit, run_sweep, sweep_definition

    definition = sweep_definition(wanted, options, overrides)
    if "plan" in options:
        from atrium.cli.sweep.outlook import outlook

        sys.stdout.write("\n".join(outlook(definition, options["plan"], num_workers)) + "\n")
        return 0
    predicted_at = predictions_commit(wanted, definition)
    return run_sweep(definition, options.get("storage"), num_workers, predicted_at)


def _worker(name: str, arguments: Sequence[str]) -> int:
    allowed = ("storage", "runs_dir")
    options, overrides = _options(arguments, allowed)
    _no_overrides(overrides, allowed)
    runs_dir = options.get("runs_dir", "runs")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from atrium.sweep.setup import PARENT_VARIABLE

    url = _known_url(name, runs_dir, options.get("storage"))
    # Only now: torch reads the environment when it is loaded.
    from atrium.assemble.sweeping import work
    from atrium.views.live.log_display import StandardOutput

    parent = os.environ.get(PARENT_VARIABLE)
    work(url, name, runs_dir, int(parent) if parent else None, StandardOutput())
    return 0


def _report(name: str, arguments: Sequence[str]) -> int:
    allowed = ("storage", "runs_dir")
    options, overrides = _options(arguments, allowed)
    _no_overrides(overrides, allowed)
    from atrium.cli.sweep.report import report

    runs_dir = options.get("runs_dir", "runs")
    return report(runs_dir, name, _known_url(name, runs_dir, options.get("storage")))


def _known_url(name: str, runs_dir: str, wanted: str | None) -> str:
    """The storage of a sweep: as given, as the command's workers are told, or as its folder says."""
    from atrium.sweep.setup import STORAGE_VARIABLE, known_storage
    from atrium.sweep.snapshot import sweep_folder
    from atrium.sweep.storage import storage_url

    url = wanted or os.environ.get(STORAGE_VARIABLE)
    return storage_url(url, sweep_folder(runs_dir, name)) if url else known_storage(runs_dir, name)


def _list(arguments: Sequence[str]) -> int:
    options, overrides = _options(arguments, ("runs_dir",))
    _no_overrides(overrides, ("runs_dir",))
    from atrium.cli.sweep.report import list_sweeps

    return list_sweeps(options.get("runs_dir", "runs"))


def _count(text: str, name: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{name}={text}: allowed is a whole number of at least 1")
    return int(text)
