"""`atrium sweep`: run a sweep, add a worker to it from any machine, write its report, or list sweeps."""

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

  workers=N        processes on this machine, each with its own GPU if there are any (default 1)
  budget=tiny      run all parts in about five CPU minutes, for testing only: no conclusions
  storage=URL      journal (default), sqlite, or a database: postgresql+psycopg://user@host/name
  runs_dir=PATH    where runs and sweeps are written (default runs)
  name=NAME        another name, to keep an earlier sweep
  trials=N         another number of settings
  seeds=0,1,2      other seeds
  --planned-seeds N, --looks 3,N
                   numbers of seeds at which comparisons of these runs give verdicts (default: all)
  plan=H100        print the runs, hours and GB needed on this kind of GPU, without starting anything
  KEY=VALUE        any setting of a run, for all trials: num_steps=20 rollout.group_size=4 ...

Ctrl-C stops after the current step; the same command resumes the sweep. More workers can join at
any time from any machine with access to the storage and runs_dir: `atrium sweep worker NAME`.
`atrium sweep report NAME` writes settings with intervals, figures, CSV and winner.yaml to
runs/sweeps/NAME/report/; `atrium train experiment=runs/sweeps/NAME/report/winner.yaml` runs the winner.
"""
_OWN = ("workers", "budget", "storage", "runs_dir", "name", "trials", "seeds", "plan")


def main(argv: Sequence[str]) -> int:
    """Run the subcommand or sweep in `argv` and return the exit code; may raise `AtriumError`."""
    command = argv[0] if argv else "--help"
    if command in ("-h", "--help", "help"):
        from atrium.sweep.files import shipped_names

        names = f"NAME is one of {', '.join(shipped_names())}, or a path to your own YAML file."
        sys.stdout.write(_USAGE.format(names=textwrap.fill(names, 80)))
        return 0
    below = {"report": _report, "worker": _worker, "list": _list}
    return below[command](argv[1:]) if command in below else _run(argv)


def _run(argv: Sequence[str]) -> int:
    name, options, overrides = _parsed("sweep", argv, _OWN)
    workers = options.get("workers", "1")
    if not workers.isascii() or not workers.isdecimal() or int(workers) < 1:
        raise ConfigError(f"workers must be a whole number of at least 1, got {workers}")
    from atrium.assemble.sweep_workers import predictions_commit, run_sweep, sweep_definition

    definition = sweep_definition(name, options, overrides)
    if "plan" in options:
        from atrium.assemble.outlook import outlook

        sys.stdout.write("\n".join(outlook(definition, options["plan"], int(workers))) + "\n")
        return 0
    predicted_at = predictions_commit(name, definition)
    run_sweep(definition, options.get("storage"), int(workers), predicted_at)
    return 0


def _worker(argv: Sequence[str]) -> int:
    name, options, _ = _parsed("sweep worker", argv, ("storage", "runs_dir"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from atrium.sweep.setup import PARENT_VARIABLE, known_storage

    runs_dir = options.get("runs_dir", "runs")
    url = known_storage(runs_dir, name, options.get("storage"))
    # Import torch only now, since it reads the environment when it is imported.
    from atrium.assemble.sweeping import work
    from atrium.views.live.log_display import StandardOutput

    parent = os.environ.get(PARENT_VARIABLE)
    work(url, name, runs_dir, int(parent) if parent else None, StandardOutput())
    return 0


def _report(argv: Sequence[str]) -> int:
    name, options, _ = _parsed("sweep report", argv, ("storage", "runs_dir"))
    from atrium.assemble.sweep_report import report

    report(options.get("runs_dir", "runs"), name, options.get("storage"))
    return 0


def _list(argv: Sequence[str]) -> int:
    _, options, _ = _parsed("sweep list", argv, ("runs_dir",))
    from atrium.sweep.setup import listed

    sys.stdout.writelines(f"{line}\n" for line in listed(options.get("runs_dir", "runs")))
    return 0


def _parsed(
    command: str, argv: Sequence[str], allowed: Sequence[str]
) -> tuple[str, dict[str, str], list[str]]:
    """Return the sweep's name, the command's options, and the settings of the runs.

    Raises `ConfigError` for an option that is not `allowed`; only `atrium sweep NAME` accepts settings.
    """
    parser = CommandParser(command, "See `atrium sweep --help`.")
    if command != "sweep list":
        parser.add_argument("name", metavar="NAME", help="a sweep from `atrium sweep list`")
    parser.add_overrides(_OWN)
    if allowed == _OWN:
        parser.add_seed_plan()
    arguments = parser.parse(argv)
    options: dict[str, str] = {}
    overrides = []
    for line in arguments.overrides:
        key, has_value, value = line.partition("=")
        if not has_value:
            raise ConfigError(
                f"atrium sweep {line}: expected KEY=VALUE, such as trials=20{suggestion(key, _OWN)}"
            )
        if key in allowed:
            options[key] = value
        elif allowed == _OWN:
            overrides.append(line)
        else:
            said = "unknown option of this command" if key in _OWN else "cannot change a sweep's settings"
            raise ConfigError(f"atrium sweep {line}: {said}; use one of {', '.join(allowed)}")
    return getattr(arguments, "name", ""), options, overrides
