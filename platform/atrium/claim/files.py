"""Reading claims: finding their files, validating them, saying what is wrong in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from atrium.base.errors import ConfigError
from atrium.base.recorded import read_object
from atrium.claim.definition import SCALES, Claim, DesignConfig, Scale
from atrium.config.files import conf_folder, read_yaml
from atrium.config.messages import config_error
from atrium.config.nearest import suggestion
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.files import broken_rule, find_definition, read_definition

CLAIMS = "claim"
COMPUTED = "computed"
FOLDER = "reproductions"
"""The folder beside the page that holds results and figures."""


def papers() -> list[str]:
    """The papers whose claims are shipped."""
    return sorted(folder.name for folder in (conf_folder() / CLAIMS).iterdir() if folder.is_dir())


def claims_of(paper: str) -> list[Claim]:
    """The claims of a paper by name; `ConfigError` for an unknown paper or a mistake in a file."""
    if paper not in papers():
        raise ConfigError(
            f"paper {paper}: no claims of it{suggestion(paper, papers()) or ';'} use one of "
            f"{', '.join(papers())}"
        )
    return list(map(read_claim, _files(paper)))


def stored_results(paper: str, out: Path) -> dict[str, Mapping[str, Any]]:
    """What is stored of a paper below a folder, by scale; computations come first."""
    return {scale: read_object(results_file(paper, scale, out))[0] for scale in (COMPUTED, *SCALES)}


def results_file(paper: str, scale: str, out: Path) -> Path:
    """The file of a paper's results at a scale."""
    return out / FOLDER / f"{paper}-{scale}.json"


def find_claim(wanted: str) -> Claim:
    """A shipped claim as PAPER/CLAIM, or the file at a path that ends in .yaml; `ConfigError` otherwise."""
    path = Path(wanted).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        known = [f"{paper}/{one.stem}" for paper in papers() for one in _files(paper)]
        if wanted not in known:
            raise ConfigError(
                f"claim {wanted}: there is no such claim{suggestion(wanted, known) or ';'} `atrium claim "
                "list` lists them, and a path ends in .yaml"
            )
        path = conf_folder() / CLAIMS / f"{wanted}.yaml"
    if not path.is_file():
        raise ConfigError(f"claim {wanted}: there is no such file")
    return read_claim(path)


def read_claim(path: Path) -> Claim:
    """The claim in a YAML file, whose folder and name it has. Raises `ConfigError`, which names the file."""
    content = read_yaml(path, str(path))
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds no claim; give arxiv, place, statement, outcome and expected")
    data = {"paper": path.parent.name, "name": path.stem, **content}
    try:
        claim = Claim.model_validate_json(json.dumps(data, default=str))
    except ValidationError as error:
        said = broken_rule(error) or config_error(error, Claim, data)
        raise ConfigError(f"{path}: {said}") from error
    for scale in claim.designs:
        sweep_of(claim, scale)
    return claim


def sweep_of(claim: Claim, scale: Scale) -> SweepDefinition:
    """The sweep of a design; `ConfigError` if there is none, or an arm of the claim is missing."""
    sweep = read_definition(find_definition(design_of(claim, scale).sweep))
    for arm in (claim.candidate, claim.baseline):
        if arm not in sweep.arms:
            raise ConfigError(
                f"claim {claim.title}: {arm} is no arm of sweep {sweep.name}"
                f"{suggestion(str(arm), sweep.arms) or ';'} use one of {', '.join(sweep.arms)}"
            )
    return sweep


def design_of(claim: Claim, scale: Scale) -> DesignConfig:
    """A claim's design at a scale; `ConfigError` where it has none."""
    if scale not in claim.designs:
        known = f"has {', '.join(claim.designs)}" if claim.designs else "is computed, without runs"
        raise ConfigError(f"claim {claim.title}: no design for scale={scale}; it {known}")
    return claim.designs[scale]


def _files(paper: str) -> list[Path]:
    return sorted((conf_folder() / CLAIMS / paper).glob("*.yaml"))
