"""A policy: a causal language model with its tokenizer and the limits needed for sampling.

Policies are loaded from a local folder or the Hub. Weights must be safetensors, and code in a repository is
never run. Errors in a source are reported in one line, without the libraries' own output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import GENERATION_CONFIG_NAME

from atrium.base.errors import CheckpointError, ConfigError
from atrium.models.context import Context
from atrium.models.lora import ADAPTER_FOLDER, has_lora, host_weights, merged_weights, write_adapter
from atrium.models.sources import buildable, first_of, locate, quiet, readable

_UNBOUNDED = 1 << 20
"""Context in tokens of models that compute rows of any length."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Policy:
    """A model, its tokenizer, and their limits.

    Each of `stop_token_ids` ends a completion and is kept as its last token. `context` limits the length of
    prompt and completion together.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    stop_token_ids: tuple[int, ...]
    pad_token_id: int
    context: Context

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of a prompt and its completion together."""
        return self.context.length

    @property
    def num_parameters(self) -> int:
        """The number of parameters; tied parameters count once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def size(self) -> str:
        """A phrase for messages that states the number of parameters, such as `100,480 parameters`.

        If only some parameters are trained, their number comes first: `1,024 of 100,480 parameters`.
        """
        num_trained = sum(value.numel() for value in self.model.parameters() if value.requires_grad)
        whole = f"{self.num_parameters:,} parameters"
        return whole if num_trained == self.num_parameters else f"{num_trained:,} of {whole}"

    def weights(self) -> Mapping[str, Tensor]:
        """Return the model's `state_dict` with merged adapters, including tied heads.

        Adapters are merged into a weight when it is read.
        """
        return merged_weights(self.model)


def load_policy(
    source: str | Path,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    revision: str | None = None,
) -> Policy:
    """Load a policy from a transformers folder or a Hub id, in evaluation mode.

    On the device `meta`, no weights are read, and parameters have no values. Raises `ConfigError` if the
    source cannot be found or reached, is gated, needs its own code, has no end-of-sequence token, or is a
    local folder with a `revision`; `CheckpointError` if it is incomplete, damaged, quantized or pickled, or
    if weights are not finite.
    """
    location = locate(str(source), revision)
    options: dict[str, Any] = {"revision": revision or "main", "trust_remote_code": False}
    with quiet(), readable(location):
        config, tokenizer = _described(location, options)
        if str(device) == "meta":
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, dtype=dtype)
            return _policy(model.eval(), tokenizer, str(location))
        model, report = AutoModelForCausalLM.from_pretrained(
            location,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, instead of in transformers' table
            **options,
        )
    misfits = sorted(report["missing_keys"]) + sorted(key[0] for key in report["mismatched_keys"])
    if misfits:
        raise CheckpointError(
            f"the weights in '{location}' do not fit its config.json (missing or of another shape: "
            f"{first_of(misfits)}); load a complete copy"
        )
    model = model.to(device)
    broken = [name for name, value in model.named_parameters() if not value.isfinite().all()]
    if broken:
        raise CheckpointError(
            f"the weights in '{location}' must be finite, but there is NaN or infinity in "
            f"{first_of(broken)}; load another copy, or start a new run from an earlier "
            "step with `atrium train --resume RUN@STEP optimizer.learning_rate=LR`"
        )
    return _policy(model.eval(), tokenizer, str(location))


def load_tokenizer(
    source: str | Path, *, revision: str | None = None
) -> tuple[PreTrainedTokenizerBase, Context]:
    """Load the tokenizer and the context of a policy, without its weights.

    Raises the errors of `load_policy`, except those for damaged weights or a missing end-of-sequence token.
    """
    location = locate(str(source), revision)
    with quiet(), readable(location):
        config, tokenizer = _described(location, {"revision": revision or "main", "trust_remote_code": False})
    return tokenizer, _context(config, tokenizer)


def _described(location: str, options: Mapping[str, Any]) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    """Load the configuration and the tokenizer of a source.

    Raises `CheckpointError` for quantized weights or an empty tokenizer.
    """
    config = AutoConfig.from_pretrained(location, **options)
    _refuse_quantised(config, location)
    tokenizer = AutoTokenizer.from_pretrained(location, **options)
    if not tokenizer.encode("1", add_special_tokens=False):
        # For some tokenizers, transformers creates an empty one if files are missing.
        raise CheckpointError(
            f"the tokenizer of '{location}' is empty, since its files are missing; copy tokenizer.json "
            "and tokenizer_config.json from the model's source"
        )
    return config, tokenizer


def _context(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> Context:
    context = Context.of(config.get_text_config().to_dict())
    return context if context.length else Context(min(tokenizer.model_max_length, _UNBOUNDED))


def with_files_of(policy: Policy, folder: Path) -> Policy:
    """Return the policy with the tokenizer, stop tokens and generation config of a checkpoint's folder.

    The special token ids and the generation config of `policy.model` are changed in place. Raises
    `CheckpointError` if the files cannot be read.
    """
    model, options = policy.model, {"trust_remote_code": False, "local_files_only": True}
    with quiet(), readable(str(folder)):
        config = AutoConfig.from_pretrained(folder, **options)
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        if (folder / GENERATION_CONFIG_NAME).is_file():
            model.generation_config = GenerationConfig.from_pretrained(folder)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(model.config, name, getattr(config, name, None))
    return _policy(model, tokenizer, str(folder))


def _refuse_quantised(config: PreTrainedConfig, location: str | Path) -> None:
    quantisation = getattr(config, "quantization_config", None)
    if quantisation is None:
        return
    method = quantisation.get("quant_method", "some way") if isinstance(quantisation, dict) else "some way"
    raise CheckpointError(
        f"the weights in '{location}' are quantized ({method}), so they cannot be trained; load the "
        "original model"
    )


def build_random_policy(
    architecture: Mapping[str, Any],
    *,
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Policy:
    """Build a policy with random weights.

    `architecture` contains `model_type` and the keys of its config.json. Special tokens come from the
    tokenizer, and so does `vocab_size` unless it is given. The weights depend on the seed only, and the
    global random state is unchanged. Raises `ConfigError` for an architecture that transformers does not know
    or cannot build, or with a `vocab_size` below the tokenizer's.
    """
    special = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    settings = {"vocab_size": len(tokenizer), **architecture, **special}
    if settings["vocab_size"] < len(tokenizer):
        raise ConfigError(
            f"architecture.vocab_size must be at least {len(tokenizer)}, the number of tokens of the "
            f"tokenizer, got {settings['vocab_size']}; raise it, or remove it"
        )
    with quiet(), torch.random.fork_rng(devices=[]), buildable(settings):
        # Not torch.manual_seed: that would also reseed CUDA, which is not restored here.
        torch.default_generator.manual_seed(seed)
        with torch.device("meta" if str(device) == "meta" else "cpu"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=dtype)
    model.generation_config = GenerationConfig(**special)
    return _policy(model.to(device).eval(), tokenizer, "the given architecture")


def write_policy(policy: Policy, folder: Path) -> None:
    """Write the policy into an existing folder, in the transformers format.

    Adapters are merged into the weights, and also stored in a separate subfolder.
    """
    with quiet():
        if has_lora(policy.model):
            policy.model.save_pretrained(folder, state_dict=host_weights(policy.model))
            write_adapter(policy.model, folder / ADAPTER_FOLDER)
        else:
            policy.model.save_pretrained(folder)
        policy.tokenizer.save_pretrained(folder)


def _policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str) -> Policy:
    stop = _token_ids(tokenizer.eos_token_id, model.config.eos_token_id)
    if model.generation_config is not None:
        stop |= _token_ids(model.generation_config.eos_token_id)
    size = model.config.get_text_config().vocab_size
    beyond, stop = {one for one in stop if one >= size}, {one for one in stop if one < size}
    if not stop:
        found = f" among the model's {size} tokens (found: {sorted(beyond)})" if beyond else ""
        raise ConfigError(
            f"neither the model nor the tokenizer of {source} has an end-of-sequence token{found}, so "
            "completions could never end; set eos_token_id in its config.json"
        )
    pad = _token_ids(tokenizer.pad_token_id) or _token_ids(model.config.pad_token_id) or stop
    return Policy(
        model=model,
        tokenizer=tokenizer,
        stop_token_ids=tuple(sorted(stop)),
        pad_token_id=min(pad),
        context=_context(model.config, tokenizer),
    )


def _token_ids(*values: int | list[int] | None) -> set[int]:
    """Return all token ids in `values`; each value is one id, a list of ids, or None."""
    ids: set[int] = set()
    for value in values:
        if value is not None:
            ids.update(value if isinstance(value, list) else [value])
    return ids
