from __future__ import annotations

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait

import filelock
import pytest
import torch

from atrium.base.errors import CheckpointError, ConfigError, TrainingDivergedError
from atrium.data.arithmetic import arithmetic_splits
from atrium.data.prompts import PROMPT_TEMPLATES, encode_prompt
from atrium.data.settings import ArithmeticSettings
from atrium.models.settings import TinySettings, WarmupSettings
from atrium.models.warmup import train_policy, warmed_up_policy, warmup_hash

TINY = TinySettings(hidden_size=16, num_layers=1, num_heads=2, num_key_value_heads=1, head_dim=8)
WARMUP = WarmupSettings(num_clean_steps=4, num_imperfect_steps=2, batch_size=4)
ARITHMETIC = ArithmeticSettings(num_train=10)


def _warm_up(cache_dir, **options):
    return warmed_up_policy(TINY, WARMUP, ARITHMETIC, **{"seed": 0, **options}, cache_dir=cache_dir)


def _folder(cache_dir):
    return cache_dir / "warmup" / warmup_hash(TINY, WARMUP, ARITHMETIC, 0)


def _equal(first, second):
    first, second = first.model.state_dict(), second.model.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def trained():
    return train_policy(TINY, WARMUP, ARITHMETIC, seed=0)


def test_the_warm_up_reports_every_step_and_the_loss_falls():
    reports = []
    warmup = WarmupSettings(num_clean_steps=40, num_imperfect_steps=2, batch_size=8)
    train_policy(
        TINY,
        warmup,
        ARITHMETIC,
        seed=0,
        on_progress=lambda step, num, loss: reports.append((step, num, loss)),
    )
    assert [(step, num) for step, num, _ in reports] == [(step, 42) for step in range(1, 43)]
    assert sum(loss for *_, loss in reports[37:40]) < 0.8 * sum(loss for *_, loss in reports[:3])


def test_equal_seeds_give_equal_weights_whatever_the_global_random_state_and_threads(trained):
    torch.manual_seed(123)
    state, num_threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        again = train_policy(TINY, WARMUP, ARITHMETIC, seed=0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(num_threads)
    assert _equal(trained, again)
    assert torch.equal(torch.get_rng_state(), state)
    assert not _equal(trained, train_policy(TINY, WARMUP, ARITHMETIC, seed=1))


def test_a_warm_up_of_no_steps_leaves_random_weights():
    none = WarmupSettings(num_clean_steps=0, num_imperfect_steps=0)
    assert _equal(train_policy(TINY, none, ARITHMETIC, seed=0), train_policy(TINY, none, ARITHMETIC, seed=0))


def test_the_second_time_the_policy_comes_from_the_cache(tmp_path, trained, capfd):
    steps = []
    first = _warm_up(tmp_path, on_progress=lambda *report: steps.append(report))
    assert len(steps) == WARMUP.num_steps
    second = _warm_up(tmp_path, on_progress=lambda *report: steps.append(report))
    assert len(steps) == WARMUP.num_steps
    assert _equal(first, trained)
    assert _equal(second, trained)
    assert capfd.readouterr() == ("", "")


def test_the_cache_key_covers_every_setting_but_the_training_problems():
    key = warmup_hash(TINY, WARMUP, ARITHMETIC, 0)
    others = [
        warmup_hash(TINY, WARMUP, ARITHMETIC, 1),
        *(
            warmup_hash(TINY.model_copy(update={name: getattr(TINY, name) + 2}), WARMUP, ARITHMETIC, 0)
            for name in TinySettings.model_fields
        ),
        *(
            warmup_hash(TINY, WARMUP.model_copy(update={name: getattr(WARMUP, name) + 2}), ARITHMETIC, 0)
            for name in WarmupSettings.model_fields
        ),
        *(
            warmup_hash(TINY, WARMUP, ARITHMETIC.model_copy(update={name: getattr(ARITHMETIC, name) + 2}), 0)
            for name in ArithmeticSettings.model_fields
            if name != "num_train"
        ),
    ]
    assert len({key, *others}) == 1 + len(others)
    assert warmup_hash(TINY, WARMUP, ARITHMETIC.model_copy(update={"num_train": 7}), 0) == key


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "warmup.json"])
@pytest.mark.parametrize("damage", ["changed", "cut", "removed"])
def test_a_damaged_cache_is_made_anew(tmp_path, trained, name, damage):
    _warm_up(tmp_path)
    path = _folder(tmp_path) / name
    content = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(content[:-20] if damage == "cut" else content[:-20] + b" " * 20)
    steps = []
    policy = _warm_up(tmp_path, on_progress=lambda *report: steps.append(report))
    assert len(steps) == WARMUP.num_steps
    assert _equal(policy, trained)
    assert path.read_bytes() == content


def test_a_folder_of_a_killed_writer_is_made_anew(tmp_path, trained):
    folder = _folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"half")
    (folder / "half.json").write_text("{}")
    assert _equal(_warm_up(tmp_path), trained)
    assert not (folder / "half.json").exists()


