"""Typed, validated configuration and its composition by Hydra; never imports torch."""
