"""A policy: a causal language model with its tokenizer and what sampling from it needs to know.

Loads from a local folder or the Hub, from safetensors only, and never runs code that a repository
brings. What is wrong with a source becomes one line; the library's own chatter is kept off the terminal.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import errors as hub
from safetensors import SafetensorError
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from atrium.errors import AtriumError, CheckpointError, ConfigError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
# What transformers raises for a folder that is damaged or not a language model: it has no type of its own
# for that, and a malformed field surfaces wherever it is first used.
_LOADING_ERRORS = (
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Policy:
    """A model, its tokenizer, and their limits.

    Any of `stop_token_ids` ends a completion and is kept in it. `context_length` bounds prompt and
    completion together, in tokens.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stop_token_ids: tuple[int, ...]
    pad_token_id: int
    context_length: int

    @property
    def num_parameters(self) -> int:
        """The number of parameters, tied ones counted once."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def load_policy(
    source: str | Path,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    revision: str | None = None,
) -> Policy:
    """Load a policy from a transformers folder or a Hub id, in evaluation mode.

    Raises `ConfigError` for a source that cannot be found or reached, a gated one, or a revision that a
    local folder cannot have; `CheckpointError` for one that is incomplete, damaged or pickled.
    """
    location = _locate(str(source), revision)
    options: dict[str, Any] = {"revision": revision or "main", "trust_remote_code": False}
    with _quiet(), _readable(location):
        config = AutoConfig.from_pretrained(location, **options)
        tokenizer = AutoTokenizer.from_pretrained(location, **options)
        model, report = AutoModelForCausalLM.from_pretrained(
            location,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, rather than in a table on the terminal
            **options,
        )
    misfits = sorted(report["missing_keys"]) + sorted(key[0] for key in report["mismatched_keys"])
    if misfits:
        raise CheckpointError(
            f"the weights in '{location}' do not fit its config.json: {len(misfits)} tensors are missing "
            f"or of another shape (first: {misfits[0]}); load a complete copy"
        )
    return _policy(model.to(device).eval(), tokenizer, str(location))


def build_random_policy(
    architecture: Mapping[str, Any],
    *,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Policy:
    """A policy with random weights; `architecture` holds `model_type` and the keys of its config.

    Special tokens come from the tokenizer, and so does `vocab_size` unless it is given. The weights
    depend on the seed only, and the global random state is left as it was. Raises `ConfigError` for an
    architecture that transformers does not know or cannot build.
    """
    special = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    settings = {"vocab_size": len(tokenizer), **architecture, **special}
    if "model_type" not in settings:
        raise ConfigError("architecture.model_type is missing; name one, such as qwen3")
    if settings["vocab_size"] < len(tokenizer):
        raise ConfigError(
            f"architecture.vocab_size is {settings['vocab_size']}, but the tokenizer has "
            f"{len(tokenizer)} tokens; raise it or leave it out"
        )
    with _quiet(), torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: that would also reseed CUDA, which is not restored here.
        torch.default_generator.manual_seed(seed)
        try:
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=dtype)
        except _LOADING_ERRORS as error:
            raise ConfigError(
                f"cannot build the architecture '{settings.get('model_type')}': {_line(error)}"
            ) from error
    model.generation_config = GenerationConfig(**special)
    return _policy(model.to(device).eval(), tokenizer, "the given architecture")


def save_policy(policy: Policy, folder: Path) -> None:
    """Write the policy as a plain transformers folder: all of it, or nothing.

    Raises `CheckpointError` when the folder exists already or cannot be written.
    """
    if folder.exists():
        raise CheckpointError(f"'{folder}' exists already; choose another folder or remove it")
    staging = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        write_policy(policy, staging)
        staging.chmod(0o755)  # mkdtemp's folders are for one user only
        staging.rename(folder)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"cannot write the policy to '{folder}': {_line(error)}; make room there or choose another folder"
        ) from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)


def write_policy(policy: Policy, folder: Path) -> None:
    """Write the files of `save_policy` into an existing folder, without its care."""
    with _quiet():
        policy.model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)


def copy_weights(policy: Policy) -> dict[str, Tensor]:
    """A detached copy of the model's `state_dict`, tied heads included."""
    return {name: tensor.detach().clone() for name, tensor in policy.model.state_dict().items()}


