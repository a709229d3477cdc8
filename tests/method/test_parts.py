"""Every part of a method is declared once, executed, found in the shipped files and kept apart from torch."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Literal, get_args

import pytest
import yaml

from atrium.base.section import Choice
from atrium.config.presets import divergence_from, read_presets
from atrium.method.algorithm import Algorithm
from atrium.method.corrections import Correction
from atrium.method.divergences import Divergence
from atrium.method.reductions import Reduction
from atrium.method.references import Reference
from atrium.method.regularizers import KL_ESTIMATORS, EntropyBonus, KLPenalty, Regularizer
from atrium.method.surrogates import Surrogate
from atrium.method.token_weights import TokenWeight

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
AXES = {
    "surrogate": Surrogate,
    "token_weight": TokenWeight,
    "correction": Correction,
    "reduction": Reduction,
    "reference": Reference,
}
EXECUTED_BY = {
    Divergence: ("window", "region"),
    Surrogate: ("value", "terms"),
    TokenWeight: ("select", "weigh"),
}
"""The methods of which a class of an axis defines at least one, where none is abstract."""
NEUTRAL = {"all"}
"""Kinds that the defaults of their axis execute."""


def test_class_that_leaves_out_the_method_of_its_axis_is_refused_as_it_is_declared():
    with pytest.raises(TypeError, match="Unfinished must define row_factor"):

        class Unfinished(Reduction):
            kind: Literal["unfinished"] = "unfinished"


@pytest.mark.parametrize("axis", EXECUTED_BY, ids=lambda axis: axis.__name__)
def test_every_value_of_an_axis_is_executed(axis):
    for kind, part in axis.kinds.items():
        own = [name for name in EXECUTED_BY[axis] if getattr(part, name) is not getattr(axis, name)]
        assert own or kind in NEUTRAL, f"nothing executes {kind}"


def test_every_kl_estimator_can_be_chosen():
    assert set(get_args(KLPenalty.model_fields["estimator"].annotation)) == KL_ESTIMATORS.keys()


def test_every_setting_of_a_part_says_what_it_means_or_shares_the_next_ones_words():
    for axis in (*AXES.values(), Divergence):
        for part in axis.values():
            assert part.__doc__, part
            fields = [name for name in part.model_fields if name not in ("kind", "gradient")]
            described = [name for name in fields if part.model_fields[name].description]
            assert not fields or fields[-1] in described, f"{part.__name__}.{fields[-1]} is not described"


def test_every_kind_of_divergence_has_a_file_of_its_name():
    files = {path.stem: yaml.safe_load(path.read_text()) for path in (CONF / "divergence").glob("*.yaml")}
    for kind in Divergence.kinds:
        assert files[kind]["kind"] == kind
    for name, settings in files.items():
        assert divergence_from(settings, name).kind == settings["kind"], name


def test_every_regularizer_file_is_valid():
    paths = sorted((CONF / "regularizer").rglob("*.yaml"))
    for path in paths:
        Regularizer.model_validate(yaml.safe_load(path.read_text()))
    assert len(paths) > 15


def test_the_regularizers_that_people_type_show_every_setting():
    for name, shown in (("kl", {"kl"}), ("entropy", {"entropy"}), ("kl_entropy", {"kl", "entropy"})):
        settings = yaml.safe_load((CONF / "regularizer" / f"{name}.yaml").read_text())
        for part, fields in (("kl", KLPenalty.model_fields), ("entropy", EntropyBonus.model_fields)):
            assert settings[part] is None if part not in shown else settings[part].keys() == fields.keys()


@pytest.mark.parametrize("axis", ["surrogate", "token_weight", "reduction"])
def test_every_kind_is_used_by_a_preset_or_is_a_setting_of_its_own(axis):
    used = {getattr(preset.algorithm, axis).kind for preset in read_presets()}
    assert AXES[axis].kinds.keys() - used <= {"mask"}


def test_every_preset_says_where_it_comes_from():
    for path in sorted((CONF / "algorithm").glob("*.yaml")):
        header = [line for line in path.read_text().splitlines() if line.startswith("#")]
        text = " ".join(header)
        assert any(mark in text for mark in ("arXiv", "Williams 1992", "github.com", "verl")), path.name
        assert max(map(len, header)) <= 120, path.name


@pytest.mark.parametrize(
    ("page", "words"), [("README.md", "shipped methods"), ("docs/choosing_a_method.md", "files in all")]
)
def test_the_pages_count_the_methods(page, words):
    assert f"{len(read_presets())} {words}" in (ROOT / page).read_text(encoding="utf-8")


def test_a_kind_that_is_declared_twice_is_an_error_that_names_both():
    with pytest.raises(TypeError, match=r"clip is declared by both .*Clip and .*Again"):

        class Again(Surrogate):
            kind: Literal["clip"] = "clip"


def test_a_part_is_made_by_its_kind_and_read_back_from_what_it_says():
    part = Surrogate.build("dual_clip", cap=3.0)
    assert part.model_dump() == {"kind": "dual_clip", "gradient": "pathwise", "cap": 3.0}
    assert Surrogate.build(**part.model_dump()) == part
    preset = next(preset for preset in read_presets() if preset.name == "atr")
    assert Algorithm.model_validate(preset.algorithm.model_dump()) == preset.algorithm


def declared_fields(node):
    """The annotated names of a class, without class variables and methods."""
    return frozenset(
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and "ClassVar" not in ast.unparse(item.annotation)
        and item.target.id not in ("kind", "gradient")
    )


def test_no_second_class_has_the_settings_of_a_part():
    parts = [part for axis in (*AXES.values(), Divergence) for part in axis.values()]
    parts += [KLPenalty, *(type(part) for part in read_presets()[0].algorithm.__dict__.values())]
    settings = {
        frozenset(part.model_fields) - {"kind", "gradient"}: part.__name__
        for part in parts
        if isinstance(part, type) and issubclass(part, Choice | KLPenalty)
    }
    for path in (ROOT / "platform" / "atrium").rglob("*.py"):
        if path.parent.name == "method":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            fields = declared_fields(node) if isinstance(node, ast.ClassDef) else frozenset()
            if len(fields) > 1 and path.name != "windows.py":  # a window is a point of the plane itself
                assert fields not in settings, f"{path.name}: {node.name} repeats {settings[fields]}"
