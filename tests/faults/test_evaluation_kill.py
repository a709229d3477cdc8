"""Real processes of `atrium evaluate`: killed in the middle and resumed, stopped, and on real problems.

The evaluated policy is one that training produced: a small random model that reads bytes, so that it can be
asked the real problems too, trained for two steps. Its scores are near zero; what counts is every row.
"""

from __future__ import annotations

import os
import signal
import time

import psutil
import pyarrow.parquet as pq
import pytest
from tests.benchmark_files import BENCHMARK_FILES, needs_benchmark_files
from tests.forked import Forked
from tests.saved_policy import save_policy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from atrium.base.json_lines import read_json_lines
from atrium.base.recorded import read_object
from atrium.models.policy import build_random_policy
from atrium.runs.find import list_runs
from atrium.runs.status import RunState, read_status

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

PATIENCE_S = 300.0
BENCHMARK = "arithmetic-test"
TURNS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TRAIN = (
    "num_steps=2",
    "reward=random",
    "rollout.num_prompts=4",
    "rollout.group_size=4",
    "rollout.max_new_tokens=16",
    "optimizer.num_warmup_steps=1",
    "optimizer.num_minibatches=2",
    "evaluation.num_samples=2",
    "evaluation.every_num_steps=2",
    "dataset.num_validation=4",
    "dataset.num_test=96",
    "tracking.figures=false",
    "experiment_name=trained",
)


def byte_tokenizer():
    """A tokenizer with a token for each byte and turns in the manner of Qwen."""
    special = ["<pad>", "<|im_start|>", "<|im_end|>"]
    vocabulary = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = TURNS
    return tokenizer


def start(runs_dir, *arguments):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return Forked("-m", "atrium", *arguments, environment=environment, cwd=runs_dir.parent)


def end(process):
    _, said = process.communicate(timeout=PATIENCE_S)
    return process.returncode, said.decode()


def run(runs_dir, *arguments):
    code, said = end(start(runs_dir, *arguments))
    assert (code, said) == (0, "")


def evaluations(runs_dir):
    return [
        folder
        for folder in list_runs(runs_dir)
        if read_object(folder.config_file)[0].get("kind") == "evaluation"
    ]


def begun(process, runs_dir, known):
    """The evaluation that is not among those known, once the process has begun it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = [folder for folder in evaluations(runs_dir) if folder.path not in known]
        if found:
            return found[0]
        assert process.poll() is None, end(process)
        assert time.monotonic() < deadline
        time.sleep(0.02)


def parts_of(folder):
    return sorted(folder.evaluations_dir.rglob("part-*.parquet"))


def wait_for_parts(process, folder, num):
    deadline = time.monotonic() + PATIENCE_S
    while len(parts_of(folder)) < num and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def rows_of(folder, benchmark):
    (path,) = (folder.evaluations_dir / benchmark).glob("step-*.parquet")
    return pq.read_table(path).to_pylist()


def scores_of(folder):
    return [record | {"time": 0} for record in read_json_lines(folder.evaluations_file).records]


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory):
    """Where a policy that reads bytes was trained for two steps."""
    place = tmp_path_factory.mktemp("evaluated")
    architecture = {
        "model_type": "qwen3",
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 64,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    }
    save_policy(build_random_policy(architecture, tokenizer=byte_tokenizer(), seed=0), place / "bytes")
    runs = place / "runs"
    run(runs, "train", "model=hub", f"model.source={place / 'bytes'}", f"runs_dir={runs}", *TRAIN)
    return runs


EVALUATE = ("evaluate", "--run", "last", "evaluation.num_samples=16", "evaluation.max_new_tokens=64")
"""96 problems times 16 samples: three waves, so that a kill meets some finished and some not."""


@pytest.fixture(scope="module")
def undisturbed(runs_dir):
    run(runs_dir, *EVALUATE)
    (folder,) = evaluations(runs_dir)
    return folder


def test_an_evaluation_killed_at_any_moment_and_resumed_has_the_same_rows(runs_dir, undisturbed):
    known = [folder.path for folder in evaluations(runs_dir)]
    process = start(runs_dir, *EVALUATE)
    folder = begun(process, runs_dir, known)
    for num_parts in (0, 1, 2):
        wait_for_parts(process, folder, num_parts)
        process.send_signal(signal.SIGKILL)
        code, _ = end(process)
        assert code == -signal.SIGKILL, "it should have been killed before it ended"
        finished = [(path.stat().st_mtime_ns, path.name) for path in parts_of(folder)]
        assert len(finished) >= num_parts
        process = start(runs_dir, "evaluate", "--resume", str(folder.path))
    assert end(process) == (0, "")
    assert rows_of(folder, BENCHMARK) == rows_of(undisturbed, BENCHMARK)
    assert scores_of(folder) == scores_of(undisturbed)
    assert parts_of(folder) == []
    assert read_status(folder.status_file).state == RunState.FINISHED
    assert f"{BENCHMARK}: " in (log := folder.log_file.read_text())
    assert "problems are already finished" in log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_is_heard_at_once_and_says_how_to_go_on(runs_dir, undisturbed, number):
    known = [folder.path for folder in evaluations(runs_dir)]
    process = start(runs_dir, *EVALUATE)
    folder = begun(process, runs_dir, known)
    wait_for_parts(process, folder, 1)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    code, said = end(process)
    assert code == 130
    assert said.count("\n") == 1
    assert "atrium evaluate --resume" in said
    assert read_status(folder.status_file).state == RunState.INTERRUPTED
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    run(runs_dir, "evaluate", "--resume", str(folder.path))
    assert rows_of(folder, BENCHMARK) == rows_of(undisturbed, BENCHMARK)


@needs_benchmark_files
@pytest.mark.parametrize(
    ("benchmark", "file", "num"), [("math500", "math500", 500), ("aime24", "aime2024", 30)]
)
def test_the_trained_policy_answers_real_problems(runs_dir, undisturbed, benchmark, file, num):
    path = BENCHMARK_FILES / f"{file}.jsonl"
    known = [folder.path for folder in evaluations(runs_dir)]
    settings = ("evaluation.num_samples=2", "evaluation.max_new_tokens=32", "model.prompt=qwen_boxed")
    run(
        runs_dir, "evaluate", "--run", "last", f"benchmark={benchmark}", f"benchmark.source={path}", *settings
    )
    (folder,) = [one for one in evaluations(runs_dir) if one.path not in known]
    rows = rows_of(folder, benchmark)
    assert len(rows) == 2 * num
    assert len({row["problem_id"] for row in rows}) == num
    assert all(1 <= row["num_tokens"] <= 32 and row["logprob_sum"] < 0 for row in rows)
    assert len({row["text"] for row in rows}) > num
    (record,) = read_json_lines(folder.evaluations_file).records
    results = record["results"]
    assert (results["num_problems"], results["k"], record["step"]) == (num, 2, 2)
    assert 0 <= results["mean_at_k"] <= results["pass_at_k"] < 0.1
    assert sum(results["verdicts"].values()) == pytest.approx(1.0)
    assert (folder.figures_dir / f"pass_at_k-{benchmark}-step-000002.svg").is_file()
