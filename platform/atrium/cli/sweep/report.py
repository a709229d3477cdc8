"""`atrium sweep report` and `atrium sweep list`: write a sweep's report and print it; list all sweeps."""

from __future__ import annotations

import sys
from pathlib import Path

from atrium.base.atomic import explained
from atrium.base.recorded import read_object
from atrium.sweep.analysis import sweep_report
from atrium.sweep.claims import Claims, this_worker
from atrium.sweep.document import sweep_document
from atrium.sweep.figures import sweep_pictures
from atrium.sweep.report_files import write_report
from atrium.sweep.setup import join, known_storage, open_studies, report_folder, sweep_names
from atrium.sweep.snapshot import STATE_FILE, snapshot, sweep_folder, write_state
from atrium.sweep.storage import SweepStorage
from atrium.views.figures.sheet import save
from atrium.views.terminal import print_document, standard_output, tell


def report(runs_dir: str, name: str, url: str | None = None) -> int:
    """Write a sweep's report, and print it."""
    storage = SweepStorage(url or known_storage(runs_dir, name))
    definition, created = join(storage, name, runs_dir)
    folder = report_folder(runs_dir, name)
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
    return 0


def list_sweeps(runs_dir: str) -> int:
    """Say which sweeps there are and how they stand."""
    names = sweep_names(runs_dir)
    if not names:
        sys.stdout.write(f"there are no sweeps in {runs_dir}; `atrium sweep --help` says how to make one\n")
    for name in names:
        state, _ = read_object(sweep_folder(runs_dir, name) / STATE_FILE)
        stages = state.get("stages")
        counts = ", ".join(
            f"{stage['name']} {stage['num_ended']} of {stage['num_trials'] or '?'}"
            for stage in (stages if isinstance(stages, list) else [])
        )
        sys.stdout.write(f"{name}  {state.get('state', 'unknown')}  {counts}\n")
    return 0
