"""Every number has a range, and what lies beyond it is refused in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest

from atrium.base.errors import ConfigError
from atrium.base.nested import put, setting
from atrium.base.section import SMALLEST
from atrium.config.compose import compose, validated
from atrium.config.presets import read_presets
from atrium.config.schema import RunConfig
from atrium.sweep.definition import SweepDefinition

WITHOUT_RANGE = {
    "ParameterConfig": "its values become those of a setting, whose range they meet when a trial is composed",
    "DerivedConfig": "its value becomes that of a setting",
    "SpaceConfig": "its values become those of settings",
    "BaselineConfig": "its values become those of settings",
    "SweepDefinition": "its values become those of settings",
    "where": "it is compared with the data, and computed with nowhere",
    "extra": "it is handed to sbatch as it is",
    "options": "they are handed to a generator of reasoning-gym, which checks them",
}
"""What holds numbers without a range, sections or settings, each with the reason."""
BASES = (
    [],
    ["model=qwen3_0_6b", "dataset=math", "benchmark=math500", "rollout=vllm", "grader=math_tolerance"],
    ["rollout=bank", "rollout.source=a/run", "compute=slurm", "reward=random", "grader=numeric"],
    ["reward=dapo_overlong", "model.lora={rank:4,alpha:8}", "benchmark=math_suite", "dataset=math"],
)
LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def numbers_in(node: dict) -> Iterator[dict]:
    """The numbers that a setting may be, as its JSON schema says; not those of sections it refers to."""
    if node.get("type") in ("integer", "number") and not {"const", "enum"} & node.keys():
        yield node
    parts = [*node.get("anyOf", ()), *node.get("prefixItems", ())]
    for key in ("items", "additionalProperties"):
        parts += [node[key]] if isinstance(node.get(key), dict) else []
    for part in parts:
        yield from numbers_in(part)


@pytest.mark.parametrize("model", [RunConfig, SweepDefinition])
def test_every_number_has_a_lower_and_an_upper_bound(model):
    schema = model.model_json_schema()
    sections = {**schema["$defs"], model.__name__: schema}
    seen = 0
    for title, section in sections.items():
        for name, node in section.get("properties", {}).items():
            for number in numbers_in(node):
                seen += 1
                has_both = any(key in number for key in LOWER) and any(key in number for key in UPPER)
                assert has_both or {title, name} & WITHOUT_RANGE.keys(), f"{title}.{name}: {number}"
    assert seen > 20


def section_of(node: dict, data: object, schema: dict) -> dict | None:
    """The section that `data` is, of those that a setting may be; None for a plain setting."""
    if reference := node.get("$ref"):
        return section_of(schema["$defs"][reference.rpartition("/")[2]], data, schema)
    if "properties" in node:
        tags = [node["properties"][name] for name in ("kind", "engine") if name in node["properties"]]
        kind = next((data[name] for name in ("kind", "engine") if name in data), None)
        return node if all(kind in (tag.get("const"), *tag.get("enum", ())) for tag in tags) else None
    parts = [*node.get("oneOf", ()), *node.get("anyOf", ())]
    return next((found for part in parts if (found := section_of(part, data, schema))), None)


def numbers_of(data: dict, node: dict, schema: dict, prefix: str = "") -> Iterator[tuple[str, str, dict]]:
    """Each setting of `data` that may be a number: a name for its declaration, its key, its range."""
    for name, declared in node["properties"].items():
        key, value = f"{prefix}{name}", data.get(name)
        if isinstance(value, dict):
            section = section_of(declared, value, schema)
            if section is not None:
                yield from numbers_of(value, section, schema, f"{key}.")
        elif not isinstance(value, list):
            for number in numbers_in(declared):
                yield f"{node['title']}.{value if name == 'kind' else name}", key, number


def inside_and_outside(number: dict) -> tuple[list[float], list[float]]:
    """The bounds, or what stands nearest to them, and the values next to them that are no settings."""
    inside: list[float] = []
    outside: list[float] = []
    is_whole = number["type"] == "integer"
    step = number.get("multipleOf", 1)
    for keys, sign in ((LOWER, -1), (UPPER, 1)):
        closed, key = next((key == keys[0], key) for key in keys if key in number)
        bound = int(number[key]) if is_whole else float(number[key])
        further = bound + sign * step if is_whole else math.nextafter(bound, sign * math.inf)
        nearer = bound - sign * step if is_whole else math.nextafter(bound, -sign * math.inf)
        if not closed and bound == 0.0:
            nearer = SMALLEST
        inside.append(bound if closed else nearer)
        outside.append(further if closed else bound)
    return inside, outside if is_whole else [*outside, 1e-40]


def bases() -> Iterator[dict]:
    """Configurations that between them have every kind of section that ships, as plain data."""
    for overrides in BASES:
        yield compose(overrides).model_dump(mode="json")
    data = compose(["optimizer.num_minibatches=2"]).model_dump(mode="json")
    for preset in read_presets():
        parts = ("algorithm", "divergence", "regularizer")
        yield data | {part: getattr(preset, part).model_dump(mode="json") for part in parts}


def refusal(base: dict, key: str, value: float) -> str:
    """What is said against that value; empty where the whole composes and what follows from it is derived."""
    data = json.loads(json.dumps(base))
    put(data, key, value)
    try:
        config = validated(data)
    except ConfigError as error:
        return str(error)
    assert setting(config.model_dump(mode="json"), key) == value
    for derive in (config.method.notes, config.method.key):
        derive(config.use)
    for probability in (1e-9, 0.5, 1.0 - 1e-9):
        config.divergence.window_at(probability)
    return ""


def test_bounds_compose_and_what_lies_next_to_them_is_refused_in_one_line():
    schema = RunConfig.model_json_schema()
    done = set()
    for base in bases():
        for declaration, key, number in numbers_of(base, schema, schema):
            if declaration in done:
                continue
            done.add(declaration)
            inside, outside = inside_and_outside(number)
            for value in inside:
                # It may clash with another setting of the base.
                assert "\n" not in refusal(base, key, value), f"{key}={value}"
            for value in outside:
                said = refusal(base, key, value)
                assert said.startswith(f"{key} must be "), f"{key}={value}: {said}"
    assert len(done) > 100