def _policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str) -> Policy:
    stop = _token_ids(tokenizer.eos_token_id, model.config.eos_token_id)
    if model.generation_config is not None:
        stop |= _token_ids(model.generation_config.eos_token_id)
    if not stop:
        raise ConfigError(
            f"neither the model nor the tokenizer of {source} names an end-of-sequence token, so "
            "completions could never end; set eos_token_id in its config.json"
        )
    pad = _token_ids(tokenizer.pad_token_id) or _token_ids(model.config.pad_token_id) or stop
    return Policy(
        model=model,
        tokenizer=tokenizer,
        stop_token_ids=tuple(sorted(stop)),
        pad_token_id=min(pad),
        context_length=model.config.get_text_config().max_position_embeddings,
    )


def _token_ids(*values: int | list[int] | None) -> set[int]:
    """The ids in settings that hold one, several or none."""
    ids: set[int] = set()
    for value in values:
        if value is not None:
            ids.update(value if isinstance(value, list) else [value])
    return ids


def _locate(source: str, revision: str | None) -> str:
    """The checked folder, or the Hub id, that a source names."""
    folder = Path(os.path.expanduser(source))  # noqa: PTH111 - leaves an unknown ~user as it is
    if folder.is_dir():
        if revision is not None:
            raise ConfigError(
                f"model.revision is '{revision}', but '{source}' is a local folder, which has none; remove it"
            )
        if not (folder / "config.json").is_file():
            raise CheckpointError(
                f"'{source}' holds no config.json, so it is not a transformers folder; name the folder "
                "that holds config.json and model.safetensors"
            )
        if not any(folder.glob("*.safetensors")):
            raise CheckpointError(
                f"'{source}' holds no *.safetensors file; Atrium loads no pickled weights, convert "
                "them with save_pretrained"
            )
        return str(folder)
    if folder.is_file():
        raise ConfigError(f"'{source}' is a file; name the transformers folder that holds it")
    if source.startswith(("/", ".", "~")) or not _HUB_ID.fullmatch(source):
        siblings = [path.name for path in folder.parent.glob("*/")]
        near = difflib.get_close_matches(folder.name, siblings, n=1)
        hint = f"; did you mean '{folder.with_name(near[0])}'?" if near else ""
        raise ConfigError(f"there is no folder '{source}', and it is no Hub id (owner/name){hint}")
    return source


@contextmanager
def _readable(location: str) -> Iterator[None]:
    """Turn whatever the libraries raise while reading a source into one line."""
    try:
        yield
    except _LOADING_ERRORS as error:
        raise _explain(location, error) from error


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
            "Atrium never runs; choose a model whose architecture transformers knows"
        )
    return CheckpointError(
        f"cannot load the model '{location}': {_line(error)}; its files are damaged, incomplete or "
        "not those of a causal language model"
    )


def _line(error: BaseException) -> str:
    """The kind of an error and the beginning of its message, on one line."""
    message = textwrap.shorten(str(error), width=200, placeholder=" ...").rstrip(".:")
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the libraries' warnings and transformers' own progress bars (not downloads) off the terminal."""

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


# The more specific kind first: a gated repository's error is also a missing one's.
_HUB_REASONS: Mapping[type[BaseException], str] = {
    hub.GatedRepoError: "it is gated; ask for access on its Hub page, then run `hf auth login`",
    hub.RevisionNotFoundError: "it has no such revision; check model.revision",
    hub.RepositoryNotFoundError: (
        "it is neither a local folder nor a model on the Hub that you may see; check the name, or "
        "run `hf auth login` for a private one"
    ),
    hub.OfflineModeIsEnabled: (
        "it is not in the local Hub cache, and HF_HUB_OFFLINE forbids to download it; unset it or "
        "name a local folder"
    ),
    hub.LocalEntryNotFoundError: (
        "it is neither a local folder nor in the local Hub cache, and the Hub cannot be reached (or "
        "HF_HUB_OFFLINE is set); check the name and the connection"
    ),
}
