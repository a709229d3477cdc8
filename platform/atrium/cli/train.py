"""`atrium train`: train one run, or several with --multirun."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from atrium.assemble.beginning import Origin, begin, begin_many
from atrium.base.errors import ConfigError
from atrium.cli.parser import CommandParser, whole
from atrium.config.compose import composed_text, with_files
from atrium.config.help import help_text

_OWN_FILES = (
    "Atrium's own configuration files are always the base; use overrides, or your own files as in "
    "algorithm=./mine.yaml"
)
_OF_HYDRA = {
    **dict.fromkeys(("--config-path", "--config-name", "--config-dir", "--experimental-rerun"), _OWN_FILES),
    "--info": "use `atrium config` for the complete configuration, and --cfg job for that of the files",
}


def main(argv: Sequence[str]) -> int:
    """Train runs, or print the help or a configuration, and return the exit code; may raise `AtriumError`."""
    arguments = train_parser().parse(argv)
    if arguments.help:
        sys.stdout.write(help_text([word for word in arguments.overrides if "=" not in word]))
        return 0
    run, overrides = _resumed_run(arguments)
    if run is not None and (arguments.multirun or arguments.cfg or arguments.from_config):
        raise ConfigError(
            f"resume={run} cannot be combined with other flags, since a run resumes with its own "
            f"settings (`atrium show {run}` lists them); remove the flags"
        )
    if arguments.cfg:
        sys.stdout.write(
            composed_text(overrides, arguments.cfg, arguments.package, resolve=arguments.resolve)
        )
        return 0
    if arguments.resolve or arguments.package:
        raise ConfigError("atrium train: --resolve and --package require --cfg; use --cfg job --resolve")
    if arguments.multirun:
        return begin_many(overrides)
    origin = Origin.named(run, arguments.from_step, arguments.from_config)
    begin(origin, overrides, prints_job=arguments.print_script)
    return 0


def train_parser() -> CommandParser:
    """Return the parser of `atrium train`; its help is in `atrium.config.help`."""
    parser = CommandParser("train", has_help=False, elsewhere=_OF_HYDRA)
    parser.add_overrides()
    parser.add_seed_plan()
    parser.add_argument("-h", "--help", action="store_true")
    single = parser.add_mutually_exclusive_group()
    single.add_argument("-m", "--multirun", action="store_true")
    single.add_argument("-c", "--cfg", choices=("job", "hydra", "all"), help="job, hydra or all")
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("-p", "--package", metavar="P", help="a section of the configuration")
    parser.add_argument("--resume", metavar="RUN", help="a run from `atrium runs`, or RUN@STEP")
    parser.add_argument(
        "--from-step", type=whole(0), metavar="N", help="a step that has a checkpoint, or 0 for the start"
    )
    single.add_argument("--from-config", metavar="FILE", help="a run's config.json; see `atrium rerun`")
    # Profile the second step, since the first includes one-time costs.
    parser.add_argument("--profile", dest="flagged", action="append_const", const="compute.profile_step=2")
    parser.add_argument("--print-script", action="store_true")
    return parser


def _resumed_run(arguments: argparse.Namespace) -> tuple[str | None, list[str]]:
    """Return the run of `--resume RUN` or `resume=RUN` (None without either), and all other overrides.

    In the overrides, the user's own configuration files are replaced by their settings.
    """
    run, overrides = arguments.resume, []
    for line in with_files(arguments.overrides):
        key, _, value = line.partition("=")
        if key.lstrip("+") != "resume":
            overrides.append(line)
        elif not value:
            raise ConfigError(
                f"{line}: expected the name of a run after --resume; `atrium runs` lists the runs"
            )
        elif value != "null":
            run = value
    return run, overrides
