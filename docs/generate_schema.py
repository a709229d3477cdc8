"""The JSON schema of the YAML files, `conf/schema.json`, read off the classes of the settings."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from atrium.claim.definition import Claim
from atrium.config.files import conf_folder, read_groups
from atrium.config.machine import AUTO_KEYS
from atrium.config.schema import RunConfig
from atrium.sweep.definition import SweepDefinition

_REFERENCE = {
    "description": "A value from elsewhere: ${section.setting}, or ??? for one that has to be given.",
    "type": "string",
    "pattern": r"^(\$\{.+\}|\?\?\?)$",
}
_LAYERS = {"description": "The files that this one starts from, the later ones winning.", "type": "array"}
_ABOUT = (
    "The YAML files of Atrium. Written by `make docs`; do not edit. A file holds the part of the settings "
    "that it changes, so no key is required."
)
_HYDRA = {"description": "Settings of Hydra; only conf/config.yaml has them.", "type": "object"}


def schema_text() -> str:
    """Return the schema that every file of `conf` and `sweeps` satisfies, and users' files of these kinds."""
    classes: list[type[BaseModel]] = [RunConfig, SweepDefinition, Claim]
    _, whole = models_json_schema([(one, "validation") for one in classes], ref_template="#/$defs/{model}")
    definitions = {name: _partial(node) for name, node in whole["$defs"].items()}
    run = definitions["RunConfig"]["properties"]
    for key in AUTO_KEYS | {"rollout.engine"}:
        _allow_auto(definitions, run, key)
    groups = [name for name in read_groups(conf_folder()) if name in run and _references(run[name])]
    run |= {"hydra": _HYDRA, "defaults": _LAYERS}
    for name in {name for group in groups for name in _references(run[group])}:
        definitions[name]["properties"]["defaults"] = _LAYERS
    definitions["Algorithm"]["properties"]["label"] = run["label"]
    definitions["reference"] = _REFERENCE
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Atrium",
        "description": _ABOUT,
        "anyOf": [*({"$ref": f"#/$defs/{one.__name__}"} for one in classes), *(run[name] for name in groups)],
        "$defs": dict(sorted(definitions.items())),
    }
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _partial(node: Any) -> Any:  # noqa: ANN401 - any node of a JSON schema
    """The schema of any part of the settings: no key is required, and a reference may stand for a value."""
    if isinstance(node, list):
        return [_partial(one) for one in node]
    if not isinstance(node, dict):
        return node
    kept = {
        key: value
        for key, value in node.items()
        if key not in ("required", "discriminator", "default", "title", "oneOf", "minItems", "prefixItems")
    }
    if "oneOf" in node:
        kept["anyOf"] = node["oneOf"]
    if "properties" in kept:
        properties = {name: _partial(value) for name, value in kept["properties"].items()}
        return {**kept, "properties": properties}
    kept = {key: _partial(value) for key, value in kept.items()}
    is_value = (
        "enum" in kept or "const" in kept or kept.get("type") in ("integer", "number", "boolean", "string")
    )
    if not is_value or kept == {"type": "string"}:
        return kept
    about = {"description": kept.pop("description")} if "description" in kept else {}
    return {**about, "anyOf": [kept, {"$ref": "#/$defs/reference"}]}


def _allow_auto(definitions: dict[str, Any], run: dict[str, Any], key: str) -> None:
    """Let a setting that is chosen by the machine be `auto`, in every class that its section may have."""
    section, _, name = key.partition(".")
    for reference in _references(run[section]):
        setting = definitions[reference]["properties"].get(name)
        if setting is not None:
            setting["anyOf"].insert(0, {"const": "auto"})


def _references(node: dict[str, Any]) -> list[str]:
    own = [node["$ref"].rpartition("/")[2]] if "$ref" in node else []
    return [*own, *(name for branch in node.get("anyOf", ()) for name in _references(branch))]
