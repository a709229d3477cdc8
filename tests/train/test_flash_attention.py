"""FlashAttention 3: activated on the GPUs that have it, else refused in one line with the reason."""

from __future__ import annotations

import pytest
import torch
from torch.nn import attention

from atrium.base.errors import ConfigError
from atrium.train.update.flash_attention import use_flash_attention_3


@pytest.fixture
def capability(monkeypatch):
    """Sets the compute capability of the pretended GPU."""

    def set_capability(*found):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: found)

    return set_capability


def test_another_gpu_is_refused_and_named(capability):
    capability(8, 0)
    with pytest.raises(ConfigError, match=r"requires compute capability 9\.0, but this GPU has 8\.0; use"):
        use_flash_attention_3()


def test_a_missing_package_is_refused_and_named(capability):
    capability(9, 0)
    with pytest.raises(ConfigError, match=r"flash_attn_interface cannot be loaded .*flash_attention=2"):
        use_flash_attention_3()
    assert attention.current_flash_attention_impl() is None


def test_a_torch_without_a_choice_is_refused(capability, monkeypatch):
    monkeypatch.delattr(attention, "activate_flash_attention_impl")
    with pytest.raises(ConfigError, match="cannot replace its own FlashAttention"):
        use_flash_attention_3()


def test_version_3_is_activated_where_it_can_be(capability, monkeypatch):
    capability(9, 0)
    activated = []
    monkeypatch.setattr(attention, "activate_flash_attention_impl", activated.append)
    use_flash_attention_3()
    assert activated == ["FA3"]
