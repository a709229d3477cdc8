"""Whether versions of vLLM have what Atrium calls: `python tests/vllm/interface.py WHEEL_OR_FOLDER ...`

Give wheels (`pip download --no-deps vllm==VERSION`), or a folder that holds the package, for each minor
version that Atrium accepts. Sources are parsed, nothing of vLLM is installed or imported. What Atrium passes
to `EngineArgs` and `SamplingParams` is read from its own source, so that it stands once; what it calls
besides, and the defaults that it leaves as they are, stand below.
"""

from __future__ import annotations

import ast
import re
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

PLATFORM = Path(__file__).resolve().parents[2] / "platform"
sys.path[:0] = [str(PLATFORM)]  # where nothing is installed

from atrium.engines.vllm_environment import serves  # noqa: E402

PACKAGE = PLATFORM / "atrium" / "engines"

METHODS = {
    ("v1/engine/llm_engine.py", "LLMEngine"): {
        "from_engine_args": {"engine_args"},
        "add_request": {"request_id", "prompt", "params", "lora_request"},
        "abort_request": {"request_ids"},
        "step": set(),
        "has_unfinished_requests": set(),
        "collective_rpc": {"method", "kwargs"},
        "reset_prefix_cache": {"reset_running_requests"},
        "sleep": {"level"},
        "wake_up": {"tags"},
    },
    ("v1/core/sched/scheduler.py", "Scheduler"): {"_preempt_request": {"request"}},
    ("v1/worker/gpu_model_runner.py", "GPUModelRunner"): {"reload_weights": {"weights_iterator"}},
    ("config/vllm.py", "VllmConfig"): {"use_v2_model_runner": set()},
}
"""Parameters of the methods that are called, by file and class."""

TRANSFER = "distributed/weight_transfer"
SENDING = {
    ("v1/worker/gpu_worker.py", "Worker"): {
        "init_weight_transfer_engine": {"init_info"},
        "shutdown_weight_transfer_engine": set(),
        "start_weight_update": set(),
        "update_weights": {"update_info"},
        "finish_weight_update": set(),
    },
    ("distributed/device_communicators/pynccl_wrapper.py", "NCCLLibrary"): {"ncclGetUniqueId": set()},
    ("distributed/device_communicators/pynccl.py", "PyNcclCommunicator"): {"destroy": set()},
}
"""Those that `rollout.weight_transfer=nccl` calls, in the versions of `vllm_environment.SERVES`."""

FIELDS = {
    ("config/cache.py", "CacheConfig"): {"num_gpu_blocks", "block_size"},
    ("config/scheduler.py", "SchedulerConfig"): {"max_num_batched_tokens", "max_num_seqs"},
    ("config/model.py", "ModelConfig"): {"max_model_len", "head_dtype"},
    ("sampling_params.py", "RequestOutputKind"): {"FINAL_ONLY"},
    ("lora/request.py", "LoRARequest"): {"lora_name", "lora_int_id", "lora_path"},
}
SENDING_FIELDS = {
    (f"{TRANSFER}/nccl_common.py", "NCCLWeightTransferInitInfo"): {
        *("nccl_unique_id_b64", "world_size", "rank_offset"),
        *("packed", "packed_buffer_size_bytes", "packed_num_buffers"),
    },
    (f"{TRANSFER}/nccl_engine.py", "NCCLWeightTransferUpdateInfo"): {"names", "dtype_names", "shapes"},
}
SENDING_FUNCTIONS = {
    f"{TRANSFER}/nccl_common.py": {
        "uid_init_process_group": {"nccl_unique_id_bytes", "rank", "world_size", "device"},
    },
    f"{TRANSFER}/packed_tensor.py": {
        "packed_nccl_broadcast_producer": {
            *("iterator", "group", "src", "post_iter_func", "buffer_size_bytes", "num_buffers"),
        },
    },
}

_ENTRY = "entrypoints"
_TOKENS = f"{_ENTRY}/scale_out/token_in_token_out"
ENDPOINTS = {
    f"{_TOKENS}/api_router.py": {"/inference/v1/generate"},
    f"{_ENTRY}/rl/online/api_router.py": {
        *("/pause", "/resume", "/update_weight_version", "/weight_info", "/get_world_size"),
        *("/init_weight_transfer_engine", "/shutdown_weight_transfer_engine"),
        *("/start_weight_update", "/update_weights", "/finish_weight_update"),
    },
    f"{_ENTRY}/serve/dev/rpc/api_router.py": {"/collective_rpc"},
    f"{_ENTRY}/serve/dev/cache/api_router.py": {"/reset_prefix_cache"},
    f"{_ENTRY}/serve/dev/server_info/api_router.py": {"/server_info"},
    f"{_ENTRY}/serve/instrumentator/basic.py": {"/version"},
    f"{_ENTRY}/serve/instrumentator/health.py": {"/health"},
    f"{_ENTRY}/serve/instrumentator/metrics.py": {"/metrics"},
    f"{_ENTRY}/openai/api_server.py": set(),
}
"""Paths of the server that are requested, by file, in the versions of `vllm_environment.SERVES`."""

