"""Storage for records that a run no longer uses: they are moved to `set-aside/`, never deleted."""

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
    """A new folder in `set-aside/` for the records of `run` after `step`.

    The records keep their paths relative to the run directory. `folder` is the path of the new folder, or
    None until the first record is moved.
    """

    def __init__(self, run: RunLayout, step: int) -> None:
        self.folder: Path | None = None
        self._run = run
        self._step = step

    def move(self, path: Path) -> None:
        """Move a file, or a folder with its content, out of the run's records."""
        shutil.move(path, self._place(path))  # unlike a rename, also works through links to other disks

    def cut_lines(self, path: Path, is_kept: Callable[[Record], bool]) -> None:
        """Move the lines of a JSON Lines file for which `is_kept` returns False.

        Damaged and incomplete lines are moved too. The other lines stay in the file, bitwise identical.
        """
        kept, cut = split_lines(path, is_kept)
        if not cut:
            return
        # In this order, a crash in between duplicates lines rather than losing them.
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
