"""The command `atrium`: finds the subcommand, and turns errors meant for the user into one line.

Nothing heavy is imported here, so that help and mistakes answer at once; a subcommand's module is
imported when it is used.
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
    """Run the command line `argv` (by default this process's) and return its exit code.

    Errors meant for the user are one line on standard error and give their own code (2 for a wrong
    setting or command line), an interruption gives 130; anything else is a defect and is raised.
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
        return 0  # argparse's way to end after `--help`; mistakes raise errors
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe went away, as in `atrium runs | head`; there is no one left to tell.
        _print_no_more()
        return _BROKEN_PIPE
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        _print_no_more()
        sys.stderr.write("error: the disk is full to which this prints; make room there\n")
        return AtriumError.exit_code
    return code


def _print_no_more() -> None:
    """Give what is printed from now on to nobody, the rest of a buffer at exit too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complete_streams() -> None:
    """Give a closed stream to nobody, and replace characters that a stream cannot encode.

    A file that is opened next would otherwise get the closed stream's number, and what is printed.
    """
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            with suppress(OSError):
                os.fstat(number)
                continue  # a library holds that number already
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - for good
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
        os.getcwd()  # noqa: PTH109 - only whether it is there
    except FileNotFoundError as error:
        raise ConfigError("the folder in which this runs was removed; change to one that is there") from error
    name = arguments.command
    if name not in COMMANDS:
        raise ConfigError(
            f"atrium {shown(name)}: there is no such command"
            + (suggestion(name, COMMANDS) or f"; commands are {', '.join(COMMANDS)};")
            + " `atrium --help` says what they do"
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
    """The module of a subcommand; `import` is a word of Python's own."""
    return f"atrium.cli.{_MODULES.get(command, command.replace('-', '_'))}"


def _parser() -> CommandParser:
    """The arguments before a command, and those that every command takes."""
    parser = CommandParser("", has_help=False)
    parser.add_argument("command", nargs="?", default="")
    parser.add_argument(
        "--plugin", action="append", default=[], metavar="FILE.py", help="a file with classes of your own"
    )
    parser.add_argument(
        "-sc",
        "--shell-completion",
        choices=[f"{what}={shell}" for what in ("install", "uninstall", "query") for shell in SHELLS],
        metavar="WHAT=SHELL",
        help="such as install=bash",
    )
    parser.add_argument("-V", "--version", action="version", version=f"atrium {__version__}")
    return parser


def _missing_package(name: str, error: ModuleNotFoundError) -> Exception:
    """Name the extra that is missing in the base install; return `error` itself if no package is missing."""
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
        "  atrium train                                 the built-in task, in about a minute\n"
        "  atrium train algorithm=grpo divergence.delta=0.1 seed=1\n"
        "  atrium train --help                          every setting and what it can be\n"
        "  atrium show last                             what the latest run learned\n\n"
        "COMMAND --plugin FILE.py loads classes of your own first (docs/extending.md).\n"
        "`atrium COMMAND --help` says more. Tab completion:\n"
        '  eval "$(atrium -sc install=bash)"            or install=zsh; atrium -sc install=fish | source\n'
    )


COMMANDS: Mapping[str, str] = {
    "train": "Train a policy, or continue a run",
    "evaluate": "Evaluate a model or a checkpoint on benchmarks",
    "config": "Print the complete configuration that settings give",
    "samples": "Show an evaluation by problem, or write its rows for other programs",
    "memory": "Predict what settings need of memory, by phase",
    "runs": "List the runs",
    "show": "Show a run's settings, curves and samples",
    "import": "Bring results of other programs in as runs",
    "compare": "Say which differences between runs are real",
    "report": "Write a comparison to send: HTML, a LaTeX table, sentences",
    "dashboard": "See and compare runs in a browser, live",
    "sync": "Bring runs to MLflow or W&B, whatever they missed",
    "diff": "List where two runs differ: settings, code, environment",
    "rerun": "Repeat a run with its own settings",
    "export": "Write a run's policy as a transformers folder",
    "clean": "Delete what runs can spare, after saying what",
    "sweep": "Run many settings with seeds, and say which is best",
    "audit": "Say what a published table of scores cannot establish",
    "claim": "Check what papers claim against runs or tables; reproduce a paper",
    "objectives": "Show methods as choices on axes, side by side",
    "windows": "Show the ratios that divergences allow, and draw them",
    "figures": "Draw what a trust region did to the tokens of stored rollouts",
    "atlas": "Show which methods have the same gradient, and draw it",
    "theory": "Show what theorems say about methods, and draw it",
    "engine-command": "Print the command that starts a vLLM server on another machine",
    "doctor": "Check this machine, say what is missing for what",
}
"""What each subcommand does; its module has its name, and `main` of it takes the arguments after that."""
