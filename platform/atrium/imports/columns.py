"""Columns of a table by their role, as the user names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml

from atrium.base.errors import ConfigError
from atrium.base.plain_files import read_plain
from atrium.document.formatting import printable


def columns_by_role(words: Sequence[str]) -> Mapping[str, str]:
    """The columns by role, from the words of `--map`: pairs and YAML files of pairs.

    Raises `ConfigError`.
    """
    found: dict[str, str] = {}
    for word in words:
        role, is_pair, column = (printable(part).strip() for part in word.partition("="))
        if is_pair and not (role and column):
            raise ConfigError(f"--map {word}: write ROLE=COLUMN, such as score=acc")
        if is_pair:
            found[role] = column
            continue
        try:
            content = yaml.safe_load(read_plain(word))
        except OSError as error:
            raise ConfigError(f"--map {word}: write ROLE=COLUMN, or the name of a YAML file") from error
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(f"--map {word}: is not valid YAML") from error
        if not isinstance(content, dict) or not all(isinstance(one, str) for one in content.values()):
            raise ConfigError(f"--map {word}: expected lines such as `score: acc`")
        found |= {str(role): column for role, column in content.items()}
    return found
