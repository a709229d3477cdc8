"""Updates of verl's actor on a CPU, by its own `TrainingWorker` with FSDP2: `verl_actor.py MODEL_FOLDER`.

verl has no platform for CPUs, so this module registers one by verl's plugin interface, as a vendor would. It
prints as JSON, for every method that verl can run, the gradient norm of the actor's update and that of the
same loss on the same model in a plain loop.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from types import SimpleNamespace

import torch

B, PROMPT, T = 8, 3, 6
LENGTH_B = torch.tensor([6, 4, 5, 2, 6, 3, 1, 4])


def register_cpu():
    """Make verl compute on the CPU."""
    from verl.plugin.platform import PlatformRegistry
    from verl.plugin.platform.platform_cuda import PlatformCUDA

    @PlatformRegistry.register(platform="cpu")
    class PlatformCPU(PlatformCUDA):
        device_name = "cpu"
        vendor_name = "cpu"
        device_module = SimpleNamespace(
            **dict.fromkeys(
                ("empty_cache", "synchronize", "ipc_collect", "reset_peak_memory_stats"), lambda: None
            ),
            **dict.fromkeys(("memory_allocated", "memory_reserved"), lambda: 0),
            **dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), lambda: 0),
            mem_get_info=lambda: (1, 1),
            get_device_name=lambda: "cpu",
            current_device=lambda: torch.device("cpu"),
        )

        def is_available(self):
            return True

        def is_platform_available(self, use_smi_check=False):
            return True

        def current_device(self):
            return torch.device("cpu")

        def set_device(self, device_index):
            pass

        def manual_seed_all(self, seed):
            pass

        def empty_cache(self):
            pass

        def communication_backend_name(self):
            return "gloo"


def tensors(folder):
    """A batch as verl's trainer pads it, prompts on the left, and the model's log-probabilities of it."""
    from transformers import AutoModelForCausalLM

    generator = torch.Generator().manual_seed(5)
    ids_BL = torch.randint(3, 40, (B, PROMPT + T), generator=generator)
    mask_BT = torch.arange(T) < LENGTH_B[:, None]
    mask_BL = torch.cat([torch.ones(B, PROMPT, dtype=torch.bool), mask_BT], dim=1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    logits_BTV = model(ids_BL, attention_mask=mask_BL.long()).logits[:, PROMPT - 1 : -1]
    logprob_BT = logits_BTV.log_softmax(-1).gather(-1, ids_BL[:, PROMPT:, None])[..., 0]
    noise_BT = torch.randn(B, T, generator=generator)
    batch = {
        "prompts": ids_BL[:, :PROMPT],
        "responses": ids_BL[:, PROMPT:],
        "input_ids": ids_BL,
        "attention_mask": mask_BL.long(),
        "position_ids": torch.arange(PROMPT + T).expand(B, -1).contiguous(),
        "response_mask": mask_BT.long(),
        "advantages": torch.randn(B, 1, generator=generator) * mask_BT,
        "old_log_probs": logprob_BT.detach() + 0.1 * noise_BT,
        "rollout_log_probs": logprob_BT.detach() + 0.5 * noise_BT.flip(0),
        "ref_log_prob": logprob_BT.detach() + 0.3 * noise_BT.flip(1),
    }
    return batch, model, logprob_BT


def plain_norm(folder, method):
    """The gradient norm of a method's loss in a loop of our own."""
    import atrium

    batch, model, logprob_BT = tensors(folder)
    output = atrium.load_method(method, max_new_tokens=T).loss(
        logprob_BT,
        batch["response_mask"],
        advantage_BT=batch["advantages"],
        old_logprob_BT=batch["old_log_probs"],
        rollout_logprob_BT=batch["rollout_log_probs"],
        reference_logprob_BT=batch["ref_log_prob"],
    )
    output.loss.backward()
    return torch.nn.utils.get_total_norm(p.grad for p in model.parameters() if p.grad is not None).item()


def actor(folder):
    """verl's worker with the model of the folder."""
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, TrainingWorkerConfig
    from verl.workers.engine_workers import TrainingWorker

    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=HFModelConfig(
                path=folder,
                load_tokenizer=False,
                use_remove_padding=False,
                enable_gradient_checkpointing=False,
                override_config={"attn_implementation": "eager"},
            ),
            engine_config=FSDPEngineConfig(
                strategy="fsdp2",
                forward_only=False,
                use_dynamic_bsz=False,
                micro_batch_size_per_gpu=B // 2,
                use_torch_compile=False,
                dtype="float32",
                mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
            ),
            optimizer_config=FSDPOptimizerConfig(lr=0.0, lr_warmup_steps=0, total_training_steps=10),
        )
    )
    worker.reset()
    return worker


def updated(worker, folder, name, mode, *, drop=()):
    """The gradient norm of one update of the actor by a registered loss."""
    from verl.protocol import DataProto
    from verl.utils import tensordict_utils as tu
    from verl.workers import engine_workers
    from verl.workers.config import ActorConfig, PolicyLossConfig
    from verl.workers.utils.padding import left_right_2_no_padding

    config = ActorConfig(
        strategy="fsdp2",
        ppo_micro_batch_size_per_gpu=B // 2,
        rollout_n=4,
        loss_agg_mode=mode,
        policy_loss=PolicyLossConfig(loss_mode=name),
    )
    worker.set_loss_fn(partial(engine_workers.ppo_loss, config=config))
    batch = {key: value for key, value in tensors(folder)[0].items() if key not in drop}
    data = DataProto.from_dict(batch, meta_info={"temperature": 1.0}).to_tensordict()
    data = left_right_2_no_padding(data)
    tu.assign_non_tensor(
        data,
        calculate_entropy=False,
        distillation_use_topk=False,
        distillation_only=False,
        global_batch_size=B,
        mini_batch_size=B,
        epochs=1,
        seed=1,
        dataloader_kwargs={"shuffle": False},
        compute_loss=True,
    )
    return tu.get(worker.train_mini_batch(data), "metrics")["grad_norm"][0]


def main(folder):
    register_cpu()
    torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    from atrium.config.presets import read_presets
    from atrium.peers import verl_losses
    from atrium.peers.trainers import VERL

    worker = actor(folder)
    found = {"vanilla": updated(worker, folder, "vanilla", "seq-mean-token-mean")}
    for preset in read_presets():
        if VERL.lacks(preset.method):
            continue
        own = verl_losses.RegisteredMethod(preset.name).load(T).method.algorithm.reduction
        mode = next(mode for mode, reduction in verl_losses._REDUCTIONS.items() if reduction(T) == own)
        update = updated(worker, folder, f"atrium/{preset.name}", mode)
        found[preset.name] = [update, plain_norm(folder, preset.name)]
    try:
        updated(
            worker, folder, "atrium/dppo_binary_tv", "seq-mean-token-sum-norm", drop=("rollout_log_probs",)
        )
    except Exception as error:
        found["missing"] = str(error)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", LOCAL_RANK="0")
    main(sys.argv[1])
