"""Compare the loss stage with the bare product of the LM head: time and peak memory by vocabulary size.

All arms run a forward and a backward pass from the same last hidden states and weights. `bare` is only the
product of states and head, with all logits in memory. `plain` adds log-softmax, log-probabilities and
entropies of the tokens. `torch` is PyTorch's chunked cross-entropy, which computes no entropies. `atrium` is
`token_logprobs` as in training, and `triton`, on a GPU, is the same by Triton kernels
(`compute.head_kernel=triton`). The bare product does not compute the gradient of its logits, so its time is
a lower bound for every loss stage.

The program prints one JSON line per vocabulary size and arm; ratios are paired, relative to `bare`.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pairs
import record

if TYPE_CHECKING:
    from torch import Tensor, nn

BASELINE = "bare"
CHUNK_LOGITS = 1 << 27
"""The chunk size of `token_logprobs`; with its own choice, PyTorch takes 8 to 17 times the product's time."""


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = options.add_argument
    add("--repeats", type=int, default=5, help="paired repeats (default %(default)s)")
    add("--tokens", type=int, default=512, help="number of completion tokens (default %(default)s)")
    add("--width", type=int, default=256, help="width of the model (default %(default)s)")
    add("--vocabularies", type=int, nargs="+", default=[4096, 32768, 151936], help="sizes of the vocabulary")
    add("--device", default="cpu", help="cpu or cuda (default %(default)s)")
    add(
        "--dtype", default="float32", choices=("float32", "bfloat16"), help="number format of states and head"
    )
    add("--seed", type=int, default=0)
    return options


def bare(head: nn.Linear, state_MD: Tensor, token_M: Tensor, gradient_M: Tensor) -> None:
    """Compute the head's product, and both products of its backward pass."""
    logits_MV = head(state_MD)
    logits_MV.backward(logits_MV.detach())


def plain(head: nn.Linear, state_MD: Tensor, token_M: Tensor, gradient_M: Tensor) -> None:
    """Compute log-probabilities and entropies from all logits at once."""
    from atrium.train.update.token_logprobs import selected_logprobs, tempered_logits

    logprob_M, _ = selected_logprobs(tempered_logits(head, state_MD, 1.0), token_M, entropy="value")
    logprob_M.backward(gradient_M)


def chunked_by_torch(head: nn.Linear, state_MD: Tensor, token_M: Tensor, gradient_M: Tensor) -> None:
    """Compute PyTorch's chunked cross-entropy with Atrium's chunk size; it has no entropies."""
    from torch.nn import LinearCrossEntropyOptions
    from torch.nn.functional import linear_cross_entropy

    rows_per_chunk = CHUNK_LOGITS // len(head.weight)
    options = LinearCrossEntropyOptions(chunking_method=None, batch_chunk_size=rows_per_chunk)
    loss_M = linear_cross_entropy(state_MD, head.weight, token_M, reduction="none", options=options)
    loss_M.backward(-gradient_M.to(loss_M.dtype))


def atrium(head: nn.Linear, state_MD: Tensor, token_M: Tensor, gradient_M: Tensor) -> None:
    """Compute log-probabilities and entropies as in training."""
    from atrium.train.update.token_logprobs import token_logprobs

    logprob_M, _ = token_logprobs(head, state_MD, token_M, temperature=1.0, entropy="value")
    logprob_M.backward(gradient_M)


def by_triton(head: nn.Linear, state_MD: Tensor, token_M: Tensor, gradient_M: Tensor) -> None:
    """What training runs with `compute.head_kernel=triton`."""
    from atrium.train.update.token_logprobs import token_logprobs

    logprob_M, _ = token_logprobs(head, state_MD, token_M, temperature=1.0, entropy="value", kernel="triton")
    logprob_M.backward(gradient_M)


ARMS: dict[str, Callable[..., None]] = {
    "bare": bare,
    "plain": plain,
    "torch": chunked_by_torch,
    "atrium": atrium,
}


def measured(vocabulary: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all arms at one vocabulary size, and return a record per arm."""
    import torch

    generator = torch.Generator().manual_seed(args.seed)
    dtype = getattr(torch, args.dtype)
    head = torch.nn.Linear(args.width, vocabulary, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.randn(head.weight.shape, generator=generator) * args.width**-0.5)
    head.to(args.device, dtype)
    state_MD = torch.randn(args.tokens, args.width, generator=generator).to(args.device, dtype)
    state_MD.requires_grad_()
    token_M = torch.randint(0, vocabulary, (args.tokens,), generator=generator).to(args.device)
    gradient_M = torch.randn(args.tokens, generator=generator).to(args.device)
    arms = ARMS | {"triton": by_triton} if args.device == "cuda" else ARMS

    def run(arm: str) -> None:
        head.weight.grad = state_MD.grad = None
        arms[arm](head, state_MD, token_M, gradient_M)

    seconds = pairs.in_turns(
        {arm: functools.partial(pairs.seconds_of, lambda arm=arm: run(arm), args.device) for arm in arms},
        args.repeats,
        name=f"vocabulary {vocabulary}, repeat",
    )
    peaks = {}
    for arm in arms:
        head.weight.grad = state_MD.grad = None
        peaks[arm] = pairs.peak_mb(lambda arm=arm: run(arm), args.device)
    return [
        {
            "vocabulary": vocabulary,
            "arm": arm,
            "seconds_med": round(statistics.median(seconds[arm]), 5),
            **pairs.ratio_of(seconds[arm], seconds[BASELINE]),
            "peak_mb": None if peaks[arm] is None else round(peaks[arm], 1),
            "logits_mb": round(args.tokens * vocabulary * 4 / 2**20, 1),
        }
        for arm in arms
    ]


def main() -> None:
    """Measure all vocabulary sizes."""
    args = parser().parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    if args.device == "cpu":
        torch.set_num_threads(1)
    shape = {name: getattr(args, name) for name in ("tokens", "width", "dtype", "repeats", "seed")}
    for vocabulary in args.vocabularies:
        for found in measured(vocabulary, args):
            record.print_record(
                impl=record.versions("atrium-rl", "torch"), **found, **shape, **record.machine(args.device)
            )


if __name__ == "__main__":
    main()
