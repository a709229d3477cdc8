"""The model card of an exported policy, with Python lines that prompt the policy as in training."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from atrium.base.errors import RunFolderError
from atrium.base.nested import mapping_at, setting
from atrium.base.plain_files import read_plain
from atrium.base.recorded import read_object
from atrium.base.records import Problem
from atrium.data.prompts import Prompt, PromptTemplate, plain_prompt, prompt_turns
from atrium.data.sources import is_local
from atrium.document.formatting import share, span
from atrium.runs.reader import EvaluationPoint, read_evaluations
from atrium.runs.run_folder import RunFolder
from atrium.runs.sample_files import read_samples

CARD = "README.md"
PROMPT_FILE = "prompt.txt"
_QUESTION = "{question}"
_MADE_UP = (
    "# The run has no recorded samples, so the question is invented. If the data have a system turn or "
    "earlier turns, add them."
)
_FIX_DATE = (  # transformers has no parameter that replaces strftime_now in chat templates
    "transformers.utils.chat_template_utils.datetime = type('Day', (datetime.datetime,), "
    "{{'now': classmethod(lambda cls, tz=None: cls({year}, {month}, {day}))}})"
)


def example_of(folder: RunFolder) -> Problem | None:
    """Return the first problem with a readable recorded sample, or None if the run has no such sample.

    The problem contains earlier turns of the conversation, but no reference answer.
    """
    sampled = (*folder.rollouts_dir.glob("*.parquet"), *folder.evaluations_dir.glob("*/*.parquet"))
    for path in sorted(sampled, key=lambda path: (path.parent != folder.rollouts_dir, path)):
        with suppress(RunFolderError):  # a damaged file of samples must not prevent the export
            for row in read_samples(path, ["question", "turns"])[:1]:
                turns = tuple((role, text) for role, text in json.loads(row.get("turns") or "[]"))
                return Problem(problem_id="example", question=row["question"], answer="", turns=turns)
    return None


def write_card(target: Path, folder: RunFolder, config: Mapping[str, object], step: int) -> None:
    """Write the model card of the policy in `target`.

    If the prompt template is plain text rather than a chat template, it is written to `target` too.
    """
    template = _template(config)
    if template is not None and not template.use_chat_template:
        (target / PROMPT_FILE).write_text(plain_prompt(_QUESTION, template), encoding="utf-8")
    text = "\n".join(_card_lines(target, folder, config, step))
    (target / CARD).write_text(f"{text}\n", encoding="utf-8")


def usage_lines(config: Mapping[str, object], policy: Path, place: str, example: Problem | None) -> list[str]:
    """Return Python code, as lines, that loads a policy from `place` and samples an answer to `example`.

    `policy` is the folder of the exported policy. If `example` is None, the code contains an invented
    question. If the configuration has no readable prompt template, the code only loads the policy.
    """
    lines = [
        f"from transformers import AutoModelForCausalLM, AutoTokenizer; place = {place!r}",
        "tokenizer, model = (c.from_pretrained(place) for c in (AutoTokenizer, AutoModelForCausalLM))",
    ]
    if (policy / "adapter_config.json").is_file():
        base = str(setting(config, "model.source") or "BASE_MODEL")
        lines[0] += f"; base = {base!r}; from peft import PeftModel"
        lines[1] = f"{lines[1].replace('(place)', '(base)')}; model = PeftModel.from_pretrained(model, place)"
    template = _template(config)
    if template is None:
        return lines
    if template.use_chat_template and (day := _day(config, policy, "strftime_now")) is not None:
        lines[0] += "; import datetime, transformers.utils.chat_template_utils"
        lines[1] += f"; {_FIX_DATE.format(year=day.year, month=day.month, day=day.day)}"
    if not template.use_chat_template:
        lines[0] += "; import pathlib"
    is_built_in = setting(config, "model.kind") == "tiny" or setting(config, "model.weights") == "random"
    has_stop = bool(template.stop) and not is_built_in
    stop = f", stop_strings={list(template.stop)!r}, tokenizer=tokenizer" if has_stop else ""
    text = (
        "tokenizer.decode(model.generate(prompt, do_sample=True, top_k=0, top_p=1.0, "
        f"temperature={setting(config, 'rollout.temperature')}, "
        f"max_new_tokens={setting(config, 'rollout.max_new_tokens')}{stop})[0, prompt.shape[1]:])"
    )
    if template.stop and is_built_in:  # transformers' stop_strings do not work with the built-in vocabulary
        lines[0] += "; import re"
        text = f"re.split({'|'.join(f'(?<={re.escape(one)})' for one in template.stop)!r}, {text})[0]"
    is_chain = setting(config, "dataset.kind") == "arithmetic"
    if example is None:
        question = "7+8-4=" if is_chain else "What is 7 + 8 - 4?"
        if not is_chain:
            lines.append(_MADE_UP)
        example = Problem(problem_id="example", question=question, answer="")
    return [
        *lines,
        f'prompt = {_prompt(config, template, policy, example)}, return_tensors="pt")',
        f"print({text})",
    ]


def _template(config: Mapping[str, object]) -> PromptTemplate | None:
    try:
        given = json.dumps(setting(config, "model.prompt"))
        template: PromptTemplate = TypeAdapter(Prompt).validate_json(given)
    except ValidationError:
        return None
    return template


def _prompt(config: Mapping[str, object], template: PromptTemplate, policy: Path, example: Problem) -> str:
    """Return the Python call, without its closing parenthesis, that encodes the example as in training."""
    if not template.use_chat_template:
        read = f'pathlib.Path(place, "{PROMPT_FILE}").read_text(encoding="utf-8")'
        return f"tokenizer.encode({read}.replace({_QUESTION!r}, {example.question!r})"
    day = _day(config, policy, "date_string")
    options = {} if day is None else {"date_string": day.strftime("%d %b %Y")}
    given = "".join(f", {name}={value!r}" for name, value in {**options, **template.chat_options}.items())
    turns = prompt_turns(example, template)
    return f"tokenizer.apply_chat_template({turns!r}, add_generation_prompt=True, return_dict=False{given}"


def _day(config: Mapping[str, object], policy: Path, reads: str) -> date | None:
    """Return the date that the prompts of training contained, if the chat template reads it as `reads`.

    `reads` is the name that stands for the date in a chat template, such as `date_string`. Returns None if no
    date is recorded, or if the policy's chat template does not contain this name.
    """
    day = setting(config, "model.date")
    files = [policy / name for name in ("chat_template.jinja", "tokenizer_config.json")]
    text = "".join(read_plain(path).decode("utf-8", "replace") for path in files if path.is_file())
    return date.fromisoformat(day) if isinstance(day, str) and reads in text else None


def _card_lines(target: Path, folder: RunFolder, config: Mapping[str, object], step: int) -> Iterator[str]:
    provenance, _ = read_object(folder.provenance_file)
    base, method = setting(config, "model.source"), str(setting(config, "algorithm.name"))
    yield from ("---", "library_name: transformers", "pipeline_tag: text-generation")
    if isinstance(base, str) and not is_local(base):
        yield f"base_model: {base}"
    yield from ("tags: [atrium, reinforcement-learning]", "---", "", f"# {folder.name}, step {step}", "")
    source = str(base or "Atrium's built-in model")
    source = Path(source).name if is_local(source) else source
    data = setting(config, "dataset.name") or setting(config, "dataset.kind")
    seed = setting(config, "seed")
    yield f"{source}, trained on {data} with the method {method}, seed {seed}, by Atrium."
    yield from ("", "## Use", "", "From within this folder:", "", "```python")
    yield from usage_lines(config, target, ".", example_of(folder))
    yield from ("```", "", "## Method", "", "| axis | choice |", "|---|---|")
    described = {"method": method, **mapping_at(read_object(folder.method_file)[0], "description")}
    yield from (f"| {name} | {str(value).replace('|', '/')} |" for name, value in described.items() if value)
    yield from ("", "## Scores", "", *_score_lines(folder, step))
    yield from ("", "## Origin", "")
    commit = setting(provenance, "code.commit") or "unknown"
    changes = " with local changes" if setting(provenance, "code.is_dirty") else ""
    yield f"- Run `{folder.name}`, step {step}"
    yield f"- Atrium {provenance.get('atrium', 'of an unknown version')}, commit {commit}{changes}"
    command = str(provenance.get("command") or "unknown")
    program, *arguments = command.split(" ", 1)
    yield f"- Command: `{' '.join([Path(program).name, *arguments])}`"


def _score_lines(folder: RunFolder, step: int) -> Iterator[str]:
    """Yield the lines of a Markdown table of the scores at step 0 and at `step`."""
    found = {name: {one.step: one for one in points} for name, points in read_evaluations(folder).items()}
    if not any(step in points for points in found.values()):
        yield f"Step {step} was not evaluated."
        if not found:
            return
        yield ""
    yield f"| benchmark | problems | score | step 0 | step {step} |"
    yield "|---|---|---|---|---|"
    for name, points in sorted(found.items()):
        some = next(iter(points.values()))
        scores = " | ".join(_score(points.get(one)) for one in (0, step))
        yield f"| {name} | {some.num_problems or '–'} | Mean@{some.k or 'k'} | {scores} |"
    yield from ("", "In brackets: 95 % intervals over problems.")


def _score(point: EvaluationPoint | None) -> str:
    return "–" if point is None else f"{share(point.mean_at_k)} {span(point.interval_over_problems)}".rstrip()
