"""Checkpoints: whole or absent whatever interrupts them, found again, pruned, and read back unchanged."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
from dataclasses import fields
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from atrium.base.errors import CheckpointError
from atrium.method.objective import ObjectiveState
from atrium.models.policy import write_policy
from atrium.train.checkpoint import checkpoint as module
from atrium.train.checkpoint.checkpoint import (
    CheckpointStore,
    TrainingState,
    checkpoint_paths,
    latest_checkpoint,
    load_checkpoint,
)
from atrium.train.checkpoint.checkpoint_files import write_digests
from atrium.train.guard.faults import UpdateState


class PowerCut(BaseException):
    """The process ends here; nothing may catch it."""


def _write_weights(step, folder):
    folder.mkdir()
    save_file({"weight": torch.full((4,), float(step))}, folder / "model.safetensors")


def _save(folder, step, *, keep_last=2, keep_best=True, best_step=None, **changes):
    store = CheckpointStore(
        folder=folder,
        save_policy=partial(_write_weights, step),
        keep_last=keep_last,
        keep_best=keep_best,
    )
    state = TrainingState(step=step, objective=ObjectiveState(), best_step=best_step, **changes)
    return store.save(state, {"weight/exp_avg": torch.full((4,), step / 3)})


def _names(folder):
    return [path.name for path in checkpoint_paths(folder)]


def _check_whole(checkpoint):
    """Everything in the checkpoint is of its own step."""
    step = checkpoint.state.step
    assert load_file(checkpoint.policy / "model.safetensors")["weight"].tolist() == 4 * [float(step)]
    assert checkpoint.optimizer["weight/exp_avg"].equal(torch.full((4,), step / 3))


def test_a_training_state_survives_the_round_trip(tmp_path):
    state = TrainingState(
        step=12,
        cursor=345,
        weight_version=67,
        num_tokens=89_012,
        wall_s=1 / 3,
        objective=ObjectiveState(entropy_coefficient=0.1, last_entropy=2 / 3),
        best_step=8,
        best_value=0.1 + 0.2,
        update=UpdateState(num_skipped=2, micro_batch_tokens=4096),
    )
    assert all(getattr(state, field.name) != field.default for field in fields(state))
    optimizer = {"a/step": torch.tensor(3.0), "a/exp_avg": torch.randn(3, 4).T}
    reference = {"a": torch.randn(2, 2).bfloat16()}
    store = CheckpointStore(
        folder=tmp_path, save_policy=partial(_write_weights, 12), keep_last=1, keep_best=False
    )
    loaded = load_checkpoint(store.save(state, optimizer, reference))
    assert loaded.state == state
    for ours, theirs in ((loaded.optimizer, optimizer), (loaded.reference, reference)):
        assert ours.keys() == theirs.keys()
        assert all(value.equal(theirs[name]) for name, value in ours.items())


def test_a_reference_that_does_not_move_is_not_saved(tmp_path):
    assert load_checkpoint(_save(tmp_path, 1)).reference is None


def test_the_policy_is_a_plain_transformers_folder_without_pickles(tmp_path, make):
    policy = make.tiny_policy()
    store = CheckpointStore(
        folder=tmp_path, save_policy=partial(write_policy, policy), keep_last=1, keep_best=False
    )
    path = store.save(TrainingState(step=1, objective=ObjectiveState()), {})
    model = AutoModelForCausalLM.from_pretrained(path / "policy")
    assert all(value.equal(model.state_dict()[name]) for name, value in policy.model.state_dict().items())
    assert AutoTokenizer.from_pretrained(path / "policy").encode("1+2=") == policy.tokenizer.encode("1+2=")
    kinds = {file.suffix or file.name for file in tmp_path.rglob("*") if file.is_file()}
    assert kinds <= {".safetensors", ".json", ".jinja", "SHA256SUMS"}


def _operations(monkeypatch, crash_at):
    """Count the file operations of a save, and end the process before one of them."""
    counted = []

    def counting(function):
        def operation(*args, **kwargs):
            counted.append(function.__name__)
            if len(counted) == crash_at:
                raise PowerCut
            return function(*args, **kwargs)

        return operation

    for name in ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync"):
        monkeypatch.setattr(os, name, counting(getattr(os, name)))
    for name in ("save_file", "_write_state"):
        monkeypatch.setattr(module, name, counting(getattr(module, name)))
    return counted


@pytest.mark.parametrize("damaged", [False, True])
def test_a_crash_at_any_file_operation_leaves_a_whole_checkpoint(tmp_path, monkeypatch, damaged):
    crash_at, finished = 0, False
    while not finished:
        crash_at += 1
        folder = tmp_path / str(crash_at)
        _save(folder, 1, keep_last=1, best_step=1)
        if damaged:  # an unusable one stands where the new one belongs
            (_save(folder, 2) / "optimizer.safetensors").write_bytes(b"")
        with monkeypatch.context() as patched:
            counted = _operations(patched, crash_at)
            try:
                _save(folder, 2, keep_last=1, best_step=2)
                finished = len(counted) < crash_at
            except PowerCut:
                pass
        try:
            latest = latest_checkpoint(folder)
            assert latest.state.step in (1, 2), counted
            _check_whole(latest)
        except CheckpointError:
            # What was damaged before may still stand there, and only that.
            if not damaged or (folder / "step-000002" / "optimizer.safetensors").stat().st_size:
                raise
        _save(folder, 3, keep_last=1, best_step=3)
        assert sorted(path.name for path in folder.iterdir()) == ["best.json", "step-000003"]
    assert {"mkdir", "rename", "replace", "unlink", "rmdir", "fsync", "save_file"} <= set(counted)


@pytest.mark.parametrize("damage", ["state.json", "optimizer.safetensors", "policy/model.safetensors"])
@pytest.mark.parametrize("how", ["missing", "cut", "empty"])
def test_a_damaged_newest_checkpoint_is_refused_and_the_way_back_is_named(tmp_path, damage, how):
    checkpoints = tmp_path / "run" / "checkpoints"
    checkpoints.parent.mkdir()
    _save(checkpoints, 1)
    file = _save(checkpoints, 2) / damage
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1] if how == "cut" else b"")
    with pytest.raises(CheckpointError) as refusal:
        latest_checkpoint(checkpoints)
    said = str(refusal.value)
    assert f"step-000002 is damaged ({damage.rpartition('/')[2]}" in said.replace("policy/", "")
    assert f"`atrium train --resume {tmp_path}/run --from-step 1` rewinds to step 1" in said
    assert "\n" not in said
    _check_whole(load_checkpoint(checkpoints / "step-000001"))


def _flip(file, at):
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("at", [0, 20, -1])
@pytest.mark.parametrize("name", ["state.json", "optimizer.safetensors", "policy/model.safetensors"])
def test_a_flipped_bit_in_any_file_is_noticed_and_the_file_named(tmp_path, name, at):
    path = _save(tmp_path, 1)
    _flip(path / name, at)
    with pytest.raises(CheckpointError, match=f"step-000001 is damaged .{name}"):
        load_checkpoint(path)


def test_a_missing_part_of_the_state_is_named(tmp_path):
    path = _save(tmp_path, 1)
    state = json.loads((path / "state.json").read_text())
    del state["state"]
    (path / "state.json").write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match=r"is damaged \('state' is missing\)"):
        load_checkpoint(path, digests=False)


def test_damage_to_the_digests_themselves_is_noticed(tmp_path):
    path = _save(tmp_path, 1)
    digests = path / "SHA256SUMS"
    lines = digests.read_text().splitlines(keepends=True)
    for content in ("".join(lines[1:]), "".join(lines).upper(), "no digests\n"):
        digests.write_text(content)
        with pytest.raises(CheckpointError, match=r"damaged .SHA256SUMS"):
            load_checkpoint(path)
    digests.unlink()
    with pytest.raises(CheckpointError, match=r"damaged .SHA256SUMS: No such file"):
        load_checkpoint(path)


def test_the_digests_are_those_that_sha256sum_reads(tmp_path):
    path = _save(tmp_path, 1)
    command = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    checked = subprocess.run(command, cwd=path, capture_output=True, text=True, check=True)
    assert len(checked.stdout.splitlines()) == len([file for file in path.rglob("*") if file.is_file()]) - 1


def test_checkpoints_that_cannot_be_listed_are_an_error_and_not_none(tmp_path):
    (tmp_path / "checkpoints").symlink_to(tmp_path / "not_mounted")
    with pytest.raises(CheckpointError, match="cannot be listed"):
        latest_checkpoint(tmp_path / "checkpoints")


@pytest.mark.parametrize("text", ["[]", "{}", "nonsense", '{"files": []}', '{"files": {}, "state": {}}'])
def test_a_state_that_is_no_state_is_an_error_of_one_line(tmp_path, text):
    path = _save(tmp_path, 1)
    (path / "state.json").write_text(text)
    with pytest.raises(CheckpointError) as error:
        load_checkpoint(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["state", "files"])
def test_an_incomplete_record_is_damage(tmp_path, key):
    path = _save(tmp_path, 1)
    record = json.loads((path / "state.json").read_text())
    del record[key]
    (path / "state.json").write_text(json.dumps(record))
    (path / "SHA256SUMS").unlink()
    write_digests(path)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path)


def test_an_optimizer_state_that_is_no_safetensors_is_damage(tmp_path):
    path = _save(tmp_path, 1)
    file = path / "optimizer.safetensors"
    file.write_bytes(b"\xff" * file.stat().st_size)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path)


def test_a_checkpoint_of_a_newer_format_says_so(tmp_path):
    path = _save(tmp_path, 1)
    record = json.loads((path / "state.json").read_text()) | {"format_version": 2}
    (path / "state.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match="has format 2, expected 1"):
        load_checkpoint(path)


def test_there_is_no_checkpoint_where_there_is_no_folder(tmp_path):
    assert latest_checkpoint(tmp_path / "none") is None
    assert checkpoint_paths(tmp_path / "none") == []


def test_the_last_n_and_the_best_stay(tmp_path):
    for step in range(1, 7):
        _save(tmp_path, step, keep_last=2, best_step=min(step, 2))
    assert _names(tmp_path) == ["step-000002", "step-000005", "step-000006"]
    assert json.loads((tmp_path / "best.json").read_text()) == {"step": 2}


def test_without_keep_best_only_the_last_n_stay_and_no_best_is_named(tmp_path):
    for step in range(1, 5):
        _save(tmp_path, step, keep_last=1, keep_best=False, best_step=2)
    assert _names(tmp_path) == ["step-000004"]
    assert not (tmp_path / "best.json").exists()


def test_a_best_step_without_a_checkpoint_is_not_named(tmp_path):
    _save(tmp_path, 1, best_step=0)
    assert not (tmp_path / "best.json").exists()


def test_steps_beyond_a_million_stay_in_order(tmp_path):
    for step in (999_999, 1_000_000, 1_000_001):
        _save(tmp_path, step)
    assert _names(tmp_path) == ["step-1000000", "step-1000001"]
    assert latest_checkpoint(tmp_path).state.step == 1_000_001


def test_a_new_checkpoint_is_kept_before_damaged_later_ones(tmp_path):
    for step in (2, 4):
        _save(tmp_path, step, keep_last=2)
    (tmp_path / "step-000004" / "state.json").unlink()
    _save(tmp_path, 3, keep_last=1)
    assert latest_checkpoint(tmp_path).state.step == 3
    assert _names(tmp_path) == ["step-000003"]


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path):
    _save(tmp_path, 1, cursor=1)
    _save(tmp_path, 1, cursor=2)
    assert latest_checkpoint(tmp_path).state.cursor == 2


@pytest.fixture
def small_files():
    """Files may not grow beyond a few kilobytes: what a full disk is like, without filling one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [200, 20_000])
