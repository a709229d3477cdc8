"""Parser of `--map`, the user's assignment of table columns to roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml

from atrium.base.errors import ConfigError
from atrium.base.plain_files import read_plain
from atrium.document.formatting import printable


def columns_by_role(words: Sequence[str]) -> Mapping[str, str]:
    """Return the columns by role from the arguments of `--map`: ROLE=COLUMN pairs or YAML files of pairs.

    Raises `ConfigError` for a malformed pair and for an unreadable or invalid file.
    """
    found: dict[str, str] = {}
    for word in words:
        role, is_pair, column = (printable(part).strip() for part in word.partition("="))
        if is_pair and not (role and column):
            raise ConfigError(f"--map {word}: expected ROLE=COLUMN, such as score=acc")
        if is_pair:
            found[role] = column
            continue
        try:
            content = yaml.safe_load(read_plain(word))
        except OSError as error:
            raise ConfigError(f"--map {word}: expected ROLE=COLUMN or a readable YAML file") from error
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(f"--map {word}: the file is not valid YAML; correct it") from error
        if not isinstance(content, dict) or not all(isinstance(one, str) for one in content.values()):
            raise ConfigError(
                f"--map {word}: the file must contain lines of the form ROLE: COLUMN, such as `score: acc`"
            )
        found |= {str(role): column for role, column in content.items()}
    return found
