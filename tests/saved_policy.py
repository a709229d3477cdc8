"""Policies as folders, for tests of what reads them."""

from __future__ import annotations

from atrium.models.policy import write_policy


def save_policy(policy, folder):
    """Write a policy into a new transformers folder."""
    folder.mkdir(parents=True)
    write_policy(policy, folder)
