"""An open run, for tests of the parts that are built from one."""

from __future__ import annotations

from contextlib import ExitStack

from atrium.assemble.run import Run
from atrium.runs.listener import Listener
from atrium.train.ranks.ranks import SINGLE


def opened_run(config, folder, said, ranks=SINGLE):
    """A run that is open in a folder; what it tells people is appended to `said`."""
    listener = Listener()
    listener.message = said.append
    return Run(
        config=config,
        folder=folder,
        ranks=ranks,
        listener=listener,
        closing=ExitStack(),
        checkpoint=None,
        summary={},
    )
