"""Make the files of tests/imports/files with the programs themselves, on a CPU and without network.

    python tests/imports/make_files.py OUT trl lm_eval verl lighteval prime_rl wandb mlflow

Needs trl 1.16, lm-eval 0.4.13, verl 0.9.1 (its source alone), lighteval 0.13 and verifiers 0.4 beside
Atrium's packages. prime-rl itself needs GPUs; its files are made by the classes of verifiers that it writes.
"""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import sqlite3
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


def make_lighteval(out: Path) -> None:
    """A local task with four answers to each problem, some of which repeat the greedy one."""
    from lighteval.logging.evaluation_tracker import EvaluationTracker
    from lighteval.models.transformers.transformers_model import TransformersModelConfig
    from lighteval.pipeline import ParallelismManager, Pipeline, PipelineParameters
    from lighteval.tasks.registry import Registry

    # Some of the built-in tasks download at import.
    Registry._load_from_files = Registry._load_from_subdirs = staticmethod(lambda *_: {})
    tiny_model()
    sampled = {
        "do_sample": True,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }  # lighteval leaves the choice to the model
    Path("tiny/generation_config.json").write_text(json.dumps(sampled))
    Path("sums").mkdir()
    rows = [{"question": one["prompt"], "answer": greedy(one["prompt"])[:1]} for one in PROBLEMS]
    Path("sums/test.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    Path("task.py").write_text(LIGHTEVAL_TASK)
    tracker = EvaluationTracker(output_dir="lighteval", save_details=True)
    pipeline = Pipeline(
        tasks="sums|0",
        pipeline_parameters=PipelineParameters(
            launcher_type=ParallelismManager.ACCELERATE, custom_tasks_directory="task.py"
        ),
        evaluation_tracker=tracker,
        model_config=TransformersModelConfig(
            model_name="tiny",
            device="cpu",
            batch_size=6,
            generation_parameters={"temperature": 0.05, "max_new_tokens": 1, "seed": 0},
        ),
    )
    pipeline.evaluate()
    pipeline.save_and_push_results()
    shutil.copytree("lighteval", out / "lighteval", dirs_exist_ok=True)
    for path in (out / "lighteval").rglob("*|*.parquet"):
        path.rename(path.with_name(path.name.replace("|", "_")))  # Windows allows no such names


def make_prime_rl(out: Path) -> None:
    """Evaluations at steps 0 and 10, a training step, and metrics, laid out as by prime-rl."""
    from verifiers.v1 import Episode
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.episode import EvalWorkInfo, GroupInfo, TrainRunInfo, TrainWorkInfo
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.task import WireTaskData
    from verifiers.v1.trace import AgentInfo, ModelCall, Reward, Trace, TraceTask
    from verifiers.v1.types import AssistantMessage, Usage, UserMessage

    def episode(number: int, sample: int, right: bool, work) -> Episode:
        one, place = PROBLEMS[number], f"{work.type}{work.step}-{number}"
        data = WireTaskData(idx=number, prompt=one["prompt"], answer=one["answer"])
        task = TraceTask(type="Sums", data=data, key=f"sums-{number}")
        said = AssistantMessage(content=one["answer"] if right else "?")
        trace = Trace(
            id=f"{place}-{sample}",
            task=task,
            agent=AgentInfo(config=AgentConfig(model="tiny")),
            nodes=[
                MessageNode(message=UserMessage(content=one["prompt"])),
                MessageNode(parent=0, message=said, sampled=True),
            ],
            calls=[
                ModelCall(node=1, finish_reason="stop", usage=Usage(prompt_tokens=4, completion_tokens=2))
            ],
            rewards={"correct": Reward(score=float(right))},
            is_completed=True,
            ok=True,
        )
        run = TrainRunInfo(id="run", name="tiny-grpo", work=work)
        group = GroupInfo(id=place)
        return Episode(
            id=trace.id, env={"id": "sums", "name": "sums"}, task=task, group=group, run=run, ok=True,
            traces=[trace],
        )  # fmt: skip

    draws = random.Random(1)
    logged = []
    for step, kind, work in (
        (0, "eval", EvalWorkInfo),
        (1, "train", TrainWorkInfo),
        (10, "eval", EvalWorkInfo),
    ):
        right = [draws.random() < 0.3 + step / 20 for _ in range(6)]
        episodes = [episode(n // 2, n % 2, good, work(step=step)) for n, good in enumerate(right)]
        for subset in ("all", "effective") if kind == "eval" else ("effective",):
            path = out / f"prime_rl/rollouts/step_{step}/{kind}/{subset}/traces.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{json.dumps(one.to_record())}\n" for one in episodes))
        names = [f"eval/sums/{one}/agent/avg@2" for one in ("all", "effective")]
        names = names if kind == "eval" else ["train/sums/effective/agent/reward/mean"]
        logged.append({"step": step, "time": step, **dict.fromkeys(names, sum(right) / len(right))})
    (out / "prime_rl/metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in logged))


def make_wandb(out: Path) -> None:
    """An offline run with settings, a table and curves of three steps."""
    import wandb

    quiet = wandb.Settings(
        x_disable_stats=True, x_disable_meta=True, disable_git=True, console="off", silent=True
    )
    config = {"seed": 1, "learning_rate": 1e-3, "algorithm": {"name": "grpo"}, "model_name_or_path": "tiny"}
    run = wandb.init(mode="offline", project="p", name="grpo-1", id="fixture", config=config, settings=quiet)
    for step in range(3):
        run.log({"train/reward": step / 4, "actor/entropy": 1 - step / 10, "text": "x", "nan": float("nan")})
    run.finish()
    wandb.teardown()  # waits until the file is whole
    (source,) = Path("wandb").glob("offline-run-*/run-*.wandb")
    (out / "wandb").mkdir(parents=True, exist_ok=True)
    shutil.copy(source, out / "wandb")


def make_mlflow(out: Path) -> None:
    """One run with a seed in a file store and the same run in a database."""
    import mlflow

    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    for name, uri in (("file", "file:mlruns"), ("database", "sqlite:///mlflow.db")):
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment("sums")
        with mlflow.start_run(run_name=f"grpo-{name}"):
            mlflow.log_params({"seed": 1, "learning_rate": 1e-3, "model_name_or_path": "tiny"})
            for step in range(3):
                mlflow.log_metrics({"train/reward": step / 4, "actor/entropy": 1 - step / 10}, step=step)
    (out / "mlflow").mkdir(parents=True, exist_ok=True)
    for source in Path("mlruns").glob("*/*/meta.yaml"):
        target = out / "mlflow" / source.parent
        for part in ("metrics", "params"):
            shutil.copytree(source.parent / part, target / part, dirs_exist_ok=True)
        (target / source.name).write_text(source.read_text().replace(str(Path.cwd()), ""))
    database = sqlite3.connect("mlflow.db")
    database.execute("PRAGMA foreign_keys = OFF")
    for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        if name not in ("alembic_version", "experiments", "runs", "metrics", "params"):
            database.execute(f"DROP TABLE {name}")  # a hundred tables of a megabyte
    database.execute("UPDATE runs SET artifact_uri = ''")
    database.execute("UPDATE experiments SET artifact_location = ''")
    database.commit()
    database.execute("VACUUM")
    database.close()
    shutil.copy("mlflow.db", out / "mlflow")


LIGHTEVAL_TASK = """
from lighteval.metrics.metrics import Metrics
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.requests import Doc

TASKS_TABLE = [
    LightevalTaskConfig(
        name="sums",
        prompt_function=lambda line, task_name=None: Doc(
            task_name=task_name, query=line["question"], choices=[line["answer"]], gold_index=0
        ),
        hf_repo="sums",
        hf_subset="default",
        hf_avail_splits=["test"],
        evaluation_splits=["test"],
        generation_size=1,
        stop_sequence=["+"],
        metrics=[
            Metrics.exact_match,
            Metrics.avg_at_n(sample_params={"n": 4}),
            Metrics.pass_at_k(sample_params={"k": 2, "n": 4}),
        ],
    )
]
"""


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    target = Path(sys.argv[1]).absolute()
    for program in sys.argv[2:]:
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(scratch)
            globals()[f"make_{program}"](target)
