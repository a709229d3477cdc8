"""Shell completion: Hydra's own, for a command that has subcommands.

`atrium -sc install=bash` prints Hydra's script, which then asks `atrium -sc query=bash` about the
line typed so far. The first word is completed here; after `train` and `config` Hydra completes groups,
options and keys; for other commands the shell is left to complete files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from atrium.cli.app import COMMANDS

_WITH_OVERRIDES = ("train", "config")


def main(argv: Sequence[str]) -> int:
    """Answer `install=SHELL`, `uninstall=SHELL` or `query=SHELL`; `ConfigError` for anything else."""
    from atrium.cli.train.hydra_flags import check_completion, run_hydra

    check_completion(argv)
    if argv[0].startswith("query="):
        program, _, line = os.environ.get("COMP_LINE", "").lstrip().partition(" ")
        command, separator, rest = line.lstrip().partition(" ")
        if not separator:
            sys.stdout.write(" ".join(name for name in COMMANDS if name.startswith(command)) + "\n")
            return 0
        if command not in _WITH_OVERRIDES:
            return 0
        os.environ["COMP_LINE"] = f"{program} {rest}"
    run_hydra(["--shell-completion"], argv)
    return 0
