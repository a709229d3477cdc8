"""`atrium config`: the complete configuration that settings give."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from atrium.cli.parser import CommandParser
from atrium.config.compose import compose, to_json

_DESCRIPTION = """\
Print the configuration that `atrium train OVERRIDES` would run, as it is stored in the record of a run:
validated, every default filled in, every `auto` replaced by what it means on this machine.
`atrium train OVERRIDES --cfg job` prints it as the files have it."""


def main(argv: Sequence[str]) -> int:
    """Print the configuration of the overrides `argv`, or raise `ConfigError`."""
    parser = CommandParser("config", _DESCRIPTION)
    parser.add_overrides()
    parser.add_seed_plan()
    sys.stdout.write(to_json(compose(parser.parse(argv).overrides)))
    return 0
