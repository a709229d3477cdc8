"""A GPU that is pretended: tensors of the CPU that say they lie on `cuda:0`, and who waits for them.

Inside `pretended_cuda()` storages carry a device. Work between devices that torch refuses is refused, every
wait of the host is counted by its line of source, and attention over rows of any length is a reference that
asserts what the kernel for GPUs asks of dtypes, strides and lengths. The branch for GPUs runs, on a CPU.

Seen are calls that go through torch's Python interface. Kernels, streams and races, autocast's own list of
operations, and what C++ calls within itself (the backward pass of torch's own operations) are not.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import Counter
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from tests.pretended.attention import reference_attention
from torch import Tensor
from torch.nn.attention import varlen
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

TOTAL_BYTES = 24 << 30
CUDA = torch.device("cuda", 0)
_TORCH, _HERE = str(Path(torch.__file__).parent), str(Path(__file__).parent)

_DEVICE, _IS_CUDA, _IS_CPU = (getattr(Tensor, name).__get__ for name in ("device", "is_cuda", "is_cpu"))
_WAITS = {
    "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__contains__", "is_nonzero",
    "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount", "equal", "allclose",
    "__repr__", "__format__",
}  # fmt: skip
"""Operations whose result the host needs: a number, or a shape that depends on values."""
_MIXES = {
    "copy_",
    "__getitem__",
    "__setitem__",
    "_foreach_copy_",
    "__set__",
    "_has_compatible_shallow_copy_type",
}
"""Operations whose operands may lie on different devices."""
_INDEXES = {"__getitem__", "__setitem__", "index_put_", "index_put"}


def _unrounded(dtype, left, right):
    """The product of two matrices added up in `dtype`, for which a CPU has no kernel."""
    with torch.autocast("cpu", enabled=False):
        return left.to(dtype) @ right.to(dtype)


class PretendedCuda(TorchFunctionMode):
    """Storages with devices; `waits` counts how often the host waited at a (file, line)."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[tuple[str, int]] = Counter()
        self.num_attentions = 0
        self._kind: weakref.WeakKeyDictionary[torch.UntypedStorage, str] = weakref.WeakKeyDictionary()
        self._pinned: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        self._in_backward = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = func.__name__
        if func in (_DEVICE, _IS_CUDA, _IS_CPU):
            if func(args[0]) == torch.device("meta"):
                return torch.device("meta")
            is_cuda = self.is_cuda(args[0])
            return {
                _DEVICE: CUDA if is_cuda else torch.device("cpu"),
                _IS_CUDA: is_cuda,
                _IS_CPU: not is_cuda,
            }[func]
        if name in ("is_pinned", "pin_memory"):
            return self._pinning(name, args[0])
        inputs = [*_tensors((args, kwargs))]
        kinds = {self.is_cuda(one) for one in inputs if one.dim() or name in ("copy_", "to")}
        if name in ("numpy", "__array__", "__array_interface__") and self.is_cuda(inputs[0]):
            raise TypeError(f"can't convert cuda:0 device type tensor to numpy (in {name})")
        if len(kinds) == 2 and name not in _MIXES:
            shapes = [(tuple(one.shape), self.is_cuda(one)) for one in inputs]
            raise RuntimeError(f"Expected all tensors to be on the same device: {name} of {shapes}")
        on_cuda = any(self.is_cuda(one) for one in inputs)
        asked, args, kwargs = _asked_device(name, args, kwargs)
        pins = kwargs.pop("pin_memory", False)
        target = on_cuda if asked is None else asked == "cuda"
        self._count(name, args, kwargs, inputs, on_cuda=on_cuda, target=target)
        if name == "mm" and (dtype := kwargs.pop("out_dtype", None)) is not None:
            func = partial(_unrounded, dtype)
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and name in ("to", "cpu", "cuda") and target != on_cuda:
            result = result.clone() if result.untyped_storage() in self._kind else result
        for one in _tensors((result,)):
            self._kind.setdefault(one.untyped_storage(), "cuda" if target else "cpu")
            if pins:
                self._pinned.add(one.untyped_storage())
        return result

    def is_cuda(self, tensor: Tensor) -> bool:
        """Whether a tensor lies on the device, as what autograd's own C++ code makes does."""
        storage = tensor.untyped_storage()
        kind = self._kind.get(storage)
        if kind is None:
            kind = self._kind[storage] = "cuda" if self._in_backward else "cpu"
        return kind == "cuda"

    def place(self, tensor: Tensor) -> Tensor:
        """Say that a tensor lies on the device."""
        self._kind[tensor.untyped_storage()] = "cuda"
        return tensor

    def wait(self) -> None:
        """Count that the host waits for the device, at the line that asks for it."""
        frame = sys._getframe(1)
        while frame.f_code.co_filename.startswith((_TORCH, _HERE)) or "<" in frame.f_code.co_filename:
            frame = frame.f_back
        self.waits[frame.f_code.co_filename, frame.f_lineno] += 1

    @contextmanager
    def backward(self):
        """Calls of Python code from autograd's engine."""
        self._in_backward += 1
        try:
            with self:
                yield
        finally:
            self._in_backward -= 1

    def _pinning(self, name, tensor):
        if name == "is_pinned":
            return tensor.untyped_storage() in self._pinned
        if self.is_cuda(tensor):
            raise RuntimeError("cannot pin a tensor of the device")
        pinned = tensor.clone()
        self._kind[pinned.untyped_storage()] = "cpu"
        self._pinned.add(pinned.untyped_storage())
        return pinned

    def _count(self, name, args, kwargs, inputs, *, on_cuda, target):
        """Count the waits of one call."""
        may_pass = kwargs.get("non_blocking", False)
        if name in ("to", "cpu", "cuda") and target != on_cuda:
            if not (may_pass and target and self._is_pinned(inputs[0])):
                self.wait()
        elif name == "copy_" and len(inputs) == 2 and self.is_cuda(inputs[0]) != self.is_cuda(inputs[1]):
            host = inputs[1] if self.is_cuda(inputs[0]) else inputs[0]
            may_pass = may_pass or (len(args) > 2 and args[2])
            if not (may_pass and self._is_pinned(host)):
                self.wait()
        elif (
            (name in ("tensor", "as_tensor") and target and not on_cuda)
            or (on_cuda and name in _WAITS)
            or (on_cuda and name == "where" and len(args) == 1 and not kwargs)
        ):
            self.wait()
        elif on_cuda and name == "repeat_interleave":
            if len(inputs) == 2 and kwargs.get("output_size") is None:
                self.wait()
        elif on_cuda and name in _INDEXES:
            self._count_index(name, args)

    def _count_index(self, name, args):
        index = args[1] if isinstance(args[1], tuple | list) else (args[1],)
        masks = [one for one in index if isinstance(one, Tensor) and one.dtype == torch.bool]
        fills = name == "__setitem__" and not (isinstance(args[2], Tensor) and args[2].dim())
        if masks and not fills:
            self.wait()
        if any(
            isinstance(one, np.ndarray | list)
            or (isinstance(one, Tensor) and one.dim() and not self.is_cuda(one))
            for one in index
        ):
            self.wait()  # the index is copied to the device

    def _is_pinned(self, tensor):
        return tensor.untyped_storage() in self._pinned


