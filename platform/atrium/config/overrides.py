"""Parsing and checks of command-line overrides, in Hydra's grammar, before composition.

Overrides of Hydra's own settings (callbacks, search path, output folders) and names of code to run are
errors. Interpolations that call a resolver are errors too. For example, the result of a resolver that
reads an environment variable would be written to the run's record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from atrium.base.errors import ConfigError
from atrium.config.files import LOCAL
from atrium.config.nearest import MAX_LISTED, nearest, shown, suggestion

_MAX_DEPTH = 32
_PLAIN_INTERPOLATION = re.compile(r"\$\{[\w.]+\}")
_FIELD_PATH = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*\[\d+\][\w.\[\]]*?(?=[,\s\]}]|$)")
_HUB_NAME = re.compile(r"[\w.-]+/[\w./-]+")
_OTHER_LETTERS = re.compile(r"(?=[^\s,=\[\]{}()]*[^\x00-\x7f])[^\s,=\[\]{}():]+")
FORBIDDEN_KEY = "_target_"

NO_CALLS = (
    "an interpolation cannot call a resolver, since its result would be written to the record; use a "
    "plain value or another key, such as ${rollout.group_size}"
)
Groups = Mapping[str, tuple[str, ...]]
MAY_BE_NULL = frozenset({"evaluation", "experiment", "debug"})
"""Groups that may be null, which is their default; every other group needs exactly one option."""


def parse_overrides(lines: Sequence[str], groups: Groups, *, allow_sweeps: bool = False) -> list[Override]:
    """Parse and check overrides; raise `ConfigError` for the first wrong override.

    Unknown keys and invalid values are found later, in the composed configuration. `allow_sweeps` allows
    several values per key, as in a multirun.
    """
    for line in lines:
        _refuse_code(line)
        if line.lstrip("+~").startswith((f"{LOCAL}=", f"{LOCAL}@")):
            raise ConfigError(
                f"{line}: {LOCAL} cannot be overridden, since conf/{LOCAL}/default.yaml applies "
                "automatically; change that file instead"
            )
    overrides = [_parse(_with_quotes(line), groups) for line in lines]
    for override in overrides:
        _check_shape(override, groups, allow_sweeps=allow_sweeps)
        if override.key_or_group in groups:
            _check_option(override, groups[override.key_or_group])
    return overrides


def calls_something(text: str) -> bool:
    """Return whether the text contains an interpolation other than a reference to a key.

    An example is `${oc.env:HOME}`, which calls a resolver.
    """
    return "${" in _PLAIN_INTERPOLATION.sub("", text)


def for_hydra(override: Override, groups: Groups) -> list[str]:
    """Return an override as lines that Hydra accepts even if no file contains the setting.

    Files may omit settings that have defaults, but Hydra rejects an override of a missing key unless the
    override begins with `+`. Validation reports unknown settings later. If the value is a list, a first line
    sets the key to 0, because Hydra would otherwise merge the list into a mapping from a file.
    """
    line, key = override.input_line or "", override.key_or_group
    if override.type is not OverrideType.CHANGE or key in groups:
        return [line]
    is_list = not override.is_sweep_override() and isinstance(override.value(), list)
    return [*([f"++{key}=0"] if is_list else []), f"++{line}"]


def is_null_group(override: Override, groups: Groups) -> bool:
    """Return whether the override sets a group to null, such as `experiment=null`."""
    is_one = override.key_or_group in groups and not override.is_sweep_override()
    return is_one and override.type is OverrideType.CHANGE and override.value() is None


def _refuse_code(line: str) -> None:
    if FORBIDDEN_KEY in line:
        raise ConfigError(
            f"{shown(line)}: {FORBIDDEN_KEY} cannot be set, since a configuration cannot name code to "
            "run; use a kind that Atrium ships"
        )
    if calls_something(line):
        raise ConfigError(f"{shown(line)}: {NO_CALLS}")
    key = line.lstrip("+~").partition("=")[0]
    if re.split(r"[./@]", key)[0] == "hydra":
        raise ConfigError(
            f"{shown(line)}: Hydra's own settings cannot be changed; remove it (only the flags "
            "--multirun, --cfg and --help are available)"
        )


def _with_quotes(line: str) -> str:
    """Return the line with quotes around words that Hydra's grammar would not accept without quotes.

    These are words with an index (`messages[1].content`) or with non-ASCII letters. A value that already
    contains quotes is unchanged.
    """
    key, equals, value = line.partition("=")
    is_quoted = "'" in value or '"' in value
    quoted = _OTHER_LETTERS.sub(r'"\g<0>"', _FIELD_PATH.sub(r'"\g<0>"', value))
    return line if is_quoted else key + equals + quoted


def _parse(line: str, groups: Groups) -> Override:
    key, has_value, _ = line.partition("=")
    if not has_value and not line.startswith("~"):
        known = nearest(line, groups)
        example = f"{known}={groups[known][0]}" if known is not None else "seed=1"
        raise ConfigError(f"{shown(line)}: the value is missing; write key=value, such as {example}")
    if not key.strip("+~ "):
        raise ConfigError(f"{shown(line)}: the key is missing; write key=value, such as seed=1")
    try:
        override: Override = OverridesParser.create().parse_override(line)
        is_too_deep = _depth(override.value()) > _MAX_DEPTH
    except HydraException as error:
        cause = str(error.__cause__ if isinstance(error.__cause__, ValueError) else error)
        cause = cause.splitlines()[0].partition(" expecting ")[0]
        raise ConfigError(
            f"{shown(line)}: cannot read {key.strip()} and its value ({cause}); write key=value, with "
            "quotes around special characters: 'key=\"value\"'"
        ) from error
    except RecursionError:
        is_too_deep = True
    if is_too_deep:
        raise ConfigError(
            f"{shown(line)}: lists and mappings must be nested at most {_MAX_DEPTH} levels deep; reduce "
            "the nesting"
        )
    override.config_loader = cast("ConfigLoader", _Options(groups))
    return override


def _depth(value: object) -> int:
    """Return the nesting depth of lists and mappings, computed without recursion."""
    depth, level = 0, [value]
    while level := [one for one in level if isinstance(one, list | dict)]:
        depth += 1
        level = [part for one in level for part in (one.values() if isinstance(one, dict) else one)]
    return depth


@dataclass(frozen=True)
class _Options:
    """A substitute for Hydra's configuration loader that tells Hydra's parser the options of each group.

    The parser needs the options to expand patterns such as `algorithm=glob(*)`.
    """

    groups: Groups

    def get_group_options(self, group_name: str, **_: object) -> list[str]:
        return list(self.groups.get(group_name, ()))


def _check_shape(override: Override, groups: Groups, *, allow_sweeps: bool) -> None:
    line, key = override.input_line or "", override.key_or_group
    if override.package is not None:
        raise ConfigError(f"{shown(line)}: a package (@) cannot be given; use {key}=OPTION")
    if override.is_sweep_override() and not allow_sweeps:
        raise ConfigError(
            f"{shown(line)}: {key} must have a single value; add --multirun to run several values"
        )
    if override.is_sweep_override() and not override.is_discrete_sweep():
        raise ConfigError(
            f"{shown(line)}: an interval has no list of values to run; use {key}=a,b,c or "
            f"{key}=range(start,stop,step)"
        )
    if override.is_sweep_override() and not _values(override):
        options = (
            f"a pattern that matches one of {', '.join(groups[key])}" if key in groups else f"{key}=a,b,c"
        )
        raise ConfigError(f"{shown(line)}: the pattern matches no value, so nothing would run; use {options}")
    if "???" in _values(override):
        raise ConfigError(f"{shown(line)}: ??? is a placeholder for a missing value; give {key} a value")
    if key in groups and override.type is not OverrideType.CHANGE:
        raise ConfigError(
            f"{shown(line)}: an option of {key} cannot be added (+) or removed (~); use {key}=OPTION with "
            "one of " + ", ".join(groups[key])
        )


def _check_option(override: Override, options: Sequence[str]) -> None:
    group = override.key_or_group
    if group in MAY_BE_NULL and not override.is_sweep_override():
        if override.value() is None:
            return
        options = ("null", *options)
    for option in _values(override):
        if not isinstance(option, str) or option not in options:
            from atrium.config.messages import tags_at
            from atrium.config.schema import RunConfig

            near = suggestion(option, options) if isinstance(option, str) else ""
            if group == "model" and isinstance(option, str) and _HUB_NAME.fullmatch(option):
                near = f"; did you mean model=hub model.source={option}?"
            elif option in tags_at([group], RunConfig):  # a plugin's class has no file in conf/
                near = f"; did you mean {group}.kind={option}?"
            elif str(option).endswith(".py") and tags_at([group], RunConfig):
                near = f"; load the file with --plugin {option} and set {group}.kind"
            is_listed = not near or (near.endswith("?") and len(options) <= MAX_LISTED)
            listed = f"{'' if near else ';'} choose from {', '.join(options)}" if is_listed else ""
            raise ConfigError(f"{group}={shown(option)}: unknown option{near}{listed}")


def _values(override: Override) -> list[object]:
    if override.is_sweep_override():
        return [text.strip("'\"") for text in override.sweep_string_iterator()]
    return [override.value()]
