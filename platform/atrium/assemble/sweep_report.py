"""A sweep's report: files and figures in the sweep's folder, and a summary in the terminal."""

from __future__ import annotations

from pathlib import Path

from atrium.base.atomic import explained
from atrium.sweep.analysis import sweep_report
from atrium.sweep.claims import Claims, this_worker
from atrium.sweep.document import sweep_document
from atrium.sweep.figures import sweep_pictures
from atrium.sweep.report_files import write_report
from atrium.sweep.setup import join, known_storage, open_studies
from atrium.sweep.snapshot import snapshot, sweep_folder, write_state
from atrium.sweep.storage import SweepStorage
from atrium.views.figures.sheet import save
from atrium.views.terminal import print_document, standard_output, tell


def report(runs_dir: str, name: str, url: str | None = None) -> None:
    """Write the report of a sweep to its folder, and print it.

    `url` is the address of the sweep's storage. None means the address in the environment or in the
    sweep's folder.
    """
    storage = SweepStorage(known_storage(runs_dir, name, url))
    definition, created = join(storage, name, runs_dir)
    folder = sweep_folder(runs_dir, name) / "report"
    with storage.explained():
        studies = open_studies(storage, definition)
        state = snapshot(studies, Claims(storage, name, this_worker()), created)
        found = sweep_report(studies, state)
    with explained("write the report of sweep", folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_state(folder.parent, state)
        drawn = save(sweep_pictures(found), folder, Path(runs_dir) / ".cache")
        figures = [path for path in drawn if path.suffix == ".png"]
        document = sweep_document(found, write_report(folder, studies, found, figures))
    console = standard_output()
    tell(console, document.title)
    print_document(console, document)
