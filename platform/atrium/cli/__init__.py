"""The command line; subcommands are imported when they are used."""

from atrium.cli.app import main

__all__ = ["main"]
