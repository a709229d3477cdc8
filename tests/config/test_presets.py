"""The reader of shipped methods says what Hydra composes, without Hydra."""

from __future__ import annotations

import hydra
import pytest
from omegaconf import OmegaConf

from atrium.base.errors import ConfigError
from atrium.config import presets
from atrium.config.files import conf_folder
from atrium.config.presets import names, read_part, read_preset, read_presets

VARIED = ("atr", "fipo", "gvpo_offpolicy", "dr_grpo", "gspo", "rpg_reinforce_fkl", "dppo_top_k_tv", "rloo")
"""Presets with parents of parents, choices in every group, and values taken from elsewhere."""


def assert_hydra_composes(chosen):
    groups = ["+divergence=ratio", "+regularizer=none", "+rollout=transformers"]
    with hydra.initialize_config_dir(str(conf_folder()), version_base="1.3"):
        for preset in map(read_preset, chosen):
            node = hydra.compose(None, [*groups, f"+algorithm={preset.name}"])
            if "rollout" in preset.parts:  # its files name what must be given
                node.rollout.source = "given"
            plain = OmegaConf.to_container(node, resolve=True)
            assert preset.algorithm == type(preset.algorithm).model_validate(plain["algorithm"]), preset.name
            assert preset.divergence == presets.divergence_from(plain["divergence"], preset.name)
            assert preset.regularizer == type(preset.regularizer).model_validate(plain["regularizer"])


def test_a_preset_is_what_hydra_composes():
    assert_hydra_composes(VARIED)


@pytest.mark.full
def test_every_preset_is_what_hydra_composes():
    assert_hydra_composes(names("algorithm"))


def test_all_presets_are_read():
    assert [preset.name for preset in read_presets()] == list(names("algorithm"))


def test_a_value_taken_from_another_group_says_from_where():
    preset = read_preset("dr_grpo")
    assert preset.references == {"reduction.constant": "rollout.max_new_tokens"}
    assert preset.algorithm.reduction.constant > 1


def test_a_child_builds_on_its_parent_and_keeps_its_parents_choices():
    dapo, fipo = read_preset("dapo"), read_preset("fipo")
    assert (fipo.parent, fipo.divergence) == ("dapo", dapo.divergence)
    assert fipo.algorithm.group_filter == dapo.algorithm.group_filter
    assert read_preset("atr").parts["divergence"].name == "kl3"


def test_the_header_is_the_comment_without_its_marks():
    header = read_part("divergence", "ratio").header
    assert header.startswith("|w - 1| <= delta")
    assert "#" not in header


@pytest.mark.parametrize(
    ("group", "name", "said"),
    [("algorithm", "gsppo", "did you mean gspo?"), ("divergence", "kl33", "did you mean kl3?")],
)
def test_a_wrong_name_is_one_line_with_the_nearest_right_one(group, name, said):
    with pytest.raises(ConfigError, match="unknown") as caught:
        read_part(group, name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_setting_in_a_file_names_the_file_and_the_setting():
    with pytest.raises(ConfigError, match=r"divergence=mine: divergence\.delta must be"):
        presets.divergence_from({"kind": "kl3", "delta": -1.0}, "divergence=mine")
