"""The processes that mirror a run while it trains: started late, with low priority, never waited for.

A tracker's packages take seconds to import, and its server may be slow; none of that is training's
business. Each tracker gets a process that runs `atrium sync RUN --to TRACKER --follow` in a session of its
own, so that Ctrl-C in the terminal ends training and not the delivery.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from atrium.base.plain_files import append_plain
from atrium.runs.listener import Listener
from atrium.runs.mirrors.delivery import LINGER_S, delivered_file, mirrors_dir, read_delivered
from atrium.runs.mirrors.targets import log_file
from atrium.runs.run_folder import RunFolder
from atrium.runs.status import RunState

SWITCH = "ATRIUM_MIRRORS"
"""The environment variable that keeps all mirrors off when it is `off`, whatever the settings say."""


class MirrorProcesses(Listener):
    """The mirrors of one run. `log` receives what people should know, each problem once."""

    name = "what starts the mirrors"

    def __init__(self, folder: RunFolder, kinds: Sequence[str], log: Callable[[str], None]) -> None:
        self._folder, self._log = folder, log
        self._kinds = () if os.environ.get(SWITCH) == "off" else tuple(kinds)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._seen: dict[str, int] = {}
        self._ended: set[str] = set()
        self._troubled: set[str] = set()
        self._is_started = False

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Start the mirrors after the first step; later, pass on what they reported. Costs microseconds."""
        del step, metrics
        if not self._is_started:
            self._start()
            return
        for kind in self._processes:
            self._pass_on(kind)

    def end(self, state: RunState, error: str | None = None, cause: str | None = None) -> None:
        """Say what is still on its way now that the run has ended; waits for nothing."""
        del state, error, cause
        for kind in self._processes:
            self._pass_on(kind)
            delivered = read_delivered(self._folder, kind)
            if delivered.problem is not None:
                self._log(f"{kind}: not delivered yet; {self._command(kind)} delivers it later")
            elif delivered.final_state is None:
                self._log(
                    f"{kind}: the rest is delivered in the background within {LINGER_S:.0f} s; "
                    f"{self._command(kind)} makes sure of it"
                )

    def _command(self, kind: str) -> str:
        return f"`atrium sync {self._folder.path} --to {kind}`"

    def _start(self) -> None:
        self._is_started = True
        for kind in self._kinds:
            try:
                self._processes[kind] = _DETACHED[id(self), kind] = self._started(kind)
            except OSError as error:
                self._log(
                    f"{kind}: its process cannot start ({error.strerror}); training goes on, and "
                    f"{self._command(kind)} delivers it later"
                )

    def _started(self, kind: str) -> subprocess.Popen[bytes]:
        mirrors_dir(self._folder).mkdir(exist_ok=True)
        self._seen[kind] = _changed(self._folder, kind)
        command = [sys.executable, "-m", "atrium", "sync", str(self._folder.path.absolute())]
        with append_plain(log_file(self._folder)) as output:
            return subprocess.Popen(
                [*command, "--to", kind, "--follow"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            )

    def _pass_on(self, kind: str) -> None:
        if (code := self._processes[kind].poll()) and kind not in self._ended:
            self._ended.add(kind)
            self._log(
                f"{kind}: its process ended early (code {code}, see {log_file(self._folder)}); training goes "
                f"on, and {self._command(kind)} delivers it later"
            )
        changed = _changed(self._folder, kind)
        if changed == self._seen.get(kind):
            return
        self._seen[kind] = changed
        problem = read_delivered(self._folder, kind).problem
        if problem is not None and kind not in self._troubled:
            self._log(f"{problem}; training goes on, and what is missed is delivered later")
        (self._troubled.discard if problem is None else self._troubled.add)(kind)


def _changed(folder: RunFolder, kind: str) -> int:
    try:
        return delivered_file(folder, kind).stat().st_mtime_ns
    except OSError:
        return 0


_DETACHED: dict[tuple[int, str], subprocess.Popen[bytes]] = {}
"""Processes outlive their run; one that is forgotten while it lives is complained about by Python."""
