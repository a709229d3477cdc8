"""Time training steps of Atrium on the workload of `workload.py`, and print one JSON line.

The engine, the collation, the objective and the updater are those of `atrium train`; the problems and
rewards come from the workload. The objective is GRPO with a token mean, as in the TRL benchmark
(`trl_step.py --loss-type dapo`).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import record
import workload

if TYPE_CHECKING:
    from atrium.base.records import Completion, RolloutGroup
    from atrium.engines.engine import Engine, GenerationRequest, SamplingParams
    from atrium.models.policy import Policy
    from atrium.train.update.updater import PolicyUpdater

start_up = record.StartUp()


def build_updater(args: argparse.Namespace, policy: Policy) -> PolicyUpdater:
    """Build an updater that makes one AdamW update per batch, as the workload requires."""
    import torch

    from atrium.config.presets import read_preset
    from atrium.method.objective import Objective
    from atrium.method.reductions import TokenMean
    from atrium.train.settings import AdamWSettings
    from atrium.train.update.forward import PolicyForward
    from atrium.train.update.optimizer import PolicyOptimizer
    from atrium.train.update.update import UpdateSettings
    from atrium.train.update.updater import PolicyUpdater

    longest = args.max_new_tokens + 64
    return PolicyUpdater(
        objective=Objective(read_preset("grpo").method.with_parts(reduction=TokenMean())),
        forward=PolicyForward(
            policy.model,
            temperature=1.0,
            autocast_dtype=torch.bfloat16 if args.dtype == "mixed" else None,
        ),
        optimizer=PolicyOptimizer(
            policy.model,
            AdamWSettings(
                learning_rate=workload.LEARNING_RATE,
                beta1=0.9,
                beta2=0.999,
                epsilon=1e-8,
                weight_decay=0.0,
                num_warmup_steps=0,
                schedule="constant",
                max_grad_norm=workload.MAX_GRAD_NORM,
            ),
            num_steps=args.steps,
        ),
        settings=UpdateSettings(
            num_minibatches=1,
            num_epochs=1,
            micro_batch_tokens=longest * (args.micro or args.prompts * args.group),
            behavior_logprobs="engine",
            seed=args.seed,
        ),
    )


def requests_of(
    policy: Policy, problems: Sequence[dict[str, str]], args: argparse.Namespace, step: int
) -> list[GenerationRequest]:
    """Return a request for each problem: its prompt as plain text, and a seed for each completion."""
    import numpy as np

    from atrium.base.seeding import derive_seed
    from atrium.engines.engine import GenerationRequest

    return [
        GenerationRequest(
            prompt_token_ids=np.asarray(policy.tokenizer.encode(problem["prompt"]), dtype=np.int32),
            sample_seeds=tuple(
                derive_seed(args.seed, "benchmark", step, index, sample) for sample in range(args.group)
            ),
        )
        for index, problem in enumerate(problems)
    ]


def groups_of(
    problems: Sequence[dict[str, str]],
    requests: Sequence[GenerationRequest],
    completions: Sequence[Sequence[Completion]],
    rewards: Sequence[float],
) -> list[RolloutGroup]:
    """Build rollout groups from the completions and rewards of a step, both in the order of the prompts."""
    from atrium.base.records import Problem, Rollout, RolloutGroup, Verdict, VerdictKind

    verdict = Verdict(kind=VerdictKind.NO_ANSWER, reason="the workload gives the reward")
    remaining = iter(rewards)
    return [
        RolloutGroup(
            problem=Problem(problem_id=str(index), question=problem["prompt"], answer=problem["answer"]),
            prompt_token_ids=request.prompt_token_ids,
            rollouts=tuple(
                Rollout(sample_index=place, completion=completion, verdict=verdict, reward=next(remaining))
                for place, completion in enumerate(group)
            ),
        )
        for index, (problem, request, group) in enumerate(zip(problems, requests, completions, strict=True))
    ]


def generate(
    engine: Engine, requests: Sequence[GenerationRequest], sampling: SamplingParams
) -> list[tuple[Completion, ...]]:
    """Generate the completions of each request, in the order of the requests."""
    done = {generation.request_index: generation for generation in engine.generate(requests, sampling)}
    return [done[index].completions for index in range(len(requests))]


def run_steps(
    args: argparse.Namespace, policy: Policy, updater: PolicyUpdater, engine: Engine, times: record.StepTimes
) -> list[int]:
    """Run all steps of the workload, and return the number of generated tokens of each step."""
    from atrium.base import metrics
    from atrium.engines.collate import collate
    from atrium.engines.engine import SamplingParams
    from atrium.train.measure.measurements import Measurements

    sampling = SamplingParams(max_new_tokens=args.max_new_tokens, ignore_stop=not args.free_length)
    rewards = workload.Rewards(args.reward, args.seed)
    problems = workload.read_problems(args.data, args.prompts * args.steps)
    state = updater.objective.initial_state()
    num_tokens = []
    times.restart()
    for step in range(1, args.steps + 1):
        batch = problems[(step - 1) * args.prompts : step * args.prompts]
        measurements = Measurements()
        with times.phase("rollout"):
            requests = requests_of(policy, batch, args, step)
            with times.phase("generate"):
                completions = generate(engine, requests, sampling)
            with times.phase("reward"):
                texts = [completion.text for group in completions for completion in group]
                answers = [problem["answer"] for problem in batch for _ in range(args.group)]
                values = rewards(texts, answers)
            groups = groups_of(batch, requests, completions, values)
            rows = collate(
                groups,
                trains=[True] * len(groups),
                pad_token_id=policy.pad_token_id,
                seed=args.seed,
                device=args.device,
            )
        updater.step(rows, state, step=step, measurements=measurements, trace=False)
        engine.update_weights(policy.model.state_dict(), step)
        values_by_quantity = measurements.values()
        times.add("loss_fwd", values_by_quantity[metrics.FORWARD_S])
        times.add("backward", values_by_quantity[metrics.BACKWARD_S])
        times.add("optimizer", values_by_quantity[metrics.OPTIMIZER_S])
        num_tokens.append(int(rows.num_completion_tokens_B.sum()))
        times.end_step()
    return num_tokens


def main() -> None:
    """Run the steps and print the record."""
    args = workload.parser(__doc__ or "").parse_args()
    workload.prepare_environment(args.threads)
    import torch

    from atrium.engines.transformers_engine import TransformersEngine
    from atrium.models.policy import load_policy
    from atrium.train.guard.memory import keep_freed_memory

    if args.threads:
        torch.set_num_threads(args.threads)
    if args.device == "cpu":
        keep_freed_memory()
    start_up.imported()
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    policy = load_policy(args.model, dtype=dtype, device=args.device)
    engine = TransformersEngine(
        model=policy.model,
        tokenizer=policy.tokenizer,
        stop_token_ids=policy.stop_token_ids,
        pad_token_id=policy.pad_token_id,
        context_length=policy.context_length,
    )
    updater = build_updater(args, policy)
    times = record.StepTimes()
    start_up.ready()
    num_tokens: list[Any] = list(run_steps(args, policy, updater, engine, times))
    record.print_record(
        impl=record.versions("atrium-rl", "transformers", "torch"),
        tag=args.tag,
        model=Path(args.model).name,
        params=policy.num_parameters,
        prompts=args.prompts,
        group=args.group,
        max_new_tokens=args.max_new_tokens,
        free_length=args.free_length,
        steps=len(times.steps),
        dtype=args.dtype,
        threads=torch.get_num_threads(),
        micro=args.micro or args.prompts * args.group,
        reward=args.reward,
        **times.summary(num_warmup=args.warmup, tokens_per_step=statistics.mean(num_tokens)),
        **start_up.summary(times),
        **record.machine(args.device),
    )


if __name__ == "__main__":
    main()
