"""`ddpviz run --cpu`: a script written for NCCL and CUDA runs on gloo and the CPU, in this process alone.

`install()` replaces the calls that name a device, right after torch was imported: devices become the CPU, "nccl"
becomes "gloo", `torch.cuda` answers with stand-ins (see `cuda_stand_in`). To the user's own code CUDA seems available,
so that guards choose the path that is redirected; libraries, torch included, get the true answer. What a tensor says of
itself (`is_cuda`, `device`) stays true. What has no counterpart on a CPU ends the process with one line that names the
place. Only on request; imports torch.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from ddpviz.probe import cuda_stand_in, torch_private
from ddpviz.probe.callers import place_of, user_frame

CPU = torch.device("cpu")
_WANTS_CUDA = (
    "Torch not compiled with CUDA",
    "not linked with support for cuda",
    "No CUDA GPUs are available",
    "Found no NVIDIA driver",
    "no accelerator is available",
    "accelerator device when none is available",
    "0 active drivers",
    "CUDA_HOME environment variable is not set",
    "Distributed package doesn't have NCCL",
    "module 'torch._C' has no attribute '_cuda",
)

_installed = False


def cpu_for(device: Any) -> Any:
    """The CPU for anything that means a CUDA device ("cuda", "cuda:1", `torch.device`, an index); else unchanged."""
    if isinstance(device, str):
        return "cpu" if device.partition(":")[0] == "cuda" else device
    if isinstance(device, torch.device):
        return CPU if device.type == "cuda" else device
    if isinstance(device, int) and not isinstance(device, bool):
        return CPU
    return device


def install() -> None:
    """Redirect this process. Once; there is no way back."""
    global _installed
    if _installed:
        return
    _installed = True
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    cuda_stand_in.install()
    _redirect_tensors()
    _redirect_modules()
    _redirect_amp()
    _redirect_files_and_generators()
    _redirect_groups()
    _redirect_ddp()
    previous = sys.excepthook

    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        line = explain(value, trace)
        if line is None:
            previous(kind, value, trace)
        else:
            print(line, file=sys.stderr, flush=True)

    sys.excepthook = excepthook


def explain(error: BaseException, trace: TracebackType | None) -> str | None:
    """One line for an error that only means that CUDA is wanted; None for any other error."""
    text = str(error)
    if not any(sign in text for sign in _WANTS_CUDA):
        return None
    frames = [f for f, _ in traceback.walk_tb(trace)]
    frame = user_frame(frames[-1]) if frames else None
    reason = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    return f"ddpviz --cpu: {place_of(frame)} needs a GPU, this has no counterpart on the CPU: {reason}"


def _replace(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, functools.wraps(original)(make(original)))


def _factory(original: Any) -> Callable[..., Any]:
    """A function with `device=` and `pin_memory=` keywords."""

    def make(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            if kwargs.get("device") is not None:
                kwargs["device"] = cpu_for(kwargs["device"])
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
        return original(*args, **kwargs)

    return make


def _to(original: Any) -> Callable[..., Any]:
    """`to(device)` of tensors and modules: the device is the first argument or a keyword."""

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            args = (cpu_for(args[0]), *args[1:])
        if kwargs.get("device") is not None:
            kwargs["device"] = cpu_for(kwargs["device"])
        return original(self, *args, **kwargs)

    return to


def _redirect_tensors() -> None:
    for owner, name in torch_private.device_functions():
        _replace(owner, name, _factory)
    for name in ("empty_like", "ones_like", "zeros_like", "full_like", "rand_like", "randn_like", "randint_like"):
        _replace(torch, name, _factory)
    for name in ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros"):
        _replace(torch.Tensor, name, _factory)
    _replace(torch.Tensor, "to", _to)

    def cuda(original: Any) -> Callable[..., Any]:
        def cuda(
            self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format
        ) -> Any:
            return self.to(CPU, memory_format=memory_format)

        return cuda

    def stay(original: Any) -> Callable[..., Any]:
        return lambda self, *args, **kwargs: self

    def typed(original: Any) -> Callable[..., Any]:
        def type_(self: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
            if isinstance(dtype, str):
                dtype = dtype.replace("torch.cuda.", "torch.")
            return original(self, dtype, non_blocking, **kwargs) if dtype is not None else original(self)

        return type_

    _replace(torch.Tensor, "cuda", cuda)
    _replace(torch.Tensor, "pin_memory", stay)
    _replace(torch.Tensor, "record_stream", lambda original: lambda self, stream: None)
    _replace(torch.Tensor, "type", typed)

    def default_device(original: Any) -> Callable[..., Any]:
        return lambda device: original(cpu_for(device))

    def default_type(original: Any) -> Callable[..., Any]:
        return lambda t: original(t.replace("torch.cuda.", "torch.") if isinstance(t, str) else t)

    _replace(torch, "set_default_device", default_device)
    _replace(torch, "set_default_tensor_type", default_type)


def _redirect_modules() -> None:
    _replace(torch.nn.Module, "to", _to)

    def to_empty(original: Any) -> Callable[..., Any]:
        return lambda self, *, device, recurse=True: original(self, device=cpu_for(device), recurse=recurse)

    def loader(original: Any) -> Callable[..., Any]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            if len(args) > 7:
                args = (*args[:7], False, *args[8:])
            if "pin_memory" in kwargs:
                kwargs["pin_memory"] = False
            kwargs.pop("pin_memory_device", None)
            original(self, *args, **kwargs)

        return __init__

    _replace(torch.nn.Module, "to_empty", to_empty)
    _replace(torch.utils.data.DataLoader, "__init__", loader)


def _redirect_amp() -> None:
    def autocast(original: Any) -> Callable[..., Any]:
        @functools.wraps(original)
        def __init__(
            self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
        ) -> None:
            if device_type == "cuda" and enabled:
                # bfloat16 is the CPU's reduced precision; float16 is slow there and lacks operators.
                device_type, dtype = "cpu", torch.bfloat16 if dtype in (None, torch.float16) else dtype
            original(self, device_type, dtype, enabled, cache_enabled)

        return __init__

    def scaler(original: Any) -> Callable[..., Any]:
        def __init__(self: Any, device: Any = "cuda", *args: Any, **kwargs: Any) -> None:
            original(self, "cpu", *args, **kwargs)

        return __init__

    torch.amp.autocast_mode.autocast.__init__ = autocast(  # type: ignore[method-assign]
        torch.amp.autocast_mode.autocast.__init__
    )
    torch.amp.GradScaler.__init__ = scaler(torch.amp.GradScaler.__init__)  # type: ignore[method-assign]


def _redirect_files_and_generators() -> None:
    def load(original: Any) -> Callable[..., Any]:
        def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            if map_location is None or not callable(map_location):
                map_location = "cpu"
            return original(f, map_location, *args, **kwargs)

        return load

    _replace(torch, "load", load)
    real: Any = torch.Generator

    class AnyGenerator(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, real)

    class Generator(metaclass=AnyGenerator):
        """torch.Generator, on the CPU whatever device is asked for."""

        def __new__(cls, device: Any = "cpu") -> Any:
            return real(device=cpu_for(device))

    torch.Generator = Generator  # type: ignore[misc]


def _gloo(backend: Any) -> Any:
    """The backend to use for one that was asked for: "nccl", "cpu:gloo,cuda:nccl" and no wish become gloo."""
    return "gloo" if backend is None or "nccl" in str(backend) or "cuda" in str(backend) else backend


def _redirect_groups() -> None:
    if not dist.is_available():
        return

    def init(original: Any) -> Callable[..., Any]:
        def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
            kwargs.pop("device_id", None)
            kwargs.pop("pg_options", None)
            return original(_gloo(backend), *args, **kwargs)

        return init_process_group

    def group(original: Any) -> Callable[..., Any]:
        def make(*args: Any, **kwargs: Any) -> Any:
            if len(args) > 2:
                args = (*args[:2], _gloo(args[2]), *args[3:])
            if kwargs.get("backend") is not None:
                kwargs["backend"] = _gloo(kwargs["backend"])
            kwargs.pop("device_id", None)
            kwargs.pop("pg_options", None)
            return original(*args, **kwargs)

        return make

    def barrier(original: Any) -> Callable[..., Any]:
        return lambda group=None, async_op=False, device_ids=None: original(group, async_op)

    for module in (dist, dist.distributed_c10d):
        _replace(module, "init_process_group", init)
        _replace(module, "new_group", group)
        _replace(module, "barrier", barrier)
    from torch.distributed import device_mesh

    def mesh(original: Any) -> Callable[..., Any]:
        return lambda device_type, *args, **kwargs: original(cpu_for(device_type), *args, **kwargs)

    for module in (dist, device_mesh):
        _replace(module, "init_device_mesh", mesh)


def _redirect_ddp() -> None:
    if not dist.is_available():
        return
    from torch.nn.parallel import DistributedDataParallel

    def ddp(original: Any) -> Callable[..., Any]:
        def __init__(
            self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any
        ) -> None:
            if any(isinstance(m, torch.nn.SyncBatchNorm) for m in module.modules()):
                cuda_stand_in.cannot(
                    "SyncBatchNorm", "PyTorch has it for GPUs only; leave it out or use BatchNorm here"
                )
            original(self, module, None, None, *args, **kwargs)

        return __init__

    _replace(DistributedDataParallel, "__init__", ddp)