def _tensors(values):
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())


def _asked_device(name, args, kwargs):
    """The kind of device that a call asks for, or None, and its arguments without it."""
    if name in ("cpu", "cuda"):
        return name, args, kwargs
    asked, args = None, list(args)
    if name == "to":
        for place, value in enumerate(args[1:], 1):
            if isinstance(value, torch.device | str):
                asked, args[place] = torch.device(value).type, "cpu"
    if kwargs.get("device") is not None:
        asked = torch.device(kwargs["device"]).type
        if asked != "meta":  # shapes without values, which are to stay without: their values come later
            kwargs["device"] = "cpu"
    return asked, tuple(args), kwargs


@contextmanager
def pretended_cuda():
    """A `PretendedCuda` to be inside of, with torch's functions that ask for a GPU answered by it."""
    import peft  # noqa: F401 - its packages look for a GPU as they are imported, so that comes before

    mode = PretendedCuda()
    engine, autocast = torch.autograd._engine_run_backward, torch.amp.autocast_mode.autocast.__init__
    is_enabled, dtype_of = torch.is_autocast_enabled, torch.get_autocast_dtype

    def run_backward(*args, **kwargs):
        with mode.backward():
            return engine(*args, **kwargs)

    def start_autocast(self, device_type, *args, **kwargs):
        autocast(self, device_type.replace("cuda", "cpu"), *args, **kwargs)

    with ExitStack() as stack:
        for module, name, value in (
            *((torch.cuda, name, value) for name, value in _cuda_functions(mode).items()),
            (torch.autograd, "_engine_run_backward", run_backward),
            (torch.amp.autocast_mode.autocast, "__init__", start_autocast),
            (torch, "is_autocast_enabled", lambda kind="cuda": is_enabled("cpu")),
            (torch, "get_autocast_dtype", lambda kind: dtype_of("cpu")),
            (varlen, "varlen_attn", partial(reference_attention, mode)),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        # What checkpoints keep comes from inside of torch's operations, where no mode says where it lies.
        checks = checkpoint._allowed_determinism_checks_to_fns
        stack.enter_context(mock.patch.dict(checks, default=lambda kept: (kept.shape, kept.dtype)))
        with mode:
            yield mode


class _Event:
    """An event of the device, which here happens at once."""

    gpu: PretendedCuda

    def __init__(self, *, enable_timing=False):
        self._is_timed, self._at = enable_timing, None

    def record(self, stream=None):
        self._at = time.perf_counter()

    def synchronize(self):
        self.gpu.wait()

    def elapsed_time(self, other):
        assert self._is_timed
        assert other._is_timed
        return 1000.0 * (other._at - self._at)


def _cuda_functions(mode):
    """What `torch.cuda` answers where there is one GPU."""
    properties = SimpleNamespace(total_memory=TOTAL_BYTES, name="pretended GPU", major=9, minor=0)
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_name": lambda device=None: properties.name,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "is_bf16_supported": lambda *_: True,
        "mem_get_info": lambda device=None: (TOTAL_BYTES, TOTAL_BYTES),
        "memory_allocated": lambda device=None: 1 << 20,
        "max_memory_allocated": lambda device=None: 1 << 20,
        "reset_peak_memory_stats": lambda device=None: None,
        "set_per_process_memory_fraction": lambda fraction, device=None: None,
        "empty_cache": lambda: None,
        "synchronize": lambda device=None: mode.wait(),
        "Event": type("Event", (_Event,), {"gpu": mode}),
    }
