"""Files of claims, of their sweeps, and of stored results.

An invalid claim or sweep raises `ConfigError` with a one-line message.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atrium.base.errors import ConfigError
from atrium.base.recorded import read_object
from atrium.claim.definition import SCALES, Claim, DesignConfig, Scale
from atrium.config.files import conf_folder, read_yaml
from atrium.config.messages import validate
from atrium.config.nearest import suggestion
from atrium.sweep.definition import SweepDefinition
from atrium.sweep.files import find_definition, read_definition

CLAIMS = "claim"
COMPUTED = "computed"
FOLDER = "reproductions"
"""Name of the folder with results and figures, next to the results page."""


def papers() -> list[str]:
    """Return the names of the papers whose claims ship with Atrium."""
    return sorted(folder.name for folder in (conf_folder() / CLAIMS).iterdir() if folder.is_dir())


def claims_of(paper: str) -> list[Claim]:
    """Return a paper's claims, sorted by name; raise `ConfigError` for an unknown paper or invalid file."""
    if paper not in papers():
        raise ConfigError(
            f"paper {paper}: unknown paper{suggestion(paper, papers()) or ';'} use one of "
            f"{', '.join(papers())}"
        )
    return list(map(read_claim, _files(paper)))


def stored_results(paper: str, out: Path) -> dict[str, Mapping[str, Any]]:
    """Return a paper's results that are stored below the folder `out`, keyed by scale.

    The first key is `COMPUTED`, for the results of computations. If the file for a scale is missing or
    unreadable, the results at this scale are empty.
    """
    return {scale: read_object(results_file(paper, scale, out))[0] for scale in (COMPUTED, *SCALES)}


def results_file(paper: str, scale: str, out: Path) -> Path:
    """Return the path of the file that stores a paper's results at a scale, below the folder `out`."""
    return out / FOLDER / f"{paper}-{scale}.json"


def find_claim(wanted: str) -> Claim:
    """Return the shipped claim PAPER/CLAIM, or the claim in a YAML file.

    Raises `ConfigError` if `wanted` is neither a shipped claim nor the path of a valid file.
    """
    path = Path(wanted).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        known = [f"{paper}/{one.stem}" for paper in papers() for one in _files(paper)]
        if wanted not in known:
            raise ConfigError(
                f"claim {wanted}: unknown claim{suggestion(wanted, known) or ';'} `atrium claim list` "
                "shows all claims, and a path must end in .yaml"
            )
        path = conf_folder() / CLAIMS / f"{wanted}.yaml"
    if not path.is_file():
        raise ConfigError(f"claim {wanted}: there is no such file; correct the path")
    return read_claim(path)


def read_claim(path: Path) -> Claim:
    """Read a claim from a YAML file.

    The paper is named after the file's folder, and the claim after the file. Raises `ConfigError` if the
    claim or a sweep of its designs is invalid.
    """
    content = read_yaml(path, str(path))
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must contain arxiv, place, statement, outcome and expected")
    data = {"paper": path.parent.name, "name": path.stem, **content}
    claim = validate(Claim, data, str(path))
    for scale in claim.designs:
        sweep_of(claim, scale)
    return claim


def sweep_of(claim: Claim, scale: Scale) -> SweepDefinition:
    """Return the sweep of a claim's design at a scale.

    Raises `ConfigError` if the claim has no such design, or if the sweep is missing or lacks an arm of
    the claim.
    """
    sweep = read_definition(find_definition(design_of(claim, scale).sweep))
    for arm in (claim.candidate, claim.baseline):
        if arm not in sweep.arms:
            raise ConfigError(
                f"claim {claim.title}: sweep {sweep.name} has no arm {arm}"
                f"{suggestion(str(arm), sweep.arms) or ';'} use one of {', '.join(sweep.arms)}"
            )
    return sweep


def design_of(claim: Claim, scale: Scale) -> DesignConfig:
    """Return a claim's design at a scale; raise `ConfigError` if it has none."""
    if scale not in claim.designs:
        known = f"has designs for {', '.join(claim.designs)}" if claim.designs else "is computed without runs"
        raise ConfigError(f"claim {claim.title}: unknown scale {scale}; the claim {known}")
    return claim.designs[scale]


def _files(paper: str) -> list[Path]:
    return sorted((conf_folder() / CLAIMS / paper).glob("*.yaml"))
