"""Sources of models: a local folder or a Hub id, with errors in one line."""

from __future__ import annotations

import difflib
import logging
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import errors as hub
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from atrium.base.errors import AtriumError, CheckpointError, ConfigError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# Errors that transformers raises for a folder that is damaged or not a language model. It has no error type
# of its own for this case, and a malformed field raises wherever it is first used.
LOADING_ERRORS = (
    OSError,
    ValueError,
    RuntimeError,
    TypeError,
    KeyError,
    AttributeError,
    ImportError,
    SafetensorError,
    hub.StrictDataclassError,
)


def locate(source: str, revision: str | None) -> str:
    """Return the local folder or the Hub id that `source` names.

    Raises `ConfigError` if it is neither, or for a `revision` of a local folder, and `CheckpointError` for a
    folder without a config.json or safetensors, or with special files such as pipes.
    """
    folder = Path(os.path.expanduser(source))  # noqa: PTH111 - leaves an unknown ~user as it is
    if folder.is_dir():
        if revision is not None:
            raise ConfigError(
                f"model.revision={revision} cannot be used with '{source}', which is a local folder; "
                "remove model.revision"
            )
        if not (folder / "config.json").is_file():
            raise CheckpointError(
                f"'{source}' has no config.json, so it is not a transformers folder; choose a folder "
                "with config.json and model.safetensors"
            )
        odd = [
            path.name for path in folder.iterdir() if path.exists() and not (path.is_file() or path.is_dir())
        ]
        if odd:
            raise CheckpointError(f"'{source}' contains {odd[0]}, which is not a regular file; remove it")
        if not any(folder.glob("*.safetensors")):
            raise CheckpointError(
                f"'{source}' has no *.safetensors file, and Atrium does not load pickled weights; "
                "convert them with save_pretrained"
            )
        return str(folder)
    if folder.is_file():
        raise ConfigError(f"'{source}' is a file; choose the folder with config.json and the weights")
    if source.startswith(("/", ".", "~")) or not _HUB_ID.fullmatch(source):
        siblings = [path.name for path in folder.parent.glob("*/")]
        near = difflib.get_close_matches(folder.name, siblings, n=1)
        hint = f"; did you mean '{folder.with_name(near[0])}'?" if near else ""
        raise ConfigError(f"'{source}' is neither a folder nor a Hub id (owner/name){hint}")
    return source


@contextmanager
def readable(location: str) -> Iterator[None]:
    """Convert a library error in the `with` block, which reads a source, into a one-line error.

    The error is a `ConfigError` or a `CheckpointError`, and names the source by `location`.
    """
    try:
        yield
    except LOADING_ERRORS as error:
        raise _explain(location, error) from error


@contextmanager
def buildable(architecture: Mapping[str, Any]) -> Iterator[None]:
    """Convert a library error in the `with` block, which builds a model, into a one-line `ConfigError`.

    Raises `ConfigError` before the block if `architecture` has no `model_type`.
    """
    if "model_type" not in architecture:
        raise ConfigError("architecture.model_type is missing; set it, for example to qwen3")
    try:
        yield
    except LOADING_ERRORS as error:
        raise ConfigError(
            f"the architecture '{architecture['model_type']}' cannot be built: {one_line(error)}; "
            "correct model.architecture"
        ) from error


def _explain(location: str, error: BaseException) -> AtriumError:
    cause: BaseException | None = error
    while cause is not None:
        for kind, reason in _HUB_REASONS.items():
            if isinstance(cause, kind):
                return ConfigError(f"cannot load the model '{location}': {reason}")
        cause = cause.__cause__ or cause.__context__
    if "trust_remote_code" in str(error):
        return ConfigError(
            f"cannot load the model '{location}': it needs code from its own repository, which "
            "Atrium never runs; choose a model that the transformers library itself implements"
        )
    return CheckpointError(
        f"cannot load the model '{location}': {one_line(error)}; its files may be damaged or "
        "incomplete, or the installed version of transformers does not support it"
    )


def first_of(names: Sequence[str]) -> str:
    """Return the first name, and how many more there are, as text for a message."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def one_line(error: BaseException) -> str:
    """Return an error's type and the beginning of its message, on one line."""
    message = textwrap.shorten(str(error), width=200, placeholder=" …").rstrip(".:")
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress library warnings and transformers' progress bars within the `with` block.

    The progress bars of downloads are still shown.
    """

    def hidden(factory: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:  # noqa: ANN401 - transformers' hook
        return factory(*args, **{**options, "disable": True})

    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    previous = transformers_logging.set_tqdm_hook(hidden)
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        transformers_logging.set_tqdm_hook(previous)


# GatedRepoError is a subclass of RepositoryNotFoundError and must come first.
_HUB_REASONS: Mapping[type[BaseException], str] = {
    hub.GatedRepoError: "it is gated; request access on its Hub page, then run `hf auth login`",
    hub.RevisionNotFoundError: "it has no such revision; check model.revision",
    hub.RepositoryNotFoundError: (
        "it is neither a local folder nor a model on the Hub that you can access; check the name, or run "
        "`hf auth login` for a private one"
    ),
    hub.OfflineModeIsEnabled: (
        "it is not in the local Hub cache and cannot be downloaded because HF_HUB_OFFLINE is set; unset "
        "it or name a local folder"
    ),
    hub.LocalEntryNotFoundError: (
        "it is neither a local folder nor in the local Hub cache, and the Hub cannot be reached (or "
        "HF_HUB_OFFLINE is set); check the name and the connection"
    ),
}
