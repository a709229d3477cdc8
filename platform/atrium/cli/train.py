"""`atrium train`: one run, or several with --multirun."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from atrium.assemble.beginning import Origin, begin, begin_many
from atrium.base.errors import ConfigError
from atrium.cli.parser import CommandParser
from atrium.config.compose import composed_text, with_files
from atrium.config.help import help_text

_OWN_FILES = (
    "configuration is read from Atrium's own files only; use overrides, and files of your own, as in "
    "algorithm=./mine.yaml"
)
_OF_HYDRA = {
    **dict.fromkeys(("--config-path", "--config-name", "--config-dir", "--experimental-rerun"), _OWN_FILES),
    "--info": "`atrium config` prints the complete configuration, and --cfg job that of the files",
}


def main(argv: Sequence[str]) -> int:
    """Train as `argv` says, or show what was asked for; the exit code, or an `AtriumError`."""
    arguments = train_parser().parse(argv)
    if arguments.help:
        sys.stdout.write(help_text([word for word in arguments.overrides if "=" not in word]))
        return 0
    run, overrides = _resumed_run(arguments)
    if run is not None and (arguments.multirun or arguments.cfg or arguments.from_config):
        raise ConfigError(
            f"resume={run}: a run is continued alone and with the settings it has; leave out the other "
            f"flags, or see them with `atrium show {run}`"
        )
    if arguments.cfg:
        sys.stdout.write(
            composed_text(overrides, arguments.cfg, arguments.package, resolve=arguments.resolve)
        )
        return 0
    if arguments.resolve or arguments.package:
        raise ConfigError("atrium train: --resolve and --package need --cfg; use --cfg job --resolve")
    if arguments.multirun:
        return begin_many(overrides)
    origin = Origin.named(run, arguments.from_step, arguments.from_config)
    begin(origin, overrides, prints_job=arguments.print_script)
    return 0


def train_parser() -> CommandParser:
    """The arguments of `atrium train`; `atrium.config.help` says what they mean."""
    parser = CommandParser("train", has_help=False, elsewhere=_OF_HYDRA)
    parser.add_overrides()
    parser.add_seed_plan()
    parser.add_argument("-h", "--help", action="store_true")
    single = parser.add_mutually_exclusive_group()
    single.add_argument("-m", "--multirun", action="store_true")
    single.add_argument("-c", "--cfg", choices=("job", "hydra", "all"), help="job, hydra or all")
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("-p", "--package", metavar="P", help="a section of the configuration")
    parser.add_argument("--resume", metavar="RUN", help="one of what `atrium runs` lists, or RUN@STEP")
    parser.add_argument(
        "--from-step", type=int, metavar="N", help="a step that has a checkpoint, or 0 for the start"
    )
    single.add_argument("--from-config", metavar="FILE", help="a run's config.json; see `atrium rerun`")
    # The second step, past first costs.
    parser.add_argument("--profile", dest="flagged", action="append_const", const="compute.profile_step=2")
    parser.add_argument("--print-script", action="store_true")
    return parser


def _resumed_run(arguments: argparse.Namespace) -> tuple[str | None, list[str]]:
    """The run that `--resume RUN` or `resume=RUN` names, and the other overrides, own files read."""
    run, overrides = arguments.resume, []
    for line in with_files(arguments.overrides):
        key, _, value = line.partition("=")
        if key.lstrip("+") != "resume":
            overrides.append(line)
        elif not value:
            raise ConfigError(f"{line}: no run is named; use one that `atrium runs` lists")
        elif value != "null":
            run = value
    return run, overrides
