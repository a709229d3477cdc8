"""The figures of runs and evaluations, saved in the subfolder `figures/` of the run directory."""

from __future__ import annotations

from atrium.base.atomic import explained
from atrium.compare.run_figures import evaluation_pictures, run_pictures
from atrium.runs.run_folder import RunFolder
from atrium.views.figures.sheet import save


def draw_run(folder: RunFolder) -> None:
    """Draw a run's training curves.

    Raises `RunFolderError` if a file cannot be read or written.
    """
    with explained("draw the figures of", folder.path):
        save(run_pictures(folder), folder.figures_dir, folder.cache_dir, ("png",))


def draw_evaluation(folder: RunFolder) -> None:
    """Draw the latest scores of each benchmark, such as Pass@k, against k.

    Raises `RunFolderError` if a file cannot be read or written.
    """
    with explained("draw the figures of", folder.path):
        save(evaluation_pictures(folder), folder.figures_dir, folder.cache_dir)
