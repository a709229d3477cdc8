"""Shell completion: `atrium -sc install=bash` prints a script that calls `atrium -sc query=bash`.

The first word is completed to a command. After `train` and `config`, groups, options, keys and values are
completed; after other commands, bash and zsh complete file names.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from glob import glob

from atrium.base.errors import ConfigError

_WITH_OVERRIDES = ("train", "config")
# Bash replaces only the text after the last `=` of a word if COMP_WORDBREAKS contains `=`.
_BASH = """\
_atrium_completion() {
    local IFS=$'\\n' word="${COMP_LINE:0:COMP_POINT}"
    COMPREPLY=($(COMP_LINE="$word" "$1" -sc query=bash 2>/dev/null))
    word="${word##* }"
    if [[ $COMP_WORDBREAKS == *=* && $word == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%=*}="}")
    fi
}
complete -o nospace -o default -F _atrium_completion atrium
"""
# `-S ''` adds no space, since a value may follow; without a match, zsh completes file names.
_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
_atrium_completion() {
    local -a found
    found=(${(f)"$(COMP_LINE="$LBUFFER" atrium -sc query=zsh 2>/dev/null)"})
    compadd -S '' -a found || _files
}
compdef _atrium_completion atrium
"""
_FISH = """\
function _atrium_completion
    COMP_LINE=(commandline -cp) atrium -sc query=fish
end
complete -c atrium -x -a '(_atrium_completion)'
"""
_SCRIPTS = {
    "install=bash": _BASH,
    "install=zsh": _ZSH,
    "install=fish": _FISH,
    "uninstall=bash": "complete -r atrium\nunset -f _atrium_completion\n",
    "uninstall=zsh": "compdef -d atrium\nunfunction _atrium_completion\n",
    "uninstall=fish": "complete -e -c atrium\nfunctions -e _atrium_completion\n",
}


def complete(asked: str, commands: Sequence[str]) -> int:
    """Print a script that installs or uninstalls completion, or print completions; return 0.

    `asked` is the value of `-sc`: install=SHELL, uninstall=SHELL or query=SHELL. A query completes the
    command line in the environment variable COMP_LINE. Raises `ConfigError` if a query finds this variable
    unset.
    """
    if asked in _SCRIPTS:
        sys.stdout.write(_SCRIPTS[asked])
        return 0
    if "COMP_LINE" not in os.environ:
        raise ConfigError(f"{asked}: COMP_LINE must be set in the environment; only shells use this option")
    _, *words = re.split(r"\s+", os.environ["COMP_LINE"].lstrip())
    sys.stdout.write("".join(f"{one}\n" for one in completions(words, commands)))
    return 0


def completions(words: Sequence[str], commands: Sequence[str]) -> list[str]:
    """Return the completions of the last word, given the preceding words."""
    *before, word = words or [""]
    if not before:
        return [name for name in commands if name.startswith(word)]
    if before[0] not in _WITH_OVERRIDES:
        return []
    typed = word.lstrip("+~")
    key, has_value, value = typed.partition("=")
    if value.startswith((".", "/")):
        found = [f"{key}={path}" for path in glob(f"{value}*")]  # noqa: PTH207 - keeps the typed form
    else:
        found = [line for line in _settings(before[1:]) if line.startswith(typed)]
    if not has_value:  # complete only to the end of the next section or key
        found = [typed + re.sub("([.=]).*", r"\1", line.removeprefix(typed)) for line in found]
    return sorted({word[: len(word) - len(typed)] + one for one in found})


def _settings(before: Sequence[str]) -> Iterator[str]:
    """Yield GROUP=OPTION for each configuration file, and KEY=VALUE for each setting of a run.

    The values are those that result from the overrides in `before`. If the overrides are invalid, no setting
    is yielded.
    """
    from atrium.base.nested import flattened_text
    from atrium.config.compose import compose
    from atrium.config.files import conf_folder, read_groups

    for group, options in read_groups(conf_folder()).items():
        yield from (f"{group}={option}" for option in options)
    with suppress(ConfigError):
        config = compose([line for line in before if "=" in line and not re.search("^-|,", line)])
        for key, value in flattened_text(config.model_dump(mode="json", exclude={"branch"})).items():
            has_blanks = re.search(r"\s", value)
            yield f"{key}=" if has_blanks else f"{key}={value}"
