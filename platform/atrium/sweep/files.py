"""Reading definitions of sweeps: finding their files, validating them, saying what is wrong in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from atrium.base.errors import ConfigError
from atrium.config.files import read_yaml
from atrium.config.messages import config_error
from atrium.config.nearest import suggestion
from atrium.sweep.definition import SweepDefinition

SWEEPS_FOLDER = "sweeps"
_MASK = "\u2024"
_PACKAGE = Path(__file__).parents[1]


def sweeps_folder() -> Path | None:
    """The shipped definitions: inside an installed package, or beside `platform/` in a checkout."""
    for folder in (_PACKAGE / SWEEPS_FOLDER, _PACKAGE.parents[1] / SWEEPS_FOLDER):
        if folder.is_dir() and any(folder.glob("*.yaml")):
            return folder
    return None


def find_definition(wanted: str) -> Path:
    """The file of a sweep: a path to one, or the name of a shipped one; `ConfigError` otherwise."""
    if wanted.endswith((".yaml", ".yml")):
        path = Path(wanted).expanduser()
        if not path.is_file():
            raise ConfigError(f"{wanted}: there is no such file; name one, or one of {_listed()}")
        return path
    folder = sweeps_folder()
    path = (folder or Path()) / f"{wanted}.yaml"
    if folder is None or "/" in wanted or not path.is_file():
        raise ConfigError(
            f"sweep {wanted}: there is no such sweep"
            + (
                suggestion(wanted, shipped_names())
                or f"; use one of {_listed()}, or a path that ends in .yaml"
            )
        )
    return path


def shipped_names() -> list[str]:
    """The names of the shipped sweeps."""
    folder = sweeps_folder()
    return sorted(path.stem for path in folder.glob("*.yaml")) if folder else []


def _listed() -> str:
    return ", ".join(shipped_names()) or "none (no sweeps/ folder is installed)"


def read_definition(path: Path, **changes: object) -> SweepDefinition:
    """The definition in a YAML file, with `changes` in the place of its own keys.

    Raises `ConfigError`, in one line that begins with the file, for what is wrong.
    """
    content = read_yaml(path, str(path))
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds no sweep; give question, base, space, seeds and trials")
    data = {"name": path.stem, **{str(key): value for key, value in content.items()}, **changes}
    if "contrasts" in data:
        raise ConfigError(f"{path}: contrasts stand in a file of their own, which predictions names")
    if isinstance(name := data.get("predictions"), str):
        predicted = read_yaml(path.parent / name, str(path.parent / name))
        data["contrasts"] = predicted.get("contrasts") if isinstance(predicted, dict) else predicted
    return validated_definition(data, source=str(path))


def validated_definition(data: Mapping[str, Any], *, source: str) -> SweepDefinition:
    """The definition that plain data holds; `ConfigError` names the source and the first mistake."""
    try:
        return SweepDefinition.model_validate_json(json.dumps(data, default=str))
    except ValidationError as error:
        raise ConfigError(f"{source}: {_mistake(error, data)}") from error


def _mistake(error: ValidationError, data: Mapping[str, Any]) -> str:
    """Describe the first validation error.

    A rule of a section supplies its own message; other errors are worded like those of run settings.
    """
    if (text := broken_rule(error)) is not None:
        return text
    # The dots of swept settings are part of their names here, and no path.
    masked = _masked(data)
    try:
        SweepDefinition.model_validate_json(json.dumps(masked, default=str))
    except ValidationError as same:
        return str(config_error(same, SweepDefinition, masked)).replace(_MASK, ".")
    raise AssertionError("a mistake disappeared with the dots of a name")


def broken_rule(error: ValidationError) -> str | None:
    """What the first mistake breaks in the words of a section's own rule; None where it breaks none."""
    first = error.errors(include_url=False)[0]
    if first["type"] != "value_error":
        return None
    return ": ".join([*filter(None, [".".join(map(str, first["loc"]))]), str(first["ctx"]["error"])])


def _masked(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key).replace(".", _MASK): _masked(item) for key, item in value.items()}
    return [_masked(item) for item in value] if isinstance(value, list | tuple) else value


def tiny(definition: SweepDefinition) -> SweepDefinition:
    """The same sweep in about two minutes, under a name of its own."""
    small = definition.tiny
    final = definition.final
    if final is not None:
        final = final.model_copy(update={"seeds": final.seeds[: small.num_final_seeds]})
    baseline = definition.baseline
    if baseline is not None and baseline.base is not None:
        baseline = baseline.model_copy(update={"base": (*baseline.base, *small.overrides)})
    return definition.model_copy(
        update={
            "name": f"{definition.name}-tiny",
            "base": (*definition.base, *small.overrides),
            "baseline": baseline,
            "seeds": definition.seeds[: small.num_seeds],
            "trials": min(definition.trials, small.trials),
            "final": final,
        }
    )
