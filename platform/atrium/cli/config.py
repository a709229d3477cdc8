"""`atrium config`: the complete configuration that results from overrides."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from atrium.cli.parser import CommandParser
from atrium.config.compose import compose, to_json

_DESCRIPTION = """\
Print the configuration that `atrium train OVERRIDES` would run, as stored in the run directory: validated,
with every default filled in and every `auto` replaced by its value on this machine.
`atrium train OVERRIDES --cfg job` prints the values in the files."""


def main(argv: Sequence[str]) -> int:
    """Print the configuration composed from the overrides in `argv`; raise `ConfigError` for invalid ones."""
    parser = CommandParser("config", _DESCRIPTION)
    parser.add_overrides()
    parser.add_seed_plan()
    sys.stdout.write(to_json(compose(parser.parse(argv).overrides)))
    return 0
