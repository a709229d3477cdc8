"""Atrium's methods in other trainers: an objective on plain tensors, and adapters to common trainers."""
