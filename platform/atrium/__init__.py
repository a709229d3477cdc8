"""Atrium: declarative experiments in reinforcement learning with verifiable rewards.

Importing this package imports nothing else; each layer is imported where it is used, so that the
command line starts quickly and configuration is checked before torch is loaded.
"""

__version__ = "0.1.0"
