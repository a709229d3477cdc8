"""The command `atrium`: help at once, the nearest command, one line and a code for every error."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from atrium import __version__
from atrium.base.errors import AtriumError, CheckpointError, ConfigError, Interrupted
from atrium.cli import app, main


def _raising(monkeypatch, error):
    """Make the command `train` raise `error`."""
    module = type(sys)("a_module_that_raises")

    def run(argv):
        raise error

    module.main = run
    monkeypatch.setitem(sys.modules, "atrium.cli.train", module)


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_the_commands(argv, capsys):
    assert main(argv) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in app.COMMANDS)
    assert max(len(line) for line in printed.splitlines()) <= 110


def test_help_imports_nothing_heavy():
    program = (
        "import sys; from atrium.cli import main; code = main(['--help']);"
        "heavy = {'torch', 'transformers', 'hydra', 'pydantic', 'numpy', 'rich'} & set(sys.modules);"
        "sys.exit(f'imported: {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_comparison_loads_no_torch(tmp_path):
    program = (
        "import sys; from atrium.cli import main; main(['compare']); from atrium.compare import document;"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr


def test_it_runs_as_a_module():
    command = [sys.executable, "-m", "atrium", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"atrium {__version__}\n")


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_command_can_be_imported(name):
    assert callable(importlib.import_module(app.module_of(name)).main)


@pytest.mark.parametrize(
    ("error", "code", "printed"),
    [
        (ConfigError("seed must be a whole number, got x"), 2, "error: seed must be a whole number, got x\n"),
        (CheckpointError("it is\n damaged"), 2, "error: it is damaged\n"),
        (AtriumError("no"), 1, "error: no\n"),
        (
            Interrupted("stopped after step 3; --resume continues"),
            130,
            "stopped after step 3; --resume continues\n",
        ),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_an_error_for_the_user_is_one_line_and_its_own_code(monkeypatch, capsys, error, code, printed):
    _raising(monkeypatch, error)
    assert main(["train"]) == code
    assert capsys.readouterr().err == printed


def test_a_defect_keeps_its_traceback(monkeypatch):
    _raising(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main(["train"])


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m atrium config | head -c 1"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("{", "")


def test_the_exit_code_of_a_command_is_passed_on(monkeypatch):
    module = type(sys)("a_module_with_a_code")
    module.main = lambda argv: 7 if argv == ["a"] else 0
    monkeypatch.setitem(sys.modules, "atrium.cli.doctor", module)
    assert (main(["doctor", "a"]), main(["doctor"])) == (7, 0)
