"""Functions that check the chat template, encode prompts with the run's date, and hash prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from atrium.base.errors import ConfigError
from atrium.base.records import Problem, TokenIds
from atrium.config.schema import RunConfig
from atrium.data.prompt_checks import check_prompt
from atrium.data.prompts import PromptEncoder, prompt_encoder
from atrium.models.policy import Policy

_MAX_HASHED = 256
"""Number of problems at the start of a set whose prompts are hashed; a whole large set would take minutes."""


def checked_encoder(
    config: RunConfig, policy: Policy, problem: Problem, log: Callable[[str], None], *, is_resumed: bool
) -> PromptEncoder:
    """Return a function that encodes the prompt of a problem; `problem` is encoded first, as a check.

    Raises `ConfigError` for an unsuitable chat template, and for a prompt setting that the template ignores.
    In a resumed run, the error is logged as a warning instead.
    """
    template, date = config.model.prompt, config.model.date
    try:
        notes = check_prompt(policy.tokenizer, template, problem, date)
    except ConfigError as error:
        if not is_resumed:
            raise
        notes = [str(error)]
    for note in notes:
        log(f"warning: {note}")
    return _within(policy, prompt_encoder(policy.tokenizer, template, date))


def _within(policy: Policy, encode: PromptEncoder) -> PromptEncoder:
    """Wrap `encode` so that it raises `ConfigError` for a token without an embedding in the model."""
    size = policy.model.config.get_text_config().vocab_size

    def encode_within(problem: Problem) -> TokenIds:
        token_ids = encode(problem)
        if len(token_ids) and (largest := int(token_ids.max())) >= size:
            raise ConfigError(
                f"the prompt of problem {problem.problem_id!r} has the token {largest} "
                f"({policy.tokenizer.convert_ids_to_tokens(largest)!r}), but the vocabulary of the model "
                f"has only {size} tokens; load the tokenizer of the model, or choose a prompt without "
                "that token"
            )
        return token_ids

    return encode_within


def prompt_hashes(sets: Mapping[str, Sequence[Problem]], encode: PromptEncoder) -> dict[str, str]:
    """Return a hash of each problem set's prompts, keyed by the name of the set.

    A hash is the SHA-256 (hex) of the tokens of the set's first 256 prompts.
    """
    found = {}
    for name, problems in sets.items():
        digest = hashlib.sha256()
        for problem in problems[:_MAX_HASHED]:
            digest.update(encode(problem).astype("<i4").tobytes() + b";")
        found[name] = digest.hexdigest()
    return found
