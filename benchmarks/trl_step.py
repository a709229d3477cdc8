"""Time training steps of TRL's GRPOTrainer on the workload of `workload.py`, and print one JSON line.

Atrium's speed is compared with this program, which has its own environment (`make bench-peer`). It samples
with transformers, as Atrium does. Settings that only cost time at this model size, such as gradient
checkpointing, are off by default.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any

import record
import workload

start_up = record.StartUp()


def options() -> argparse.Namespace:
    """Parse the options of all step benchmarks, and those of TRL."""
    parser = workload.parser(__doc__ or "")
    add = parser.add_argument
    add("--loss-type", default="dapo", help="loss of TRL (default %(default)s)")
    add("--beta", type=float, default=0.0, help="weight of the KL term (default %(default)s)")
    add("--attn", default="sdpa", help="attention implementation (default %(default)s)")
    add(
        "--cache",
        default="dynamic",
        choices=("dynamic", "static", "cb"),
        help="kind of cache; cb is continuous batching",
    )
    add("--grad-ckpt", action="store_true", help="use gradient checkpointing")
    add("--compile", action="store_true", help="compile forward and backward passes")
    add("--optim", default="adamw_torch", help="optimizer (default %(default)s)")
    return parser.parse_args()


def trl_config(args: argparse.Namespace) -> Any:
    """Return TRL's settings of the workload: one update per generated batch, rows in file order."""
    from trl import GRPOConfig

    batch = args.prompts * args.group
    micro = args.micro or batch
    return GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="trl_step_"),
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=batch // micro,
        num_generations=args.group,
        max_completion_length=args.max_new_tokens,
        generation_kwargs={} if args.free_length else {"min_new_tokens": args.max_new_tokens},
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        loss_type=args.loss_type,
        beta=args.beta,
        num_iterations=1,
        max_steps=args.steps,
        learning_rate=workload.LEARNING_RATE,
        lr_scheduler_type="constant",
        warmup_steps=0,
        max_grad_norm=workload.MAX_GRAD_NORM,
        optim=args.optim,
        shuffle_dataset=False,
        seed=args.seed,
        bf16=args.dtype == "mixed",
        use_cpu=args.device == "cpu",
        gradient_checkpointing=args.grad_ckpt,
        torch_compile=args.compile,
        cache_implementation="static" if args.cache == "static" else None,
        use_transformers_continuous_batching=args.cache == "cb",
        logging_steps=10**6,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )


def build_trainer(args: argparse.Namespace, times: record.StepTimes) -> Any:
    """Build the trainer, and wrap its methods to time their phases."""
    import datasets
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import GRPOTrainer

    class EndOfStep(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.end_step()

    rewards = workload.Rewards(args.reward, args.seed)

    def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return rewards(completions, answer)

    problems = workload.read_problems(args.data, args.prompts * args.steps)
    model = AutoModelForCausalLM.from_pretrained(
        args.model,
        dtype=torch.bfloat16 if args.dtype == "bf16" else torch.float32,
        attn_implementation=args.attn,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=trl_config(args),
        train_dataset=datasets.Dataset.from_list(problems),
        processing_class=AutoTokenizer.from_pretrained(args.model),
        callbacks=[EndOfStep()],
    )
    trainer.remove_callback(PrinterCallback)  # standard output contains only the record
    times.wrap(trainer, "_generate_single_turn", "generate")
    times.wrap(trainer, "_generate_and_score_completions", "rollout")
    times.wrap(trainer, "_calculate_rewards", "reward")
    times.wrap(trainer, "_get_per_token_logps_and_entropies", "logprob_fwd")
    times.wrap(trainer, "_compute_loss", "loss_fwd")
    times.wrap(trainer.accelerator, "backward", "backward")
    create_optimizer = trainer.create_optimizer

    def create_timed_optimizer(*args: Any, **kwargs: Any) -> Any:
        optimizer = create_optimizer(*args, **kwargs)
        times.wrap(trainer.optimizer, "step", "optimizer")
        return optimizer

    trainer.create_optimizer = create_timed_optimizer
    return trainer


def count_tokens(trainer: Any) -> list[int]:
    """Return a list to which the trainer appends the number of tokens of each generated batch."""
    counts: list[int] = []
    generate = trainer._generate_single_turn

    def counted(*args: Any, **kwargs: Any) -> Any:
        result = generate(*args, **kwargs)
        counts.append(sum(len(completion) for completion in result[0]))
        return result

    trainer._generate_single_turn = counted
    return counts


def print_measured(
    args: argparse.Namespace, trainer: Any, times: record.StepTimes, num_tokens: list[int], loss: float
) -> None:
    """Print the record of the steps."""
    import torch

    record.print_record(
        impl=record.versions("trl", "transformers", "torch"),
        tag=args.tag,
        model=Path(args.model).name,
        params=sum(parameter.numel() for parameter in trainer.model.parameters()),
        prompts=args.prompts,
        group=args.group,
        max_new_tokens=args.max_new_tokens,
        free_length=args.free_length,
        steps=len(times.steps),
        dtype=args.dtype,
        threads=torch.get_num_threads(),
        attn=args.attn,
        cache=args.cache,
        micro=args.micro or args.prompts * args.group,
        grad_ckpt=args.grad_ckpt,
        compile=args.compile,
        loss_type=args.loss_type,
        reward=args.reward,
        **times.summary(num_warmup=args.warmup, tokens_per_step=statistics.mean(num_tokens)),
        **start_up.summary(times),
        **record.machine(),
        train_loss=loss,
    )


def main() -> None:
    """Run the steps and print the record."""
    args = options()
    workload.prepare_environment(args.threads)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    warnings.filterwarnings("ignore")
    import datasets
    import torch
    import transformers
    from trl import GRPOConfig, GRPOTrainer  # noqa: F401 - import time is part of the start-up

    if args.threads:
        torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    start_up.imported()

    times = record.StepTimes()
    trainer = build_trainer(args, times)
    num_tokens = count_tokens(trainer)
    start_up.ready()
    times.restart()
    outcome = trainer.train()
    print_measured(args, trainer, times, num_tokens, outcome.training_loss)


if __name__ == "__main__":
    main()
