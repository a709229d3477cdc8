"""`atrium figures`: figures of the effect of a trust region, from the stored rollouts of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from atrium.base.errors import ConfigError
from atrium.base.recorded import read_object
from atrium.cli.parser import CommandParser, present
from atrium.method.method import Method
from atrium.runs.find import find_runs
from atrium.runs.run_folder import RunFolder
from atrium.views.terminal import waiting

_COLUMNS = ("logprobs", "ratio", "clipped", "token_ids")
_EXAMPLES = """\
examples:
  atrium figures last          six panels of the latest run
  atrium figures my_experiment a picture for each of its runs
"""


def main(argv: Sequence[str]) -> int:
    """Print and draw the figures.

    Raises `ConfigError` if a run has no stored rollouts that were used in updates, or if its method is
    unknown.
    """
    parser = CommandParser(
        "figures",
        "Draw the effect of a trust region from stored rollouts: change of probability, and ratio with the\n"
        "window, by a token's probability and by position; effective sample size of sequences; the tokens\n"
        "clipped most often; and the method's slope by probability and ratio.",
        _EXAMPLES,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="`last`, runs by name, or an experiment")
    parser.add_runs_dir()
    parser.add_figures()
    arguments = parser.parse(argv)
    folders = find_runs(Path(arguments.runs_dir), arguments.runs)

    # These modules import torch; import them after all checks of the arguments.
    from atrium.runs.sample_files import read_samples
    from atrium.theory.rollout_figures import rollout_picture, rollouts_document, tokens_of

    methods, found, words = {}, {}, {}
    with waiting("reading rollouts"):
        for folder in folders:
            method = Method.read(read_object(folder.config_file)[0])
            paths = sorted(folder.rollouts_dir.glob("step-*.parquet"))
            rows = {int(path.stem.removeprefix("step-")): read_samples(path, _COLUMNS) for path in paths}
            tokens = tokens_of(rows)
            if method is None or tokens is None:
                raise ConfigError(
                    f"{folder.name} has no stored rollouts from updates by a known method; remove it "
                    "from the command"
                )
            methods[folder.name], found[folder.name], words[folder.name] = method, tokens, _words(folder)
    summary = {
        name: {"tokens": len(one.ratio_N), "effective_by_step": dict(one.effective_by_step)}
        for name, one in found.items()
    }
    present(
        arguments,
        summary,
        lambda: rollouts_document(found, words),
        lambda: [
            rollout_picture(name.rpartition("/")[2], methods[name], one, words[name])
            for name, one in found.items()
        ],
    )
    return 0


def _words(folder: RunFolder) -> Mapping[int, str]:
    """Return the text of each token id, from the last checkpoint's tokenizer.

    The result is empty without a tokenizer.
    """
    steps = folder.checkpoint_steps()
    path = folder.checkpoint_path(steps[-1]) / "policy" / "tokenizer.json" if steps else None
    if path is None or not path.is_file():
        return {}
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return {number: tokenizer.decode([number]) for number in range(tokenizer.get_vocab_size())}
