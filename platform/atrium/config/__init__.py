"""Typed, validated configuration, and its composition by Hydra; without torch."""
