"""The entry points of the commands over the runs folder; each is imported when it is used.

So `atrium doctor` answers where packages that the others need are missing.
"""

from __future__ import annotations


def main_runs(argv: list[str]) -> int:
    """List the runs."""
    from atrium.cli import runs_list

    return runs_list.main_runs(argv)


def main_show(argv: list[str]) -> int:
    """Print what is known about one run."""
    from atrium.cli import runs_show

    return runs_show.main_show(argv)


def main_rerun(argv: list[str]) -> int:
    """Train a new run with the stored settings of another."""
    from atrium.cli import runs_rerun

    return runs_rerun.main_rerun(argv)


def main_export(argv: list[str]) -> int:
    """Copy a checkpoint's policy to a folder that transformers loads."""
    from atrium.cli import runs_export

    return runs_export.main_export(argv)


def main_clean(argv: list[str]) -> int:
    """List what can be deleted, and delete it where that is confirmed."""
    from atrium.cli import runs_clean

    return runs_clean.main_clean(argv)


def main_doctor(argv: list[str]) -> int:
    """Check the environment; 1 where a base requirement is missing, else 0."""
    from atrium.cli import runs_doctor

    return runs_doctor.main_doctor(argv)
