"""`--planned-seeds N` and `--looks 3,5` of `atrium train` and `atrium sweep`, as settings of runs."""

from __future__ import annotations

from collections.abc import Sequence

from atrium.base.errors import ConfigError

FLAGS = ("--planned-seeds", "--looks")


def with_seed_plan(argv: Sequence[str]) -> list[str]:
    """The arguments with both flags replaced by the overrides `planned_seeds=N` and `looks=[3,5]`."""
    rest: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        flag, has_value, value = argument.partition("=")
        if flag not in FLAGS:
            rest.append(argument)
            continue
        text = value if has_value else next(arguments, "")
        numbers = text.split(",") if flag == "--looks" else [text]
        if not all(number.strip().isdecimal() and number.isascii() for number in numbers):
            expected = "numbers, such as --looks 3,5" if flag == "--looks" else "a number, such as 5"
            raise ConfigError(f"{flag} needs {expected}, got {text!r}")
        name = flag.removeprefix("--").replace("-", "_")
        listed = ",".join(number.strip() for number in numbers)
        rest.append(f"{name}=[{listed}]" if flag == "--looks" else f"{name}={listed}")
    return rest
