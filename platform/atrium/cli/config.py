"""`atrium config`: the complete, resolved configuration that settings give, as JSON. Trains nothing."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from atrium.config.compose import compose, to_json

_HELP = """\
Usage: atrium config [OVERRIDES]

Prints the configuration that `atrium train OVERRIDES` would run, as it is stored in the record of a
run: validated, every default filled in, every `auto` replaced by what it means on this machine.
`atrium train OVERRIDES --cfg job` prints it as the files have it.
"""


def main(argv: Sequence[str]) -> int:
    """Print the configuration of the overrides `argv`, or raise `ConfigError`."""
    if {"-h", "--help"} & set(argv):
        sys.stdout.write(_HELP)
        return 0
    sys.stdout.write(to_json(compose(argv)))
    return 0
