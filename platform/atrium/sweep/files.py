"""Files of sweep definitions: search, reading and validation, with one-line errors."""

from __future__ import annotations

from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.config.files import read_yaml
from atrium.config.messages import validate
from atrium.config.nearest import suggestion
from atrium.sweep.definition import SpaceConfig, SweepDefinition

SWEEPS_FOLDER = "sweeps"
_PACKAGE = Path(__file__).parents[1]


def sweeps_folder() -> Path | None:
    """Return the folder of the shipped definitions in the package or checkout, or None without one."""
    for folder in (_PACKAGE / SWEEPS_FOLDER, _PACKAGE.parents[1] / SWEEPS_FOLDER):
        if folder.is_dir() and any(folder.glob("*.yaml")):
            return folder
    return None


def find_definition(wanted: str) -> Path:
    """Return the path of a definition. `wanted` is this path, or the name of a shipped sweep.

    Raises `ConfigError` if there is no such file or sweep.
    """
    if wanted.endswith((".yaml", ".yml")):
        path = Path(wanted).expanduser()
        if not path.is_file():
            raise ConfigError(
                f"{wanted}: there is no such file; use the path of a sweep, or one of {_listed()}"
            )
        return path
    folder = sweeps_folder()
    path = (folder or Path()) / f"{wanted}.yaml"
    if folder is None or "/" in wanted or not path.is_file():
        raise ConfigError(
            f"sweep {wanted}: unknown sweep"
            + (
                suggestion(wanted, shipped_names())
                or f"; use one of {_listed()}, or a path that ends in .yaml"
            )
        )
    return path


def shipped_names() -> list[str]:
    """Return the names of the shipped sweeps."""
    folder = sweeps_folder()
    return sorted(path.stem for path in folder.glob("*.yaml")) if folder else []


def _listed() -> str:
    return ", ".join(shipped_names()) or "none (no sweeps/ folder is installed)"


def read_definition(path: Path, **changes: object) -> SweepDefinition:
    """Return the definition in a YAML file. `changes` override keys of the file.

    Raises a one-line `ConfigError` that begins with the path of the invalid file.
    """
    content = read_yaml(path, str(path))
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must contain the keys of a sweep: question, base, space, seeds and trials")
    data = {"name": path.stem, **{str(key): value for key, value in content.items()}, **changes}
    if "contrasts" in data:
        raise ConfigError(
            f"{path}: contrasts must be in a separate file; move them there and set predictions to its name"
        )
    known = [key for key in SweepDefinition.model_fields if key != "contrasts"]
    if unknown := next((key for key in data if key not in known), None):  # before keys that are missing
        near = suggestion(unknown, known) or f"; use {', '.join(known)}"
        raise ConfigError(f"{path}: unknown key {unknown}{near}")
    if isinstance(name := data.get("predictions"), str):
        predicted = read_yaml(path.parent / name, str(path.parent / name))
        data["contrasts"] = predicted.get("contrasts") if isinstance(predicted, dict) else predicted
    definition = validate(SweepDefinition, data, str(path))
    for space in (definition, definition.baseline):  # stored sweeps may have another order
        if space is not None:
            _check_order(space, path)
    return definition


def _check_order(space: SpaceConfig, path: Path) -> None:
    """Raise `ConfigError` if a parameter's `when` names a later parameter.

    When the condition is checked, a later parameter does not have a value yet.
    """
    before = {"arm"}
    for name, parameter in {**space.variables, **space.space}.items():
        if late := next((other for other in parameter.when if other not in before), None):
            raise ConfigError(
                f"{path}: {name}.when must name the arm, or a parameter before {name}, got {late}; "
                "list it first"
            )
        before.add(name)


def tiny(definition: SweepDefinition) -> SweepDefinition:
    """Return a version of the sweep that takes about five minutes on a CPU, named `<name>-tiny`."""
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
