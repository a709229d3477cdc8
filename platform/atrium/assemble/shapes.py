"""The exact shape of a configuration's model, computed by transformers without loading weights."""

from __future__ import annotations

from atrium.config.schema import RunConfig
from atrium.models.architecture import hub_shape, random_shape
from atrium.models.settings import TinyModelSettings
from atrium.models.shape import ModelShape


def exact_shape(config: RunConfig) -> ModelShape:
    """Return the model's shape, from `model.architecture` or from the config.json of the model's source.

    Raises the errors that loading the model would raise.
    """
    model = config.model
    if isinstance(model, TinyModelSettings):
        return random_shape(model.architecture)
    if model.architecture is not None:
        return random_shape(model.architecture)
    return hub_shape(model.source, model.revision)
