"""Readers of sample files of lm-evaluation-harness and detail files of lighteval.

Formats: lm-eval 0.4.13 (`samples_<task>_<date>.jsonl` and `results_<date>.json`) and lighteval 0.13
(`details_<task>_<date>.parquet`), as written by these programs or by `atrium samples`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from atrium.base.errors import ConfigError, DataError
from atrium.base.nested import mapping_at, setting
from atrium.base.rows import Row
from atrium.imports.answers import Answer, Source, Stated, correctness
from atrium.imports.files import json_object, rows
from atrium.imports.tables import conversation_text

_DATED = re.compile(r"(?:samples|details)_(.+)_(\d{4}-\d\d-\d\dT[\d.:-]+)")
_METRICS = ("exact_match", "acc", "extractive_match", "pass@1", "pass_at_1", "math_pass@1", "em", "avg@n")
"""Metrics that measure correctness, in order of preference."""
_MEANS = re.compile(r"(?:.+_)?(?:avg@n(?::n=(\d+))?|pass@k:k=1(?:&n=(\d+))?)")
"""Lighteval metrics that are means over the answers to a problem."""
_IDS = ("problem_id", "unique_id", "question_id", "task_id", "id", "ID")
_QUESTIONS = ("question", "problem", "query", "prompt", "Question", "Problem")


def is_lm_eval(path: Path, row: Row) -> bool:
    """Return whether a file has the suffix and columns of lm-eval samples."""
    return path.suffix == ".jsonl" and {"doc_id", "doc", "resps"} <= row.keys()


def read_lm_eval(path: Path, first: Row, stated: Stated) -> Source:
    """Read the samples of one task. Each filter after the first becomes a separate benchmark."""
    task, date = _task_and_date(path)
    results_file = path.with_name(f"results_{date}.json")
    results = json_object(results_file) if date and results_file.is_file() else {}
    means = mapping_at(results, "results").get(task)
    reader = _LmEval(
        task=task,
        method=stated.method or _lm_eval_model(results, path),
        metric=_metric(path, _names(first.get("metrics")), stated),
        plain=str(first.get("filter") or "none"),
        stated=stated,
    )
    printed = {
        reader.benchmark(key.partition(",")[2]): float(value)
        for key, value in (means.items() if isinstance(means, Mapping) else ())
        if key.partition(",")[0] == reader.metric and isinstance(value, int | float)
    }
    has_filters = reader.plain != "none"
    return Source(
        path=path,
        format=f"lm-eval samples of {task}",
        mapping=(
            f"method is {reader.method}",
            f"score is {reader.metric}" + (f" after the filter {reader.plain}" if has_filters else ""),
            *(["each filter after the first is a separate benchmark"] if has_filters else []),
            f"mean and settings from {results_file.name}" if results else "no results file beside it",
        ),
        answers=(answer for place, row in rows(path) for answer in reader.answers(place, row)),
        settings=_lm_eval_settings(results, first),
        printed=printed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _LmEval:
    """A reader of one task's samples.

    `plain` is the filter of the file's first row. Its scores belong to the task's own benchmark, and the
    scores of each other filter belong to a separate benchmark.
    """

    task: str
    method: str
    metric: str
    plain: str
    stated: Stated

    def benchmark(self, name: str) -> str:
        """Return the name of the benchmark to which the scores of the filter `name` belong.

        This is the value of `--benchmark` if given, otherwise the task's name. For filters other than
        `self.plain`, `.<filter>` is appended.
        """
        benchmark = self.stated.benchmark or self.task
        return benchmark if name == self.plain else f"{benchmark}.{name}"

    def answers(self, place: str, row: Row) -> Iterator[Answer]:
        """Yield the answers in a row, which contains all samples of one problem."""
        doc = mapping_at(row, "doc")
        given = _listed(row.get("filtered_resps"))
        kept = _listed(given[0]) if given and isinstance(given[0], list) else given[:1]
        return _of_problem(
            place,
            row.get(self.metric),
            self.stated,
            num_samples=max(len(kept), 1),
            texts=_texts(row.get("resps")),
            extracted=[str(one) for one in kept],
            common=Answer(
                method=self.method,
                is_correct=False,
                place=place,
                seed=self.stated.seed,
                benchmark=self.benchmark(str(row.get("filter") or "none")),
                step=self.stated.step or 0,
                problem=_id(doc) or f"{self.task}/{row.get('doc_id')}",
                question=_question(doc) or conversation_text(setting(row, "arguments.gen_args_0.arg_0")),
                gold=str(row.get("target", "")),
            ),
        )


def is_lighteval(path: Path, row: Row) -> bool:
    """Return whether a file has the suffix and columns of lighteval details."""
    names = {"doc", "model_response"}
    return path.suffix == ".parquet" and names <= row.keys() and bool({"metric", "metrics"} & row.keys())


def read_lighteval(path: Path, first: Row, stated: Stated) -> Source:
    """Read the details of one task. The reported mean and the settings come from the results file, if any."""
    column = "metric" if "metric" in first else "metrics"
    task = str(setting(first, "doc.task_name") or _task_and_date(path)[0])
    num_texts = len(_lighteval_texts(mapping_at(first, "model_response")))
    metric, num_samples = _lighteval_metric(path, list(mapping_at(first, column)), num_texts, stated)
    results_file = _lighteval_results(path)
    results = json_object(results_file) if results_file else {}
    source = str(setting(results, "config_general.model_name") or "")
    method = stated.method or source.rstrip("/").rpartition("/")[2] or _parent_name(path)
    benchmark = stated.benchmark or task
    common = Answer(
        method=method,
        is_correct=False,
        place=str(path),
        seed=stated.seed,
        benchmark=benchmark,
        step=stated.step or 0,
    )
    is_best = num_samples < 2 <= num_texts
    best = f"{metric} is a single score for {num_texts} answers to a problem, not their mean"
    return Source(
        path=path,
        format=f"lighteval details of {task}",
        mapping=(
            f"method is {method}",
            f"score is {metric}",
            f"mean and settings from {results_file.name}" if results_file else "no results file beside it",
        ),
        answers=(
            answer
            for number, (place, row) in enumerate(rows(path))
            for answer in _lighteval_answers(
                row,
                mapping_at(row, column).get(metric),
                stated,
                num_samples=num_samples,
                common=replace(common, place=place, problem=f"{task}#{setting(row, 'doc.id') or number}"),
            )
        ),
        settings=_lighteval_settings(results),
        printed=_lighteval_mean(results, task, metric, benchmark),
        differences=(best,) if is_best else (),
    )


def _lighteval_answers(
    row: Row, score: object, stated: Stated, *, num_samples: int, common: Answer
) -> Iterator[Answer]:
    """Yield the answers in a row, which contains all samples of one problem.

    Yields a single answer without text if the row has only one score for several texts.
    """
    doc, texts = mapping_at(row, "doc"), _lighteval_texts(mapping_at(row, "model_response"))
    return _of_problem(
        common.place,
        score,
        stated,
        num_samples=num_samples,
        texts=texts if num_samples > 1 or len(texts) < 2 else (),
        extracted=(),
        common=replace(common, question=conversation_text(doc.get("query")), gold=_gold(doc)),
    )


def _lighteval_texts(response: Mapping[str, object]) -> list[str]:
    return [str(one) for one in _listed(response.get("text") or response.get("final_text"))]


def _lighteval_metric(path: Path, names: Sequence[str], num_texts: int, stated: Stated) -> tuple[str, int]:
    """Return the metric to read, and the number of answers per problem over which it is averaged.

    The number is 1 for any metric other than `avg@n` and `pass@k:k=1`, since other metrics give one score for
    all answers to a problem, usually the score of the best answer. `names` are the metrics of the file, and
    `num_texts` is the number of answers in its first row.
    """
    means = {
        name: int(found[1] or found[2] or num_texts) for name in names if (found := _MEANS.fullmatch(name))
    }
    widest = max(means, key=lambda name: means[name], default="")
    is_mean = num_texts > 1 and widest and "score" not in stated.columns
    metric = widest if is_mean else _metric(path, names, stated)
    return metric, max(1, min(means.get(metric, 1), num_texts))


def _lighteval_results(path: Path) -> Path | None:
    """Return the path of lighteval's results file, or None if the file is missing.

    The file is `results/<model>/results_<date>.json`, next to the folder `details`.
    """
    place, date = path.absolute(), _task_and_date(path)[1]
    for folder in place.parents:
        if folder.name == "details":
            model = place.parent.parent.relative_to(folder)
            found = folder.parent / "results" / model / f"results_{date}.json"
            return found if date and found.is_file() else None
    return None


def _lighteval_mean(
    results: Mapping[str, object], task: str, metric: str, benchmark: str
) -> dict[str, float]:
    found = mapping_at(results, "results").get(task)
    mean = found.get(metric) if isinstance(found, Mapping) else None
    return {benchmark: float(mean)} if isinstance(mean, int | float) else {}


def _lighteval_settings(results: Mapping[str, object]) -> dict[str, object]:
    sampling = mapping_at(results, "config_general.model_config.generation_parameters")
    source = setting(results, "config_general.model_name")
    return _settings(
        source, sampling.get("temperature"), sampling.get("top_p"), sampling.get("max_new_tokens")
    )


def _settings(source: object, temperature: object, top_p: object, length: object) -> dict[str, object]:
    """Return the given settings by their dotted keys in Atrium, without those that are None.

    `source` is the name of the model, and `length` is the maximum number of new tokens.
    """
    found = {
        "model.source": source,
        "evaluation.temperature": temperature,
        "evaluation.top_p": top_p,
        "evaluation.max_new_tokens": length,
    }
    return {key: value for key, value in found.items() if value is not None}


def _of_problem(
    place: str,
    score: object,
    stated: Stated,
    *,
    num_samples: int,
    texts: Sequence[str],
    extracted: Sequence[str],
    common: Answer,
) -> Iterator[Answer]:
    """Yield `num_samples` answers to a problem from their mean score.

    The mean determines how many answers are correct, but not which ones, so the first answers are marked
    correct. With `stated.correct_at`, either all answers or none are correct. Raises `DataError` if `score`
    cannot be the mean of `num_samples` scores of 0 or 1.
    """
    correct = [False] * num_samples
    if num_samples > 1 and stated.correct_at is None:
        total = float(score) * num_samples if isinstance(score, int | float) else float("nan")
        num_correct = min(range(num_samples + 1), key=lambda number: abs(total - number))
        if not abs(total - num_correct) < 1e-6:
            raise DataError(
                f"{place}: the score {score} cannot be the mean of {num_samples} scores of 0 or 1; correct it"
            )
        correct = [index < num_correct for index in range(num_samples)]
    else:
        correct = [correctness(score, stated, place)] * num_samples
    for index, is_correct in enumerate(correct):
        yield replace(
            common,
            is_correct=is_correct,
            sample=str(index),
            text=texts[index] if index < len(texts) else "",
            extracted=extracted[index] if index < len(extracted) else None,
        )


def _metric(path: Path, names: Sequence[str], stated: Stated) -> str:
    """Return the metric to read.

    This is the metric in `--map score=METRIC`, otherwise the metric of the file that comes first in
    `_METRICS`, otherwise the file's only metric. `names` are the metrics of the file. Raises `ConfigError` if
    the stated metric does not exist, or if the choice is ambiguous.
    """
    if wanted := stated.columns.get("score"):
        if wanted in names:
            return wanted
        raise ConfigError(f"{path}: --map score={wanted}: unknown metric; use one of {', '.join(names)}")
    known = [name for metric in _METRICS for name in names if name.partition(":")[0] == metric]
    if known or len(names) == 1:
        return (known or list(names))[0]
    raise ConfigError(
        f"{path}: several metrics could be the score; give --map score=METRIC with one of {', '.join(names)}"
    )


def _task_and_date(path: Path) -> tuple[str, str]:
    found = _DATED.fullmatch(path.stem)
    return (found[1], found[2]) if found else (path.stem, "")


def _lm_eval_arguments(results: Mapping[str, object]) -> Mapping[str, object]:
    """Return the model's arguments from lm-eval's results.

    The results contain them as an object or as a string such as `a=1,b=2`.
    """
    found = setting(results, "config.model_args")
    if isinstance(found, Mapping):
        return found
    return dict(part.partition("=")[::2] for part in str(found or "").split(","))


def _lm_eval_model(results: Mapping[str, object], path: Path) -> str:
    arguments = _lm_eval_arguments(results)
    source = str(arguments.get("pretrained") or arguments.get("model") or "")
    return source.rstrip("/").rpartition("/")[2] or _parent_name(path)


def _parent_name(path: Path) -> str:
    """Return the name of the output directory, which lm-eval and lighteval name after the model."""
    name = path.absolute().parent.name
    is_date = re.match(r"\d{4}-\d\d-\d\dT", name)
    return path.absolute().parent.parent.name if is_date else name


def _lm_eval_settings(results: Mapping[str, object], row: Row) -> dict[str, object]:
    sampling = mapping_at(row, "arguments.gen_args_0.arg_1")
    source = _lm_eval_arguments(results).get("pretrained")
    temperature = 0.0 if sampling.get("do_sample") is False else sampling.get("temperature")
    return _settings(source, temperature, sampling.get("top_p"), sampling.get("max_gen_toks"))


def _id(doc: Mapping[str, object]) -> str:
    return next((str(doc[name]) for name in _IDS if doc.get(name) not in (None, "")), "")


def _question(doc: Mapping[str, object]) -> str:
    return next((conversation_text(doc[name]) for name in _QUESTIONS if doc.get(name)), "")


def _gold(doc: Mapping[str, object]) -> str:
    choices, index = _listed(doc.get("choices")), doc.get("gold_index")
    places = [place for place in _listed(index) if isinstance(place, int) and 0 <= place < len(choices)]
    return str(choices[places[0]]) if places else ""


def _texts(value: object) -> list[str]:
    found = _listed(value)
    inner = _listed(found[0]) if found and isinstance(found[0], list) else found
    return [str(one) for one in inner]


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _names(value: object) -> list[str]:
    return [str(one) for one in _listed(value)]
