"""Updates without a finite gradient are skipped, counted, kept and bounded; lacking memory shrinks."""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from atrium.base.errors import MemoryExhaustedError, TrainingDivergedError
from atrium.engines.collate import RolloutRows
from atrium.method.batch import Batch
from atrium.method.objective import ObjectiveState
from atrium.train.guard.faults import MAX_SAVED, FaultHandling, UpdateState
from atrium.train.guard.out_of_memory import is_out_of_memory, memory_explained, size_asked_for
from atrium.train.measure.measurements import Measurements

NO_MACHINE_HAS = 1 << 50


def _weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _read_rows(path):
    """The rows of a minibatch that was kept."""
    tensors = load_file(path)
    batch = {name.removeprefix("batch/"): tensors.pop(name) for name in [*tensors] if "/" in name}
    arrays = {
        name: tensors.pop(name).numpy() for name in ("num_prompt_tokens_B", "num_tokens_B", "prompt_index_B")
    }
    return RolloutRows(batch=Batch(**batch), **arrays, **tensors)


def _poison(model, calls, value=torch.nan):
    """Spoil the gradient of the model's first parameter in the given backward passes, counted from 1."""
    seen = []

    def spoil(gradient):
        seen.append(None)
        return gradient * value if len(seen) in calls else None

    next(model.parameters()).register_hook(spoil)


def _handling(folder=None, *, max_skipped):
    messages = []
    return FaultHandling(max_skipped=max_skipped, folder=folder, log=messages.append), messages


def _step(updater, rows, *, step=1, carried=None, trace=False):
    measurements = Measurements()
    output = updater.step(
        rows,
        updater.objective.initial_state(),
        step=step,
        measurements=measurements,
        trace=trace,
        carried=carried or UpdateState(),
    )
    return output, {quantity.name: value for quantity, value in measurements.values().items()}


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_an_update_without_a_finite_gradient_is_skipped_counted_and_leaves_no_trace(make, tmp_path, poison):
    rows = make.rows(make.groups())
    model, control = make.tiny_policy().model, make.tiny_policy().model
    updater = make.updater(make.objective("algorithm=grpo"), model, num_minibatches=2)
    updater.faults, messages = _handling(tmp_path, max_skipped=1)
    _poison(model, {1}, poison)
    output, named = _step(updater, rows)

    # The same run without the first of the two minibatches.
    only = make.updater(make.objective("algorithm=grpo"), control, num_minibatches=2)
    second = [*only.split_minibatches(rows, 1, 0)][1]
    only.split_minibatches = lambda rows, step, epoch: iter([second])
    _, expected = _step(only, rows)
    assert _weights(model).equal(_weights(control))
    assert (output.num_updates, output.carried.num_skipped) == (1, 0)
    assert named["optimizer/num_skipped_updates"] == named["optimizer/num_updates"] == 1
    for name in (
        "objective/loss",
        "objective/entropy",
        "optimizer/grad_norm",
        "optimizer/num_trained_tokens",
    ):
        assert named[name] == expected[name], name
    assert len(messages) == 1
    assert "step 1" in messages[0]
    assert str(tmp_path / "step-000001-update-1.safetensors") in messages[0]
    assert "embed_tokens.weight" in messages[0]


def test_what_is_kept_of_a_skipped_update_is_its_minibatch_and_can_be_run_again(make, tmp_path):
    model = make.tiny_policy().model
    rows = make.rows(make.groups(), model=model, spread=0.3)
    updater = make.updater(make.objective("algorithm=atr"), model, num_minibatches=2, num_epochs=2)
    updater.faults, _ = _handling(tmp_path, max_skipped=3)
    _poison(model, {1})
    first = next(updater.split_minibatches(rows, 4, 0))
    frozen = make.tiny_policy().model
    _step(updater, rows, step=4)
    record = json.loads((tmp_path / "step-000004-update-1.json").read_text())
    assert (record["step"], record["update"], record["grad_norm"]) == (4, 1, "nan")
    assert record["parameters"] == ["model.embed_tokens.weight"]
    assert ObjectiveState.from_record(record["state"]) == updater.objective.initial_state()
    kept = _read_rows(tmp_path / "step-000004-update-1.safetensors")
    expected = rows.select(first)
    assert kept.token_BL.equal(expected.token_BL)
    assert kept.num_tokens_B.tolist() == expected.num_tokens_B.tolist()
    for field in fields(expected.batch):
        value = getattr(kept.batch, field.name)
        if field.name in ("advantage_BT", "behavior_logprob_BT", "proximal_logprob_BT", "sample_key_B"):
            assert value is not None  # it is kept as the update had it
        elif value is not None:
            assert value.equal(getattr(expected.batch, field.name)), field.name
    again = make.updater(make.objective("algorithm=atr"), frozen)
    _, named = _step(again, kept)
    assert named["optimizer/grad_norm"] > 0.0  # without the poison it is a healthy minibatch


