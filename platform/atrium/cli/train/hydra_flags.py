"""What `atrium train` leaves to Hydra: showing the configuration, completing it, running many jobs.

Hydra reads `sys.argv` and exits by itself; both are contained here. Its settings (in `conf/config.yaml`)
leave logging and the record to Atrium, and its only files lie in `runs_dir/.cache/multirun`.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from atrium.base.errors import ConfigError
from atrium.cli.seed_plan import FLAGS as SEED_PLAN_FLAGS
from atrium.config.compose import HYDRA_VERSION_BASE
from atrium.config.files import CONFIG_NAME, conf_folder
from atrium.config.nearest import is_named, nearest_key, shown, suggestion

PROGRAM = "atrium"
_COMPLETION = re.compile("(install|uninstall|query)=(bash|fish|zsh)")
_REFUSED = ("config_path", "config_name", "config_dir", "experimental_rerun")


class _Parser(argparse.ArgumentParser):
    """Hydra's flags, with mistakes raised instead of printed over several lines."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"atrium train: {message}; `atrium train --help` lists the flags")


def parse_flags(argv: Sequence[str]) -> argparse.Namespace:
    """Hydra's flags and the overrides among them, in any order; `ConfigError` for a wrong flag.

    Flags that would read configuration from elsewhere are refused.
    """
    parser = _Parser(parents=[get_args_parser()], add_help=False)
    flags, unknown = parser.parse_known_intermixed_args(list(argv))
    if unknown:
        own = ("--resume", "--from-step", "--profile", "--print-script", *SEED_PLAN_FLAGS)
        known = [*(name for name in parser._option_string_actions if name.startswith("--")), *own]
        near = _meant(unknown[0], argv, known) or ";"
        raise ConfigError(
            f"atrium train {shown(unknown[0])}: there is no such flag{near} `atrium train --help` lists them"
        )
    for name in _REFUSED:
        if getattr(flags, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"atrium train {flag}: configuration is read from Atrium's own files only; "
                "allowed are overrides, and files of your own, as in algorithm=./mine.yaml"
            )
    chosen = [
        flag for flag, is_given in (
            ("--run", flags.run), ("--multirun", flags.multirun), ("--cfg", flags.cfg), ("--info", flags.info)
        ) if is_given
    ]  # fmt: skip
    if len(chosen) > 1:
        raise ConfigError(f"atrium train: {' and '.join(chosen)} exclude each other; allowed is one")
    if (flags.resolve or flags.package) and not flags.cfg:
        raise ConfigError(
            "atrium train: --resolve and --package go with --cfg; allowed is --cfg job --resolve"
        )
    return flags


def _meant(flag: str, argv: Sequence[str], flags: Sequence[str]) -> str:
    """`; did you mean X?` for an unknown flag: a setting of that name with its value, or the nearest flag."""
    from atrium.cli.train.help import setting_names

    name, _, value = flag.lstrip("-").partition("=")
    name = name.replace("-", "_")
    after = argv[place] if (place := list(argv).index(flag) + 1) < len(argv) else ""
    value = value or (after if "=" not in after and not after.startswith("-") else "") or "VALUE"
    setting = nearest_key(name, setting_names())
    as_setting = f"; did you mean {setting}={value}?" if setting is not None else ""
    return as_setting if setting and is_named(setting, name) else suggestion(flag, flags) or as_setting


def check_completion(asked: Sequence[str]) -> None:
    """`ConfigError` unless `asked` is what a shell asks to complete a line, or its script."""
    is_asked = len(asked) == 1 and _COMPLETION.fullmatch(asked[0])
    if is_asked and asked[0] == "query=bash" and "COMP_LINE" not in os.environ:
        raise ConfigError("query=bash: only bash asks so, which says what was typed in COMP_LINE")
    if not is_asked:
        raise ConfigError(
            "--shell-completion: allowed is one of install, uninstall and query, with bash, "
            "fish or zsh, as in --shell-completion install=bash"
        )


def complete_shell(asked: Sequence[str]) -> None:
    """Print what a shell needs to complete `atrium train`; `ConfigError` where anything else is asked for."""
    check_completion(asked)
    run_hydra(["--shell-completion"], asked)


def run_hydra(
    flags: Sequence[str],
    overrides: Sequence[str] = (),
    *,
    task: Callable[[DictConfig], None] | None = None,
) -> None:
    """Run Hydra with flags and overrides that were checked; `task` gets the configuration of each job."""

    def train(composed: DictConfig) -> None:
        if task is not None:
            task(composed)

    application = hydra.main(
        config_path=str(conf_folder()), config_name=CONFIG_NAME, version_base=HYDRA_VERSION_BASE
    )(train)
    arguments, sys.argv = sys.argv, [PROGRAM, *flags, *overrides]
    logger = logging.getLogger()
    handlers, level = logger.handlers[:], logger.level
    # Hydra then raises errors instead of printing them, so that a defect keeps its traceback.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    try:
        application()
    except SystemExit:
        pass  # how Hydra ends after showing something
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"{' '.join(sys.argv)}: {error}") from error
    finally:
        sys.argv = arguments
        # `--info` prints through a handler that Hydra leaves behind.
        logger.handlers[:], logger.level = handlers, level