def test_a_full_disk_is_one_line_and_older_checkpoints_stay(tmp_path, make, small_files, size):
    store = CheckpointStore(
        folder=tmp_path, save_policy=partial(write_policy, make.tiny_policy()), keep_last=1, keep_best=False
    )
    store.save(TrainingState(step=1, objective=ObjectiveState()), {})
    big = {"weight/exp_avg": torch.zeros(10_000)}
    small_files(size)
    with pytest.raises(CheckpointError, match=r"step-000002 cannot be written: .*arge") as error:
        store.save(TrainingState(step=2, objective=ObjectiveState()), big)
    assert "\n" not in str(error.value)
    small_files(resource.RLIM_INFINITY)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    assert latest_checkpoint(tmp_path).state.step == 1
    store.save(TrainingState(step=2, objective=ObjectiveState()), big)
    assert latest_checkpoint(tmp_path).state.step == 2


def _full(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _full_for_the_tokenizer(*args):
    raise Exception("No space left on device (os error 28)")


@pytest.mark.parametrize("save_policy", [_full, _full_for_the_tokenizer])
def test_no_space_left_is_reported_however_it_is_raised(tmp_path, save_policy):
    _save(tmp_path, 1)
    store = CheckpointStore(folder=tmp_path, save_policy=save_policy, keep_last=1, keep_best=False)
    with pytest.raises(CheckpointError, match="No space left on device"):
        store.save(TrainingState(step=2, objective=ObjectiveState()), {})
    assert _names(tmp_path) == ["step-000001"]
    assert not list(tmp_path.glob(".*"))


def test_a_folder_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(CheckpointError, match="cannot be written"):
        _save(tmp_path / "checkpoints", 1)


def test_a_defect_while_saving_keeps_its_traceback_and_leaves_nothing(tmp_path):
    def defect(folder):
        raise ZeroDivisionError

    store = CheckpointStore(folder=tmp_path, save_policy=defect, keep_last=1, keep_best=False)
    with pytest.raises(ZeroDivisionError):
        store.save(TrainingState(step=1, objective=ObjectiveState()), {})
    assert list(tmp_path.iterdir()) == []


def test_a_leftover_of_a_killed_save_is_cleared_away(tmp_path):
    path = _save(tmp_path, 1)
    shutil.copytree(path, tmp_path / ".step-000009.partial")
    assert latest_checkpoint(tmp_path).state.step == 1
    _save(tmp_path, 2)
    assert not list(tmp_path.glob(".*"))
