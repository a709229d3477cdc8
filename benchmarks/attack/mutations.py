"""Wrong settings and command lines, drawn by a seed, and what the command line makes of them.

Every mutation goes through `atrium.cli.main` in this process, where whatever would load a model raises
`Begun` instead. A settings' mutation holds if it gives another valid configuration whose numbers exist in
float32; anything else has to be refused in one line that names the key or what was typed.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import yaml
from benchmarks.attack.commands import HANG_S, Hung, in_time
from benchmarks.attack.outcomes import Attempt, Outcome, judge

from atrium.base.errors import ConfigError
from atrium.base.nested import flattened
from atrium.cli import main
from atrium.config.compose import compose
from atrium.config.files import conf_folder, read_groups

NUM_BASES = 24
"""Combinations of shipped options that settings are changed in; each is composed once."""
SMALLEST, LARGEST = 1e-37, 3.4e38
"""What float32 holds without loss of precision."""
BAD_VALUES = (
    "", "abc", "''", "[]", "{}", "[1,2]", "{a: 1}", "[[[[[[1]]]]]]", "{kind: nonsense}", "true", "null",
    "nan", "inf", "-inf", "1e-100", "-1e-100", "1e38", "1e39", "1e400", "-1", "-0.0", "0", "0.5", "1e5",
    "99999999999999999999", "9223372036854775808", "1_000", "0x10", "1e", "'1'", "1,2", "1;2", "☃",
    "a" * 5000, "'a\nb'", "'\x1b[31mred'", "'\x07'", "{", "}", "[", "'", '"', "\\", "'{x}'", "$", "${", "${}",
    "${seed}x", "${nowhere}", "${oc.env:HOME}", "${eval:1+1}", "${oc.decode:1}", "glob(*)", "choice(1,2)",
    "range(0,3)", "interval(0,1)", "shuffle(1,2)", "sort(3,1)", "tag(a,choice(1,2))", "int(x)", "float(3)",
    "extend_list(1)", "str(1", "/no/such/path", "/dev/null", "~", "../..", "./nowhere.yaml", "???",
    "!!python/object:os.system", "&a [*a]", "@file", "-", "--", "=", "a=b", "nonsense/..", "\u202eabc",
)  # fmt: skip


def _without_a_letter(key: str, rng: random.Random) -> str:
    at = rng.randrange(len(key))
    return key[:at] + key[at + 1 :]


BAD_KEYS: tuple[Callable[[str, random.Random], str], ...] = (
    _without_a_letter,
    lambda key, rng: f"{key}x",
    lambda key, rng: f"{key}.deeper",
    lambda key, rng: f"{key.upper()}",
    lambda key, rng: f"{key}.",
    lambda key, rng: f".{key}",
    lambda key, rng: f"{key}@_global_",
    lambda key, rng: f"{key}[0]",
    lambda key, rng: f"{key}._target_",
    lambda key, rng: f"hydra.{key}",
    lambda key, rng: f"+{key}.new",
    lambda key, rng: key.replace(".", "..", 1),
)
COMMAND_WORDS = (
    "", "nowhere", "last", "LAST", "../..", "/", "/dev/null", "/proc/self", "~", "-1", "--", "--bogus", "-x",
    "--step", "--step=x", "--step=-1", "--step=99999999999999999999", "--json", "--runs-dir", "--baseline=x",
    "--runs-dir=/nowhere", "--runs-dir=/dev/null", "--benchmark=nothing", "--problem=nothing", "--until=x",
    "--csv=/nowhere/x.csv", "--out=/dev/null/x", "a\nb", "\x1b[31m", "☃", "a" * 5000, "*", "[", "{", "$(x)",
)  # fmt: skip
READING = (
    "runs", "show", "samples", "compare", "diff", "export", "clean", "rerun", "objectives", "windows",
    "report", "claim", "memory", "theory", "config", "sync",
)  # fmt: skip
SWEEPS = ("delta", "clip_range", "nowhere", "", "../delta", "/dev/null", "a\nb")
SWEEP_OPTIONS = ("workers", "budget", "storage", "name", "trials", "seeds", "plan", "runs_dir", "resume")


class Begun(BaseException):
    """A command got as far as to begin with these settings; no `except Exception` keeps it."""

    def __init__(self, settings: object) -> None:
        super().__init__("begun")
        self.settings = settings


@dataclass(frozen=True)
class CommandLine:
    """A wrong command line, the words of which a refusal names one, and for settings what is changed."""

    kind: str
    argv: tuple[str, ...]
    names: tuple[str, ...]
    base: tuple[str, ...] | None = None


def command_lines(seed: int) -> Iterator[CommandLine]:
    """Endlessly many, most of them settings."""
    rng = random.Random(seed)
    makers = (_settings, _settings, _settings, _keys, _evaluation, _sweep, _reading)
    while True:
        yield rng.choice(makers)(rng)


def tried(line: CommandLine) -> Attempt:
    """Give the command line to the program; how it ended."""
    told, printed = io.StringIO(), io.StringIO()
    with nothing_begins(), in_time(), contextlib.redirect_stderr(told), contextlib.redirect_stdout(printed):
        outcome, said = _outcome(line, told)
    return Attempt(line.kind, " ".join(map(repr, line.argv)), outcome, said)


@contextlib.contextmanager
def nothing_begins() -> Iterator[None]:
    """Let whatever would load a model, train or write a sweep raise `Begun` instead."""

    def begin(settings: object, *_: object) -> None:
        raise Begun(settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("atrium.assemble.beginning.train_here", begin)
        patch.setattr("atrium.assemble.beginning.start", begin)
        patch.setattr("atrium.assemble.beginning.check_run", lambda *_: None)
        patch.setattr("atrium.cli.evaluate.begin_evaluation", begin)
        patch.setattr("atrium.assemble.sweep_workers.check_machine", lambda *_: None, raising=False)
        patch.setattr(
            "atrium.assemble.sweep_workers.prepare", lambda storage, definition, **_: begin(definition)
        )
        yield


def _outcome(line: CommandLine, told: io.StringIO) -> tuple[Outcome, str]:
    try:
        return judge(main(line.argv), told.getvalue(), line.names)
    except Begun as begun:
        if line.base is None:
            return Outcome.HELD, "begun"
        return _compared(begun.settings, line.base)
    except Hung:
        return Outcome.FELL, f"no answer within {HANG_S} s"
    except Exception:  # a defect, whatever it is
        return Outcome.FELL, traceback.format_exc()[-1000:]


def _compared(settings: Any, base: tuple[str, ...]) -> tuple[Outcome, str]:
    found = flattened(settings.as_record())
    if found == _flat(base):
        return Outcome.FELL, "accepted without any effect"
    for key, value in found.items():
        if isinstance(value, float) and value and not SMALLEST <= abs(value) <= LARGEST:
            return Outcome.FELL, f"accepted {key}={value}, which float32 does not hold"
    return Outcome.HELD, "another configuration"


@cache
def _flat(base: tuple[str, ...]) -> dict[str, Any]:
    return flattened(compose(base).as_record())


def _keys_of(base: tuple[str, ...]) -> list[str]:
    """The settings that can be typed; `resume` belongs to a command, not to what is composed."""
    return sorted(_flat(base).keys() - {"resume"})


@cache
def _groups() -> dict[str, tuple[str, ...]]:
    return read_groups(conf_folder())


@cache
def _base(number: int) -> tuple[str, ...]:
    """Options of up to two groups that go together."""
    rng = random.Random(number)
    while True:
        groups = rng.sample(sorted(_groups()), rng.randint(0, 2))
        base = tuple(f"{group}={rng.choice(_groups()[group])}" for group in groups)
        with contextlib.suppress(ConfigError):
            _flat(base)
            return base


def _settings(rng: random.Random) -> CommandLine:
    return _setting(rng, _base(rng.randrange(NUM_BASES)))


def _setting(rng: random.Random, base: tuple[str, ...]) -> CommandLine:
    while True:
        key = rng.choice(_keys_of(base))
        value = rng.choice(BAD_VALUES)
        if not _is_the_same(value, _flat(base)[key]):
            break
    line = f"{key}={value}"
    return CommandLine("settings", ("train", *base, line), (*_parts(key), line), base)


def _is_the_same(typed: str, value: object) -> bool:
    """Whether the text means the value that the key has already, as far as YAML can tell."""
    with contextlib.suppress(yaml.YAMLError, ValueError):
        return bool(yaml.safe_load(typed) == value) or typed == str(value) or typed == json.dumps(value)
    return False


def _parts(key: str) -> tuple[str, ...]:
    """The key, and the parts of it by which a message may name it."""
    return (key, key.rpartition(".")[2], key.partition(".")[0])


def _keys(rng: random.Random) -> CommandLine:
    base = _base(rng.randrange(NUM_BASES))
    key = rng.choice(_keys_of(base))
    while (wrong := rng.choice(BAD_KEYS)(key, rng)) == key:
        continue
    line = f"{wrong}={json.dumps(_flat(base)[key])}"
    return CommandLine("misspelt keys", ("train", *base, line), (wrong, *_parts(key), line), base)


def _evaluation(rng: random.Random) -> CommandLine:
    line = _setting(rng, ())
    names = (*line.names, "nothing says what to evaluate")  # which is as true
    return CommandLine("settings of evaluations", ("evaluate", *line.argv[1:]), names)


def _sweep(rng: random.Random) -> CommandLine:
    name = rng.choice(SWEEPS)
    if rng.random() < 0.5:
        key, value = rng.choice(SWEEP_OPTIONS), rng.choice(BAD_VALUES)
    else:
        key, value = rng.choice(_keys_of(())), rng.choice(BAD_VALUES)
    line = f"{key}={value}"
    return CommandLine("sweeps", ("sweep", name, line), (*_parts(key), line, name or "sweep"))


def _reading(rng: random.Random) -> CommandLine:
    words = rng.sample(COMMAND_WORDS, rng.randint(1, 3))
    argv = (rng.choice(READING), *words)
    parts = {part for word in words for part in (word, word.partition("=")[2])}
    # A message shows unprintable text by its escapes, and of a long one its beginning.
    names = {name[:30] or '""' for part in parts for name in (part, json.dumps(part)[1:-1])}
    return CommandLine("command lines", argv, ("atrium", *sorted(names)))
