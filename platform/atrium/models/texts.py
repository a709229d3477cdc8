"""The text of sampled tokens, without special tokens except reasoning markers."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from atrium.base.records import REASONING_MARKERS


class TextDecoder:
    """A function that converts token ids to the text that is graded.

    Special tokens, such as those for the end of a sequence and padding, are removed. Some tokenizers declare
    reasoning markers as special tokens too; these are kept, since the grader reads them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        special = {id_: str(token) for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
        special |= zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=False)
        markers = {id_ for id_, text in special.items() if text.strip() in REASONING_MARKERS}
        self._dropped = special.keys() - markers if markers else None

    def __call__(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each row of token ids."""
        if self._dropped is None:
            return list(self._tokenizer.batch_decode(rows, skip_special_tokens=True))
        kept = [[id_ for id_ in row if id_ not in self._dropped] for row in rows]
        return list(self._tokenizer.batch_decode(kept, skip_special_tokens=False))
