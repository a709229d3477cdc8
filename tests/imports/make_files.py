"""Make the files of tests/imports/files with the programs themselves, on a CPU and without network.

    python tests/imports/make_files.py OUT trl lm_eval verl

Needs trl 1.16, lm-eval 0.4.13 and verl 0.9.1 (its source alone) beside Atrium's packages.
"""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import string
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

PROBLEMS = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(6)]


def tiny_model() -> str:
    """Save a Qwen3 model of a few thousand parameters, which reads characters; its directory."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    characters = ["<pad>", "<eos>", *string.digits, *string.ascii_letters, *"+= \n.,:?'"]
    vocabulary = {character: number for number, character in enumerate(characters)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=256,
        eos_token_id=1,
        pad_token_id=0,
    )
    Qwen3ForCausalLM(config).save_pretrained("tiny")
    tokenizer.save_pretrained("tiny")
    return "tiny"


def greedy(prompt: str) -> str:
    """Four characters that the model writes without sampling."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained("tiny"), AutoModelForCausalLM.from_pretrained("tiny")
    asked = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    found = model.generate(**asked, max_new_tokens=4, do_sample=False)
    return tokenizer.decode(found[0, asked["input_ids"].shape[1] :], skip_special_tokens=True)


def make_trl(out: Path) -> None:
    """Two methods with two seeds each: completions of two steps, and trainer_state.json."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def has_digit(completions, **_):
        return [float(any(one.isdecimal() for one in text)) for text in completions]

    for method in ("grpo", "dr_grpo"):
        for seed in (0, 1):
            settings = GRPOConfig(
                output_dir=f"trl/{method}-{seed}",
                seed=seed,
                loss_type=method,
                num_generations=2,
                per_device_train_batch_size=12,
                max_completion_length=6,
                max_steps=2,
                logging_steps=1,
                save_steps=2,
                save_only_model=True,
                log_completions=True,
                report_to=[],
                use_cpu=True,
                bf16=False,
                learning_rate=1e-2,
            )
            trainer = GRPOTrainer(
                model=tiny_model(),
                reward_funcs=has_digit,
                train_dataset=Dataset.from_list(PROBLEMS),
                args=settings,
            )
            trainer.train()
            target = out / "trl" / f"{method}-{seed}"
            shutil.copytree(f"trl/{method}-{seed}/completions", target / "completions", dirs_exist_ok=True)
            shutil.copy(f"trl/{method}-{seed}/checkpoint-2/trainer_state.json", target)


def make_lm_eval(out: Path) -> None:
    """A local task with two filters, half of whose answers are right: results and samples."""
    import lm_eval
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    tiny_model()
    Path("tasks").mkdir()
    answers = [greedy(one["prompt"]) if n % 2 else "none" for n, one in enumerate(PROBLEMS)]
    rows = [{"question": one["prompt"], "answer": gold} for one, gold in zip(PROBLEMS, answers, strict=True)]
    Path("tasks/sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    task = {
        "task": "sums",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "tasks/sums.jsonl"}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4, "do_sample": False},
        "filter_list": [
            {"name": "strict", "filter": [{"function": "take_first"}]},
            {"name": "lowercase", "filter": [{"function": "lowercase"}, {"function": "take_first"}]},
        ],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    Path("tasks/sums.yaml").write_text(json.dumps(task))  # JSON is YAML
    found = lm_eval.simple_evaluate(
        model="hf",
        model_args="pretrained=tiny",
        tasks=["sums"],
        task_manager=TaskManager(include_path="tasks"),
        log_samples=True,
        device="cpu",
        batch_size=6,
    )
    samples = found.pop("samples")
    tracker = EvaluationTracker(output_path="lm_eval")
    tracker.save_results_aggregated(results=found, samples=samples)
    tracker.save_results_samples(task_name="sums", samples=samples["sums"])
    (out / "lm_eval").mkdir(parents=True, exist_ok=True)
    for path in Path("lm_eval").rglob("*.json*"):
        shutil.copy(path, out / "lm_eval")
    for path in (out / "lm_eval").glob("results_*.json"):
        results = json.loads(path.read_text())
        del results["pretty_env_info"]  # the machine
        path.write_text(json.dumps(results, indent=1) + "\n")


def functions_of(module: str, *names: str) -> SimpleNamespace:
    """Functions and classes of an installed module, run without what the module imports."""
    top = module.partition(".")[0]
    folder = Path(find_spec(top).submodule_search_locations[0])
    source = folder.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text()
    wanted = [node for node in ast.walk(ast.parse(source)) if getattr(node, "name", None) in names]
    for node in wanted:
        node.decorator_list = []
    import orjson

    found = {"os": os, "json": json, "orjson": orjson}
    exec(compile(ast.Module(wanted, []), module, "exec"), found)
    return SimpleNamespace(**{name: found[name] for name in names})


def make_verl(out: Path) -> None:
    """Validations of one run at steps 0 and 10, two answers to each problem, and the file log."""
    trainer = functions_of("verl.trainer.ppo.ray_trainer", "_write_generations")
    tracking = functions_of("verl.utils.tracking", "FileLogger")
    draws = random.Random(0)
    folder = out / "verl"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["VERL_FILE_LOGGER_PATH"] = str(folder / "log.jsonl")
    logger = tracking.FileLogger("project", "run")
    for step in (0, 10):
        asked = [one for one in PROBLEMS for _ in range(2)]
        right = [float(draws.random() < 0.3 + step / 20) for _ in asked]
        trainer._write_generations(
            *(() if "self" not in trainer._write_generations.__code__.co_varnames else (None,)),
            [f"user\n{one['prompt']}\nassistant\n" for one in asked],
            [one["answer"] if good else "?" for one, good in zip(asked, right, strict=True)],
            [one["answer"] for one in asked],
            right,
            {"acc": [bool(good) for good in right]},
            str(folder),
            step,
        )
        logger.log(
            {
                "val-core/sums/acc/mean@2": sum(right) / len(right),
                "actor/pg_clipfrac": 0.01 * step,
                "actor/entropy": 0.5,
                "critic/score/mean": 0.4,
                "response_length/mean": 1.0,
            },
            step,
        )
    logger.finish()


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    target = Path(sys.argv[1]).absolute()
    for program in sys.argv[2:]:
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)
            globals()[f"make_{program}"](target)
