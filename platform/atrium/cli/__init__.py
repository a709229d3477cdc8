"""The command line; a subcommand's module is imported only when the subcommand runs."""

from atrium.cli.app import main

__all__ = ["main"]
