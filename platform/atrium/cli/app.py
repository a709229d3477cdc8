"""The command `atrium`: dispatch to subcommands, and one-line messages for expected errors.

This module imports nothing heavy, so that help and error messages appear at once. A subcommand's module is
imported only when the subcommand runs.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from atrium import __version__
from atrium.base import plugins
from atrium.base.errors import AtriumError, ConfigError, Interrupted, MissingDependencyError
from atrium.base.loading import loading
from atrium.cli.parser import CommandParser
from atrium.config.nearest import shown, suggestion

INTERRUPTED = 130
SHELLS = ("bash", "fish", "zsh")
_BROKEN_PIPE = 141
_MODULES = {"import": "import_results"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`, by default the arguments of this process, and return its exit code.

    A user error is printed as one line on standard error, and the `exit_code` of its class is returned (2 for
    an invalid setting or command line). The exit code is 130 after an interruption, 141 if the reader of the
    output has exited, and 1 if the output's disk is full. Any other exception is a bug and is raised.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _complete_streams()
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except Interrupted as error:
        sys.stderr.write(f"{error.line}\n")
        return error.exit_code
    except AtriumError as error:
        sys.stderr.write(f"error: {error.line}\n")
        return error.exit_code
    except SystemExit:
        return 0  # argparse exits after `--help`; mistakes raise errors
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the pipe has exited, as in `atrium runs | head`.
        _print_no_more()
        return _BROKEN_PIPE
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _print_no_more()
        sys.stderr.write("error: cannot print the output because its disk is full; free some space\n")
        return AtriumError.exit_code
    return code


def _print_no_more() -> None:
    """Discard all further output, including buffered output at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complete_streams() -> None:
    """Redirect closed streams to the null device, and replace characters that a stream cannot encode.

    Without the redirection, the next file to be opened would get the descriptor of a closed stream, and
    output to that stream would end up in the file.
    """
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            with suppress(OSError):
                os.fstat(number)
                continue  # another open file has this descriptor
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - never closed
        elif isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _run(given: Sequence[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0
    parser = _parser()
    arguments, rest = parser.parse_known_args(list(given))
    if given[0].startswith("-") and given[0] in rest:
        parser.refuse(given[0], given)
    if arguments.shell_completion:
        from atrium.cli.completion import complete

        return complete(arguments.shell_completion, list(COMMANDS))
    try:
        os.getcwd()  # noqa: PTH109 - checks only that it exists
    except FileNotFoundError as error:
        raise ConfigError("the current folder was removed; change to an existing folder") from error
    name = arguments.command
    if name not in COMMANDS:
        raise ConfigError(
            f"atrium {shown(name)}: there is no such command"
            + (suggestion(name, COMMANDS) or f"; use one of {', '.join(COMMANDS)}.")
            + " `atrium --help` describes the commands"
        )
    plugins.load(arguments.plugin)
    try:
        with loading():
            module = importlib.import_module(module_of(name))
        with plugins.explained():
            return int(module.main(rest))
    except ModuleNotFoundError as error:
        raise _missing_package(name, error) from error


def module_of(command: str) -> str:
    """Return the full name of a subcommand's module.

    The module of the subcommand `import` has a different name, since `import` is a Python keyword.
    """
    return f"atrium.cli.{_MODULES.get(command, command.replace('-', '_'))}"


def _parser() -> CommandParser:
    """Return the parser of the subcommand's name and of the arguments that all subcommands accept."""
    parser = CommandParser("", has_help=False)
    parser.add_argument("command", nargs="?", default="")
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a Python file with classes of your own (repeatable)",
    )
    parser.add_argument(
        "-sc",
        "--shell-completion",
        choices=[f"{what}={shell}" for what in ("install", "uninstall", "query") for shell in SHELLS],
        metavar="WHAT=SHELL",
        help="manage shell completion, such as install=bash",
    )
    parser.add_argument("-V", "--version", action="version", version=f"atrium {__version__}")
    return parser


def _missing_package(name: str, error: ModuleNotFoundError) -> Exception:
    """Return an error that names the extra to install, or `error` itself if the extra is installed.

    `name` is the subcommand that raised `error`.
    """
    from atrium.assemble.doctor import PLATFORM, missing_packages

    if not missing_packages():
        return error
    return MissingDependencyError(
        f"atrium {name} needs the package {error.name} and the rest of the extra `{PLATFORM}`: pip install "
        f"'.[{PLATFORM}]' in a checkout, or 'FILE.whl[{PLATFORM}]' from a wheel"
    )


def _help() -> str:
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return (
        "Atrium: declarative experiments in reinforcement learning with verifiable rewards.\n\n"
        "Usage: atrium COMMAND [ARGUMENTS]\n\n" + "\n".join(lines) + "\n\nExamples:\n"
        "  atrium train                                 train on the built-in task in about a minute\n"
        "  atrium train algorithm=grpo divergence.delta=0.1 seed=1\n"
        "  atrium train --help                          list every setting with its values\n"
        "  atrium show last                             show the results of the latest run\n\n"
        "COMMAND --plugin FILE.py first loads your own classes (docs/extending.md).\n"
        "`atrium COMMAND --help` describes a command. Tab completion:\n"
        '  eval "$(atrium -sc install=bash)"            or install=zsh; atrium -sc install=fish | source\n'
    )


COMMANDS: Mapping[str, str] = {
    "train": "Train a policy, or resume a run",
    "evaluate": "Evaluate a model or a checkpoint on benchmarks",
    "config": "Print the complete configuration for some settings",
    "samples": "Show an evaluation by problem, or write its rows for other programs",
    "memory": "Predict the memory that settings need, by phase",
    "runs": "List the runs",
    "show": "Show a run's settings, curves and samples",
    "import": "Import results of other programs as runs",
    "compare": "Show which differences between runs are real",
    "report": "Write a comparison to send: HTML, a LaTeX table, sentences",
    "dashboard": "Show and compare runs in a browser, live",
    "sync": "Send runs, or their missing rows, to MLflow, W&B or other trackers",
    "diff": "List where two runs differ: settings, code, environment",
    "rerun": "Repeat a run with its own settings",
    "export": "Write a run's policy as a transformers folder",
    "clean": "List the files that runs do not need, and delete them",
    "sweep": "Run many settings on several seeds, and compare the best with a baseline",
    "audit": "Report what a published table of scores cannot establish",
    "claim": "Check claims of papers against runs or tables; reproduce a paper",
    "objectives": "Show methods as choices on axes, side by side",
    "windows": "Show the ratios that divergences allow, and draw them",
    "figures": "Draw the effect of a trust region on the tokens of stored rollouts",
    "atlas": "Show which methods have the same gradient, and draw it",
    "theory": "Show the consequences of theorems for methods, and draw them",
    "engine-command": "Print the command that starts a vLLM server on another machine",
    "doctor": "Check this machine, and list what is missing and which features need it",
}
"""Descriptions of the subcommands; `main` of the module `module_of(name)` gets the remaining arguments."""
