"""`atrium sweep`: run a sweep with workers on this machine, join one from elsewhere, report on one."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Sequence

from atrium.base.errors import ConfigError
from atrium.cli.parser import CommandParser
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
    command = argv[0] if argv else "--help"
    if command in ("-h", "--help", "help"):
        from atrium.sweep.files import shipped_names

        names = f"NAME is one of {', '.join(shipped_names())}, or a path to a YAML file of your own."
        sys.stdout.write(_USAGE.format(names=textwrap.fill(names, 80)))
        return 0
    below = {"report": _report, "worker": _worker, "list": _list}
    return below[command](argv[1:]) if command in below else _run(argv)


def _run(argv: Sequence[str]) -> int:
    parser = CommandParser("sweep", "Run a sweep; `atrium sweep --help` says more.")
    parser.add_argument("name", metavar="NAME")
    parser.add_overrides(_OWN)
    parser.add_seed_plan()
    arguments = parser.parse(argv)
    options, overrides = _options(arguments.overrides, _OWN)
    num_workers = _count(options.get("workers", "1"), "workers")
    from atrium.assemble.sweep_workers import predictions_commit, run_sweep, sweep_definition

    definition = sweep_definition(arguments.name, options, overrides)
    if "plan" in options:
        from atrium.assemble.outlook import outlook

        sys.stdout.write("\n".join(outlook(definition, options["plan"], num_workers)) + "\n")
        return 0
    predicted_at = predictions_commit(arguments.name, definition)
    return run_sweep(definition, options.get("storage"), num_workers, predicted_at)


def _worker(argv: Sequence[str]) -> int:
    name, options = _of_a_sweep("worker", argv)
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


def _report(argv: Sequence[str]) -> int:
    name, options = _of_a_sweep("report", argv)
    from atrium.cli.sweep.report import report

    runs_dir = options.get("runs_dir", "runs")
    return report(runs_dir, name, _known_url(name, runs_dir, options.get("storage")))


def _list(argv: Sequence[str]) -> int:
    parser = CommandParser("sweep list", "List the sweeps of a runs folder.")
    parser.add_overrides(_OWN)
    options, _ = _options(parser.parse(argv).overrides, ("runs_dir",))
    from atrium.cli.sweep.report import list_sweeps

    return list_sweeps(options.get("runs_dir", "runs"))


def _of_a_sweep(command: str, argv: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The name of a sweep that there is, and the options of a command on it."""
    parser = CommandParser(f"sweep {command}", "`atrium sweep --help` says more.")
    parser.add_argument("name", metavar="NAME", help="a sweep that `atrium sweep list` lists")
    parser.add_overrides(_OWN)
    arguments = parser.parse(argv)
    options, _ = _options(arguments.overrides, ("storage", "runs_dir"))
    return arguments.name, options


def _options(lines: Sequence[str], allowed: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The sweep's own options, and the settings of its runs, which only a new one has."""
    options: dict[str, str] = {}
    overrides = []
    for line in lines:
        key, has_value, value = line.partition("=")
        if not has_value:
            raise ConfigError(f"atrium sweep {line}: write KEY=VALUE{suggestion(key, _OWN)}")
        if key in allowed:
            options[key] = value
        elif allowed == _OWN:
            overrides.append(line)
        else:
            said = "does not go with this command" if key in _OWN else "a sweep keeps its settings"
            raise ConfigError(f"atrium sweep {line}: {said}; allowed are {', '.join(allowed)}")
    return options, overrides


def _known_url(name: str, runs_dir: str, wanted: str | None) -> str:
    """The storage of a sweep: as given, as the command's workers are told, or as its folder says."""
    from atrium.sweep.setup import STORAGE_VARIABLE, known_storage
    from atrium.sweep.snapshot import sweep_folder
    from atrium.sweep.storage import storage_url

    url = wanted or os.environ.get(STORAGE_VARIABLE)
    return storage_url(url, sweep_folder(runs_dir, name)) if url else known_storage(runs_dir, name)


def _count(text: str, name: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{name}={text}: allowed is a whole number of at least 1")
    return int(text)
