"""What `torch.cuda` answers under `ddpviz run --cpu`: as many devices as there are ranks, and nothing to wait for.

Functions that set, wait, or measure become their nearest CPU meaning: memory is this process's resident memory, an
event is a moment on the host's clock, seeds and random states are the CPU generator's. Imports torch.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from ddpviz.probe.callers import called_by_user, place_of, user_frame

_NAME = "CPU (ddpviz --cpu)"


def cannot(what: str, why: str = "it has no counterpart on the CPU") -> NoReturn:
    """End the process with one line that names the user's place."""
    raise SystemExit(f"ddpviz --cpu: {place_of(user_frame(sys._getframe(1)))} uses {what}: {why}")


def devices() -> int:
    """One device for each rank of this host."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1))


class Stream:
    """A CUDA stream on which everything has always been done."""

    stream_id = 0
    cuda_stream = 0

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device = torch.device("cpu")
        self.priority = priority

    def wait_event(self, event: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None: ...


class Event:
    """A CUDA event: a moment on the host's clock."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._at: int | None = None

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter_ns()

    def wait(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to `end_event`."""
        if self._at is None or end_event._at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._at - self._at) / 1e6


class Device(contextlib.AbstractContextManager["Device"]):
    """`with torch.cuda.device(n)`: nothing to switch."""

    def __init__(self, device: Any = None) -> None:
        self.idx = device

    def __exit__(self, *error: object) -> None: ...


class Nothing(contextlib.AbstractContextManager["Nothing"]):
    """A context that changes nothing: `torch.cuda.stream(s)`, `torch.cuda.nvtx.range(name)`. A class, as the true one
    is: libraries ask `isinstance(x, torch.cuda.StreamContext)`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def _resident() -> int:
    """Bytes of this process in memory now."""
    try:
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * resource.getpagesize()
    except OSError:
        return _peak()


def _peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _total() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _returns(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _to_user(value: Any, true: Callable[..., Any]) -> Callable[..., Any]:
    """The value for the user's own code; the true answer, or its error, for a library that chooses kernels by it."""
    return lambda *args, **kwargs: value if called_by_user() else true(*args, **kwargs)


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


def install() -> None:
    """Put the stand-ins in place. CUDA seems available to the user's own code; libraries get the true answer."""
    cuda: Any = torch.cuda
    current = [int(os.environ.get("LOCAL_RANK") or 0)]

    def set_device(device: Any) -> None:
        index = getattr(device, "index", device)
        if isinstance(index, str):
            index = index.partition(":")[2] or 0
        current[0] = int(index or 0)

    def is_available() -> bool:
        return called_by_user() or bool(true_available())

    def device_count() -> int:
        return devices() if called_by_user() else int(true_count())

    properties = SimpleNamespace(
        name=_NAME, major=8, minor=0, total_memory=_total(), multi_processor_count=os.cpu_count() or 1, warp_size=32
    )
    true_available, true_count = cuda.is_available, cuda.device_count
    states = [0] * devices()
    stand_ins: dict[str, Any] = {
        "is_available": is_available,
        "device_count": device_count,
        "set_device": set_device,
        "current_device": lambda: current[0],
        "init": _returns(None),
        "get_device_name": _to_user(_NAME, cuda.get_device_name),
        "get_device_properties": _to_user(properties, cuda.get_device_properties),
        "get_device_capability": _to_user((properties.major, properties.minor), cuda.get_device_capability),
        "is_bf16_supported": _to_user(True, cuda.is_bf16_supported),
        "can_device_access_peer": _returns(False),
        "is_current_stream_capturing": _returns(False),
        "synchronize": _returns(None),
        "ipc_collect": _returns(None),
        "mem_get_info": lambda device=None: (os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _total()),
        "memory_stats": lambda device=None: defaultdict(int),
        "memory_snapshot": _returns([]),
        "memory_summary": _returns("(no CUDA memory: running on the CPU)"),
        "utilization": _returns(0),
        "Stream": Stream,
        "ExternalStream": Stream,
        "Event": Event,
        "device": Device,
        "device_of": Device,
        "stream": Nothing,
        "StreamContext": Nothing,
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "set_stream": _returns(None),
        "manual_seed": _seed,
        "manual_seed_all": _seed,
        "seed": _returns(None),
        "seed_all": _returns(None),
        "initial_seed": lambda: torch.default_generator.initial_seed(),
        "get_rng_state": lambda device=None: torch.default_generator.get_state(),
        "get_rng_state_all": lambda: [torch.default_generator.get_state() for _ in states],
        "set_rng_state": lambda state, device=None: torch.default_generator.set_state(state),
        "set_rng_state_all": lambda all_: torch.default_generator.set_state(all_[0]) if len(all_) else None,
        "set_sync_debug_mode": _returns(None),
        "set_per_process_memory_fraction": _returns(None),
    }
    for name in ("memory_allocated", "memory_reserved", "memory_cached"):
        stand_ins[name] = lambda device=None: _resident()
    for name in ("max_memory_allocated", "max_memory_reserved", "max_memory_cached"):
        stand_ins[name] = lambda device=None: _peak()
    for name in ("empty_cache", "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"):
        stand_ins[name] = _returns(None)
    for name in ("make_graphed_callables", "graph_pool_handle"):
        stand_ins[name] = _refuses(f"torch.cuda.{name}")
    for name in ("CUDAGraph", "graph", "CUDAPluggableAllocator"):
        stand_ins[name] = type(name, (), {"__init__": _refuses(f"torch.cuda.{name}")})
    for name in dir(cuda):
        if name.endswith("Tensor") and hasattr(torch, name):
            stand_ins[name] = getattr(torch, name)
    for name, value in stand_ins.items():
        if hasattr(cuda, name):
            setattr(cuda, name, value)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        setattr(cuda.nvtx, name, _returns(0))
    cuda.nvtx.range = Nothing
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "memory_allocated", "max_memory_allocated"):
        for module in (cuda.memory,):
            if hasattr(module, name):
                setattr(module, name, stand_ins[name])
    for name in ("manual_seed", "manual_seed_all", "get_rng_state", "set_rng_state", "get_rng_state_all"):
        setattr(cuda.random, name, stand_ins[name])


def _refuses(what: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        cannot(what)

    return refuse