def test_training_stops_when_one_more_than_allowed_is_skipped_in_a_row(make, tmp_path):
    model = make.tiny_policy().model
    before = _weights(model)
    updater = make.updater(make.objective("algorithm=grpo"), model, num_minibatches=2)
    updater.faults, messages = _handling(tmp_path, max_skipped=2)
    _poison(model, {1, 2, 3})
    rows = make.rows(make.groups())
    output, named = _step(updater, rows, step=1)
    assert output.carried == UpdateState(num_skipped=2)
    assert output.num_updates == 0
    assert "objective/loss" not in named
    with pytest.raises(
        TrainingDivergedError, match=r"step 2 is not finite .*, 3 updates in a row; .*step-0000"
    ):
        _step(updater, rows, step=2, carried=output.carried)
    assert _weights(model).equal(before)
    assert len(messages) == 2
    assert len(list(tmp_path.glob("*.safetensors"))) == 3


def test_an_update_that_is_made_ends_the_row(make):
    model = make.tiny_policy().model
    updater = make.updater(make.objective("algorithm=grpo"), model, num_minibatches=2)
    updater.faults, messages = _handling(max_skipped=1)
    _poison(model, {1, 3, 5})
    carried, rows = UpdateState(), make.rows(make.groups())
    for step in (1, 2, 3):
        output, _ = _step(updater, rows, step=step, carried=carried)
        carried = output.carried
    assert carried.num_skipped == 0
    assert len(messages) == 3


def test_only_so_many_minibatches_are_kept_and_a_folder_that_cannot_be_written_stops_nothing(make, tmp_path):
    model = make.tiny_policy().model
    updater = make.updater(make.objective("algorithm=grpo"), model)
    updater.faults, messages = _handling(tmp_path / "faults", max_skipped=100)
    _poison(model, range(1, 100))
    for step in range(1, MAX_SAVED + 3):
        _step(updater, make.rows(make.groups()), step=step)
    assert len(list((tmp_path / "faults").glob("*.json"))) == MAX_SAVED
    assert "not kept" in messages[-1]
    (tmp_path / "file").write_text("")
    updater.faults, messages = _handling(tmp_path / "file", max_skipped=100)
    _step(updater, make.rows(make.groups()))
    assert "could not be kept" in messages[0]


def _fail_above(model, num_tokens, *, backward=False):
    """Make the first layer ask for a petabyte whenever it is given more tokens than this."""

    def check(tensor):
        if tensor.shape[-2] > num_tokens:
            torch.empty(NO_MACHINE_HAS, dtype=torch.uint8)

    embedding = model.get_input_embeddings()

    def check_backward(module, inputs, output):
        if output.requires_grad:
            output.register_hook(check)

    if backward:
        embedding.register_forward_hook(check_backward)
    else:
        embedding.register_forward_hook(lambda module, inputs, output: check(output))