SERVER_FIELDS = {
    (f"{_TOKENS}/protocol.py", "GenerateRequest"): {"token_ids", "sampling_params"},
    (f"{_TOKENS}/protocol.py", "GenerateChoiceBase"): {"token_ids", "finish_reason", "weight_versions"},
    (f"{_TOKENS}/protocol.py", "GenerateLogProbs"): {"content"},
    ("config/load.py", "LoadConfig"): {"load_format"},
    ("config/model.py", "ModelConfig"): {"logprobs_mode", "served_model_name", "generation_config", "dtype"},
    ("engine/arg_utils.py", "EngineArgs"): {
        *("served_model_name", "weight_transfer_config", "tensor_parallel_size", "load_format", "model"),
    },
}
FLAGS = {"enable_scale_out", "disable_uvicorn_access_log", "middleware", "uds"}
"""Of the server's front end, equal in all of these versions; `server_arguments` has the others."""

DEFAULTS = {
    ("sampling_params.py", "SamplingParams"): {
        "n": "1",
        "presence_penalty": "0.0",
        "frequency_penalty": "0.0",
        "repetition_penalty": "1.0",
    }
}
"""What every completion is sampled with because nothing else is asked for."""


def sources(place: Path) -> Callable[[str], str]:
    """What reads a file of the package, out of a wheel or a folder."""
    if place.is_dir():
        return lambda name: (place / "vllm" / name).read_text(encoding="utf-8")
    return lambda name: zipfile.ZipFile(place).read(f"vllm/{name}").decode()


def passed_to(name: str) -> set[str]:
    """The keywords that Atrium's source passes to a class of vLLM, those of unpacked dictionaries too."""
    found = set()
    for path in PACKAGE.glob("vllm_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if not isinstance(call.func, ast.Name) or call.func.id != name:
                continue
            for keyword in call.keywords:
                if keyword.arg is not None:
                    found.add(keyword.arg)
                elif isinstance(keyword.value, ast.Call):
                    body = functions[keyword.value.func.id]
                    returned = [one.value for one in ast.walk(body) if isinstance(one, ast.Return)]
                    found |= {key.value for one in returned for key in getattr(one, "keys", [])}
    return found


def members(tree: ast.Module, name: str) -> dict[str, ast.stmt]:
    """Fields and methods of a class by name."""
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            found[ast.unparse(node.target)] = node
        elif isinstance(node, ast.Assign):
            found[ast.unparse(node.targets[0])] = node
    return found


def lacking(read: Callable[[str], str], *, serves: bool = True) -> Iterator[str]:
    """What a version does not have, or has otherwise; without `serves`, of the engine inside alone."""

    def parsed(file: str, name: str) -> dict[str, ast.stmt]:
        return members(ast.parse(read(file)), name)

    wanted = [
        *FIELDS.items(),
        (("engine/arg_utils.py", "EngineArgs"), passed_to("EngineArgs")),
        (("sampling_params.py", "SamplingParams"), passed_to("VllmSamplingParams")),
        *((SENDING_FIELDS | SERVER_FIELDS).items() if serves else ()),
    ]
    for (file, name), fields in wanted:
        yield from (f"{name}.{field}" for field in sorted(fields - set(parsed(file, name))))
    for (file, name), methods in {**METHODS, **(SENDING if serves else {})}.items():
        yield from (f"{name}.{one}" for one in lacking_parameters(parsed(file, name), methods))
    for (file, name), defaults in DEFAULTS.items():
        found = parsed(file, name)
        for field, default in defaults.items():
            value = getattr(found.get(field), "value", None)
            if value is None or ast.unparse(value) != default:
                yield f"{name}.{field}={default}"
    if serves:
        yield from lacking_in_server(read)


def lacking_parameters(found: Mapping[str, ast.AST], functions: Mapping[str, set[str]]) -> Iterator[str]:
    """Functions, and parameters of functions, that are not there."""
    for name, parameters in functions.items():
        node = found.get(name)
        if not isinstance(node, ast.FunctionDef):
            yield f"{name}()"
            continue
        known = {argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)}
        yield from (f"{name}({parameter})" for parameter in sorted(parameters - known))


def lacking_in_server(read: Callable[[str], str]) -> Iterator[str]:
    """Endpoints and flags of the server, and functions that send weights, that are not there."""
    for file, functions in SENDING_FUNCTIONS.items():
        nodes = ast.walk(ast.parse(read(file)))
        found = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
        yield from lacking_parameters(found, functions)
    for file, paths in ENDPOINTS.items():
        strings = {node.value for node in ast.walk(ast.parse(read(file))) if isinstance(node, ast.Constant)}
        yield from sorted(paths - strings)
    try:
        arguments = read(f"{_ENTRY}/launchers/cli_args.py")  # 0.32
    except (KeyError, FileNotFoundError):
        arguments = read(f"{_ENTRY}/common/cli_args.py")  # 0.33
    nodes = ast.walk(ast.parse(arguments))
    flags = {ast.unparse(node.target) for node in nodes if isinstance(node, ast.AnnAssign)}
    yield from (f"--{flag.replace('_', '-')}" for flag in sorted(FLAGS - flags))


def main(places: list[str]) -> int:
    """Say of each place what it lacks; 1 where any lacks something, or none is given."""
    worst = int(not places)
    for place in map(Path, places):
        version = re.match(r"vllm(?:_cpu)?-([\d.]+)", place.name)
        has_server = version is None or serves(version[1])
        missing = list(lacking(sources(place), serves=has_server))
        told = f"lacks {', '.join(missing)}" if missing else "has all that is called"
        sys.stdout.write(f"{version[1] if version else place}: {told}\n")
        worst |= bool(missing)
    return worst


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
