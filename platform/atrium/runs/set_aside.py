"""What a run no longer goes on from: moved into `set-aside/` of its folder, never deleted."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from atrium.base.atomic import replacing
from atrium.base.json_lines import Record, split_lines
from atrium.runs.layout import RunLayout, step_name


class SetAside:
    """Takes what is cut from `run` when it goes back to `step`, each thing at the place that it had.

    `folder` is `set-aside/<time>-<step>-<4 hex>/`, made when there is something to take; None until then.
    """

    def __init__(self, run: RunLayout, step: int) -> None:
        self.folder: Path | None = None
        self._run = run
        self._step = step

    def move(self, path: Path) -> None:
        """Take a file or a folder as a whole."""
        shutil.move(path, self._place(path))  # unlike a rename, to another disk too, where a link leads there

    def cut_lines(self, path: Path, is_kept: Callable[[Record], bool]) -> None:
        """Take the lines that are not kept; those that are stay, their bytes unchanged."""
        kept, cut = split_lines(path, is_kept)
        if not cut:
            return
        # In this order, a crash in between leaves lines twice rather than nowhere.
        for place, lines in ((self._place(path), cut), (path, kept)):
            with replacing(place) as temporary:
                temporary.write_bytes(lines)

    def _place(self, path: Path) -> Path:
        if self.folder is None:
            start = time.strftime("%Y%m%d-%H%M%S")
            name = f"{start}-after-{step_name(self._step)}-{secrets.token_hex(2)}"
            self.folder = self._run.set_aside_dir / name
        place = self.folder / path.relative_to(self._run.path)
        place.parent.mkdir(parents=True, exist_ok=True)
        return place