def _unpacked(make, updater):
    updater.forward = make.forward(updater.forward.model, packing=False)
    return updater


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_where_memory_lacks_micro_batches_shrink_and_the_gradient_stays(make, backward):
    rows = make.rows(make.groups(longest=9), model=make.exact_model(seed=3), spread=0.3)
    objective, settings = make.objective("algorithm=atr"), {"num_minibatches": 2, "num_epochs": 2}
    plenty, scarce = make.exact_model(seed=3), make.exact_model(seed=3)
    _, expected = _step(make.updater(objective, plenty, **settings), rows)
    updater = make.updater(objective, scarce, shrinks=True, **settings)
    updater.faults, messages = _handling(max_skipped=0)
    embedding, largest = scarce.get_input_embeddings(), []
    embedding.register_forward_hook(lambda module, inputs, output: largest.append(output.shape[-2]))
    _fail_above(scarce, 30, backward=backward)
    output, named = _step(updater, rows)
    assert (_weights(plenty) - _weights(scarce)).abs().max() < 1e-13
    assert (_weights(plenty) - _weights(make.exact_model(seed=3))).abs().max() > 1e-5
    assert max(largest) > 30
    assert output.carried.micro_batch_tokens < 100
    assert output.num_updates == 4
    for name, value in expected.items():
        if name.startswith(("objective/", "mismatch/", "optimizer/grad")):
            assert named[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name
    said = f"out of memory in the {'backward' if backward else 'forward'} pass of an update (1048576.00 GiB)"
    assert messages[0].startswith(said)
    assert str(output.carried.micro_batch_tokens) in messages[-1]
    # The next step begins with what was left, and needs no repetition.
    messages.clear()
    following, _ = _step(updater, rows, step=2, carried=output.carried)
    assert messages == []
    assert following.carried == output.carried


def test_a_pass_without_a_gradient_shrinks_too(make):
    rows = make.rows(make.groups(), model=make.exact_model(seed=3), spread=0.3)
    settings = {"num_epochs": 2, "behavior_logprobs": "recompute"}
    plenty, scarce = make.exact_model(seed=3), make.exact_model(seed=3)
    _step(make.updater(make.objective("algorithm=atr"), plenty, **settings), rows)
    updater = make.updater(make.objective("algorithm=atr"), scarce, shrinks=True, **settings)
    updater.faults, messages = _handling(max_skipped=0)
    _fail_above(scarce, 30)
    _step(updater, rows)
    assert (_weights(plenty) - _weights(scarce)).abs().max() < 1e-13
    assert "scoring a batch" in messages[0]


def test_padded_rows_shrink_by_their_padded_tokens(make):
    rows = make.rows(make.groups(), model=make.exact_model(seed=3), spread=0.3)
    model = make.exact_model(seed=3)
    updater = _unpacked(make, make.updater(make.objective("algorithm=grpo"), model, shrinks=True))
    updater.faults, messages = _handling(max_skipped=0)
    seen = []

    def check(module, inputs, output):
        seen.append(output.shape[0] * output.shape[1])
        if seen[-1] > 40:
            torch.empty(NO_MACHINE_HAS, dtype=torch.uint8)

    model.get_input_embeddings().register_forward_hook(check)
    output, _ = _step(updater, rows)
    assert output.num_updates == 1
    assert messages
    assert max(seen) > 40 >= seen[-1]


def test_without_leave_to_shrink_one_message_says_phase_size_and_settings(make):
    model = make.tiny_policy().model
    before = _weights(model)
    updater = make.updater(make.objective("algorithm=grpo"), model, micro_batch_tokens=512)
    _fail_above(model, 8)
    with pytest.raises(MemoryExhaustedError) as caught:
        _step(updater, make.rows(make.groups()))
    message = str(caught.value)
    assert "\n" not in message
    for part in (
        "forward pass of an update",
        "1048576.00 GiB",
        "compute.recompute_activations=true",
        "compute.micro_batch_tokens=512",
        "on_oom=shrink",
    ):
        assert part in message
    assert _weights(model).equal(before)


def test_a_single_row_that_does_not_fit_ends_the_run_even_where_micro_batches_may_shrink(make):
    model = make.tiny_policy().model
    updater = make.updater(make.objective("algorithm=grpo"), model, shrinks=True)
    _fail_above(model, 1)
    with pytest.raises(MemoryExhaustedError, match=r"single row of \d+ tokens; .*max_new_tokens"):
        _step(updater, make.rows(make.groups()))


def test_other_errors_of_a_pass_are_no_lack_of_memory(make):
    model = make.tiny_policy().model
    updater = make.updater(make.objective("algorithm=grpo"), model, shrinks=True)
    model.get_input_embeddings().register_forward_hook(lambda module, inputs, output: output[:, :0])
    with pytest.raises(RuntimeError, match=r".") as caught:
        _step(updater, make.rows(make.groups()))
    assert not is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("make_error", "size"),
    [
        (lambda: torch.empty(NO_MACHINE_HAS, dtype=torch.uint8), "1048576.00 GiB"),
        (lambda: np.zeros(NO_MACHINE_HAS, dtype=np.uint8), "1048576.00 GiB"),
        (
            lambda: _raise(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0")),
            "20.0 MiB",
        ),
    ],
    ids=["torch", "numpy", "cuda"],
)
def test_every_kind_of_lacking_memory_is_known_by_its_size(make_error, size):
    with (
        pytest.raises(MemoryExhaustedError, match=f"in sampling: could not allocate {size}"),
        memory_explained("sampling", "do"),
    ):
        make_error()
    assert size_asked_for(RuntimeError("nothing")) == "an unknown amount"


def _raise(error):
    raise error
