"""Tables, schema and YAML files hold together: every kind has all three, with equal settings."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args

import pytest
import yaml
from pydantic import TypeAdapter

from atrium.config import objective as schema
from atrium.config import objective_boundary
from atrium.config.objective_divergences import DivergenceConfig
from atrium.config.objective_surrogates import SurrogateConfig
from atrium.objective.advantages import Advantage
from atrium.objective.corrections import CORRECTIONS
from atrium.objective.divergences import DIVERGENCES
from atrium.objective.groups import GroupFilter
from atrium.objective.ratios import Ratio
from atrium.objective.reductions import REDUCTIONS
from atrium.objective.references import REFERENCES
from atrium.objective.regularizers import KL_ESTIMATORS, EntropyBonus, KLPenalty
from atrium.objective.surrogates import SURROGATES
from atrium.objective.token_weights import TOKEN_WEIGHTS

CONF = Path(__file__).resolve().parents[2] / "conf"
AXES = {
    "surrogate": (SURROGATES, SurrogateConfig, {"gradient"}),
    "token_weight": (TOKEN_WEIGHTS, schema.TokenWeightConfig, set()),
    "correction": (CORRECTIONS, schema.CorrectionConfig, set()),
    "reduction": (REDUCTIONS, schema.ReductionConfig, set()),
    "divergence": (DIVERGENCES, DivergenceConfig, set()),
    "reference": (REFERENCES, schema.ReferenceConfig, set()),
}


def kinds(union):
    """Each kind of a discriminated union with its model."""
    return {
        kind: model
        for model in get_args(get_args(union)[0])
        for kind in get_args(model.model_fields["kind"].annotation)
    }


@pytest.mark.parametrize("axis", sorted(AXES))
def test_every_kind_of_a_table_has_a_model_and_every_model_a_kind(axis):
    table, union, elsewhere = AXES[axis]
    models = kinds(union)
    assert table.keys() == models.keys()
    for kind, model in models.items():
        accepted = inspect.signature(table[kind]).parameters
        assert set(model.model_fields) - {"kind"} - elsewhere == set(accepted), kind
        required = {name for name, field in model.model_fields.items() if field.is_required()} - {"kind"}
        assert {name for name, p in accepted.items() if p.default is p.empty} >= required - elsewhere, kind


@pytest.mark.parametrize(
    ("built", "model"),
    [
        (Advantage, schema.AdvantageConfig),
        (Ratio, schema.WeightRatioConfig),
        (GroupFilter, schema.GroupFilterConfig),
        (KLPenalty, schema.KLConfig),
        (EntropyBonus, schema.EntropyConfig),
    ],
)
def test_single_classes_take_their_models_settings_with_equal_defaults(built, model):
    parameters = inspect.signature(built).parameters
    assert set(model.model_fields) == set(parameters)
    for name, field in model.model_fields.items():
        if not field.is_required() and parameters[name].default is not inspect.Parameter.empty:
            assert field.default == parameters[name].default


def test_every_kl_estimator_can_be_chosen():
    assert set(get_args(schema.KLConfig.model_fields["estimator"].annotation)) == KL_ESTIMATORS.keys()


def test_every_kind_of_divergence_has_a_file_of_its_name():
    files = {path.stem: yaml.safe_load(path.read_text()) for path in (CONF / "divergence").glob("*.yaml")}
    for kind in DIVERGENCES:
        assert files[kind]["kind"] == kind
    adapter = TypeAdapter(DivergenceConfig)
    for name, settings in files.items():
        assert adapter.validate_python(settings).kind == settings["kind"], name


def test_every_regularizer_file_is_valid():
    paths = sorted((CONF / "regularizer").glob("*.yaml"))
    for path in paths:
        schema.RegularizerConfig.model_validate(yaml.safe_load(path.read_text()))
    assert len(paths) > 15


@pytest.mark.parametrize("axis", ["surrogate", "token_weight", "reduction"])
def test_every_kind_is_used_by_a_preset_or_is_a_setting_of_its_own(axis, presets, compose_method):
    used = {getattr(compose_method(name).algorithm, axis).kind for name in presets}
    assert AXES[axis][0].keys() - used <= {"mask"}


def test_the_checks_know_which_surrogates_read_a_window_and_which_divergences_have_one():
    reads = {kind: inspect.unwrap(built).uses_window for kind, built in SURROGATES.items()}
    assert {kind for kind, use in reads.items() if use == "none"} == objective_boundary.READS_NO_WINDOW
    assert {kind for kind, use in reads.items() if use == "bounds"} == objective_boundary.READS_BOUNDS
    adapter = TypeAdapter(DivergenceConfig)
    without = set()
    for kind in DIVERGENCES:
        settings = adapter.validate_python(yaml.safe_load((CONF / f"divergence/{kind}.yaml").read_text()))
        built = DIVERGENCES[kind](**settings.model_dump(exclude={"kind"}))
        if not built.has_window:
            without.add(kind)
    assert without == objective_boundary.WITHOUT_WINDOW


def test_every_preset_says_where_it_comes_from():
    for path in sorted((CONF / "algorithm").glob("*.yaml")):
        header = [line for line in path.read_text().splitlines() if line.startswith("#")]
        text = " ".join(header)
        assert any(mark in text for mark in ("arXiv", "Williams 1992", "github.com", "verl")), path.name
        assert max(map(len, header)) <= 120, path.name
