"""The exact shape of the model in a configuration, from transformers; no weights are loaded."""

from __future__ import annotations

from atrium.config.schema import RunConfig
from atrium.models.architecture import hub_shape, random_shape
from atrium.models.settings import TinyModelSettings
from atrium.models.shape import ModelShape


def exact_shape(config: RunConfig) -> ModelShape:
    """Return the shape of the built-in model, of the file's own architecture, or of the source's config.json.

    Raises as loading the model does.
    """
    model = config.model
    if isinstance(model, TinyModelSettings):
        return random_shape(model.architecture)
    if model.architecture is not None:
        return random_shape(model.architecture)
    return hub_shape(model.source, model.revision)