def test_a_lock_that_another_holds_is_waited_for_no_longer_than_allowed(tmp_path):
    folder = _folder(tmp_path)
    folder.parent.mkdir(parents=True)
    held = filelock.FileLock(folder.with_suffix(".lock"))
    with held, pytest.raises(CheckpointError, match="another process has held"):
        _warm_up(tmp_path, lock_timeout_s=0.2)


def test_who_waited_for_the_lock_takes_what_the_other_made(tmp_path, trained):
    _warm_up(tmp_path / "other")
    folder, steps = _folder(tmp_path), []
    folder.parent.mkdir(parents=True)
    with ThreadPoolExecutor(1) as pool:
        with filelock.FileLock(folder.with_suffix(".lock")):
            waiting = pool.submit(_warm_up, tmp_path, on_progress=lambda *report: steps.append(report))
            assert not wait([waiting], timeout=0.3).done
            shutil.copytree(_folder(tmp_path / "other"), folder)
        policy = waiting.result(timeout=60)
    assert steps == []
    assert _equal(policy, trained)


@pytest.mark.full
def test_two_processes_at_once_share_one_warm_up(tmp_path, trained):
    code = (
        "import sys; from pathlib import Path; from atrium.models.warmup import *;"
        f"from atrium.models.settings import *; from atrium.data.settings import *; tiny = {TINY!r};"
        f"warmup = {WARMUP!r}; arithmetic = {ARITHMETIC!r};"
        "warmed_up_policy(tiny, warmup, arithmetic, seed=0, cache_dir=Path(sys.argv[1]),"
        " on_progress=lambda *report: print('step'))"
    )
    command = [sys.executable, "-W", "error", "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=280)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(output.count("step") for output in outputs) == [0, WARMUP.num_steps]
    assert _equal(_warm_up(tmp_path), trained)


def test_a_cache_that_cannot_be_written_is_refused_before_any_training(tmp_path):
    (tmp_path / "warmup").write_text("a file where the folder should be")
    steps = []
    with pytest.raises(CheckpointError, match="cannot write the warm-up's cache") as caught:
        _warm_up(tmp_path, on_progress=lambda *report: steps.append(report))
    assert steps == []
    assert "\n" not in str(caught.value)


def test_a_context_too_short_for_a_solution_is_refused_before_any_training():
    with pytest.raises(ConfigError, match=r"context_length must be at least 69, .* 7 operands, got 40"):
        train_policy(TINY.model_copy(update={"context_length": 40}), WARMUP, ARITHMETIC, seed=0)


def test_a_loss_that_is_not_finite_ends_the_warm_up(tmp_path):
    steps, warmup = [], WARMUP.model_copy(update={"learning_rate": 1e38})
    with pytest.raises(TrainingDivergedError, match="learning_rate") as caught:
        warmed_up_policy(
            *(TINY, warmup, ARITHMETIC),
            seed=0,
            cache_dir=tmp_path,
            on_progress=lambda step, *_: steps.append(step),
        )
    assert f"at step {steps[-1] + 1};" in str(caught.value)
    assert not list((tmp_path / "warmup").glob("*/"))


def _accuracy(policy, problems, num_samples):
    """Mean@K and Pass@K of samples at temperature 1, 64 tokens at most, the stop token required."""
    tokenizer = policy.tokenizer
    prompts = [
        encode_prompt(tokenizer, problem, PROMPT_TEMPLATES["question"]).tolist() for problem in problems
    ]
    batch = tokenizer.pad({"input_ids": prompts}, return_tensors="pt")
    width = batch["input_ids"].shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sampled = policy.model.generate(
            **batch,
            do_sample=True,
            temperature=1.0,
            top_k=len(tokenizer),
            top_p=1.0,
            max_new_tokens=64,
            num_return_sequences=num_samples,
        )
    texts = tokenizer.batch_decode(sampled[:, width:])
    correct = torch.tensor(
        [
            bool(re.search(rf"\\boxed\{{{problems[index // num_samples].answer}\}}<eos>(<pad>)*$", text))
            for index, text in enumerate(texts)
        ]
    ).view(-1, num_samples)
    return correct.float().mean().item(), correct.any(dim=1).float().mean().item()


@pytest.mark.full
@pytest.mark.release
@pytest.mark.timeout(900)
def test_the_whole_warm_up_gives_competence_and_then_plants_imperfection():
    arithmetic, default = ArithmeticSettings(num_train=1), WarmupSettings()
    problems = arithmetic_splits(arithmetic).test.problems
    clean = train_policy(
        TinySettings(), default.model_copy(update={"num_imperfect_steps": 0}), arithmetic, seed=0
    )
    assert _accuracy(clean, problems, 8)[0] > 0.65
    mean_at_8, pass_at_8 = _accuracy(train_policy(TinySettings(), default, arithmetic, seed=0), problems, 8)
    assert 0.18 < mean_at_8 < 0.30
    assert 0.65 < pass_at_8 < 0.92
