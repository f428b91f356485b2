"""Numbers from tensors without ever making the training thread wait: norms, checksums, and when they can be read.

`Reading` is the small interface behind which CPU scalars are at hand and CUDA ones travel by a non-blocking copy into
pinned memory, read by the writer thread once their event has passed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from ddpviz.probe import torch_private

_CHUNK = 4096
_PLAIN = (torch.float32, torch.float64)


def norm(tensor: Tensor) -> Tensor:
    """L2 norm as a 0-dim tensor on the tensor's device, accurate to about 1e-8 relative on float32.

    A plain float32 reduction over ten million elements is off by 4e-4 on a CPU (measured on torch 2.14.1). Norms of
    rows of 4,096, combined in float64, cost the same and are not.
    """
    t = tensor.detach()
    if t.is_sparse:
        t = t.coalesce().values()
    if t.layout is not torch.strided:
        t = t.to_dense()
    size = t.numel()
    if size <= 2 * _CHUNK:
        if t.dtype in (torch.float16, torch.bfloat16):
            t = t.float()
        return cast(Tensor, torch.linalg.vector_norm(t))
    if not t.is_contiguous():
        t = t.reshape(-1)  # a dense permuted layout costs one copy
    flat = t.view(-1)
    rows = size // _CHUNK
    head = torch.linalg.vector_norm(flat[: rows * _CHUNK].view(rows, _CHUNK), dim=1, dtype=_wide(flat.dtype))
    whole = torch.linalg.vector_norm(head, dtype=torch.float64)
    if rows * _CHUNK == size:
        return cast(Tensor, whole)
    return torch.hypot(whole, torch.linalg.vector_norm(flat[rows * _CHUNK :], dtype=torch.float64))


def _wide(dtype: torch.dtype) -> torch.dtype | None:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else None


def total(tensor: Tensor) -> Tensor:
    """Sum of the elements as a 0-dim float64 tensor: a linear functional of the gradients."""
    t = tensor.detach()
    if t.is_sparse:
        t = t.coalesce().values()
    size = t.numel()
    if size <= 2 * _CHUNK or not t.is_contiguous():
        return t.sum(dtype=torch.float64)
    rows = size // _CHUNK
    flat = t.view(-1)
    head = flat[: rows * _CHUNK].view(rows, _CHUNK).sum(dim=1).sum(dtype=torch.float64)
    return head if rows * _CHUNK == size else head + flat[rows * _CHUNK :].sum(dtype=torch.float64)


def bits(tensor: Tensor) -> Tensor:
    """A wrapping integer sum over the raw bits, 0-dim: differs whenever a single element differs in a single bit.

    Integer sums lose nothing to rounding, unlike a float sum, and cost as little (0.04 ms per million float32).
    """
    t = tensor.detach()
    if t.is_sparse:
        t = t.coalesce()
        return bits(t.values()) * 31 + bits(t.indices())
    if t.is_complex():
        t = torch.view_as_real(t)
    if not t.is_contiguous():
        t = t.contiguous()
    flat = t.view(-1)
    if flat.dtype == torch.bool:
        return flat.sum()
    width = flat.element_size()
    if width == 8:
        return flat.view(torch.int64).sum()
    if width == 4:
        return flat.view(torch.int32).sum(dtype=torch.int32)
    if flat.numel() * width % 4 == 0 and flat.storage_offset() * width % 4 == 0:
        return flat.view(torch.int32).sum(dtype=torch.int32)
    return flat.view(torch.int16 if width == 2 else torch.int8).sum()


def norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """`norm` of each tensor; the small ones (all of them on a GPU) in one call for all."""
    single = torch_private.foreach_norm()
    if single is None:
        return [norm(t) for t in tensors]
    found: list[Tensor | None] = [None] * len(tensors)
    together: dict[Any, list[int]] = {}
    for i, t in enumerate(tensors):
        dtype = t.dtype
        if dtype in _PLAIN and (t.is_cuda or t.numel() <= 4 * _CHUNK) and t.layout is torch.strided:
            key = (dtype, t.device) if t.is_cuda else dtype
            together.setdefault(key, []).append(i)
        else:
            found[i] = norm(t)
    with torch.no_grad():
        for indices in together.values():
            for i, value in zip(indices, single([tensors[i] for i in indices]), strict=True):
                found[i] = value
    return [value for value in found if value is not None]


_SMALL = 1 << 16  # elements: below, the cost of a call outweighs that of reading
_GROUP = 1 << 17  # elements flattened at once: half a megabyte of float32 stays in cache while it is read twice


def groups(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """The tensors, small ones of one dtype flattened together in order: fewer calls, at most 131,072 elements each."""
    waiting: list[Tensor] = []
    size = 0
    for t in tensors:
        t = t.detach()
        if t.layout is not torch.strided or t.numel() > _SMALL or t.is_complex():
            yield t
            continue
        if waiting and (t.dtype != waiting[0].dtype or t.device != waiting[0].device or size + t.numel() > _GROUP):
            yield _flat(waiting)
            waiting, size = [], 0
        waiting.append(t)
        size += t.numel()
    if waiting:
        yield _flat(waiting)


def _flat(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat([t.reshape(-1) for t in tensors])


def all_bits(tensors: Sequence[Tensor]) -> list[Tensor]:
    """`bits` of all the tensors, in order, as few scalars as there are groups."""
    return [_whole(bits(t)) for t in groups(tensors)]


def fingerprint(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """(bit sums, norms) of all the tensors together, reading each of them once into cache."""
    sums, lengths = [], []
    for t in groups(tensors):
        sums.append(_whole(bits(t)))
        lengths.append(norm(t))
    return sums, lengths


def _whole(value: Tensor) -> Tensor:
    return value.long() if value.is_cuda else value


def mix(sums: Sequence[int]) -> int:
    """One 64-bit checksum from the wrapping sums of several tensors, in order."""
    value = 0xCBF29CE484222325
    for s in sums:
        value = ((value ^ (s & 0xFFFFFFFFFFFFFFFF)) * 0x100000001B3 + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    return value


class Reading(Protocol):
    """Scalars on their way to the host."""

    def ready(self) -> bool:
        """Whether `values` can be read without waiting."""
        ...

    def values(self) -> list[float]: ...


def _alike(tensors: Sequence[Tensor]) -> bool:
    return len({(t.dtype, t.shape) for t in tensors}) == 1


class HostReading:
    """Scalars that are on the CPU already. Of one type they become one tensor, which the writer reads and frees at
    once: a call for each of them would keep the interpreter from the training."""

    __slots__ = ("_tensors",)

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = [torch.stack(list(tensors))] if _alike(tensors) else tensors

    def ready(self) -> bool:
        return True

    def values(self) -> list[float]:
        numbers: list[float] = []
        for t in self._tensors:
            numbers += t.reshape(-1).tolist()
        return numbers


class Pool:
    """Pinned buffers for reuse, by size class. Touched by the training thread (take) and the writer (give)."""

    def __init__(self) -> None:
        self._free: dict[tuple[int, Any], list[Tensor]] = {}

    def take(self, size: int, dtype: torch.dtype) -> Tensor:
        length = 64
        while length < size:
            length *= 2
        free = self._free.get((length, dtype))
        if free:
            return free.pop()
        return torch.empty(length, dtype=dtype, device="cpu", pin_memory=torch.cuda.is_available())

    def give(self, buffer: Tensor) -> None:
        self._free.setdefault((buffer.numel(), buffer.dtype), []).append(buffer)


POOL = Pool()


class DeviceReading:
    """Scalars of one accelerator: stacked there, copied without blocking, readable when the event has passed."""

    __slots__ = ("_buffer", "_count", "_event", "_pool")

    def __init__(self, tensors: Sequence[Tensor], event: Any, pool: Pool = POOL) -> None:
        dtype = torch.int64 if not tensors[0].is_floating_point() else torch.float64
        if _alike(tensors):  # a conversion of each would be a kernel each
            stacked = torch.stack(list(tensors)).reshape(-1).to(dtype)
        else:
            stacked = torch.stack([t.to(dtype).reshape(()) for t in tensors])
        self._pool, self._count = pool, len(tensors)
        self._buffer = pool.take(len(tensors), dtype)
        self._buffer[: self._count].copy_(stacked, non_blocking=True)
        self._event = event
        event.record()

    def ready(self) -> bool:
        return bool(self._event.query())

    def values(self) -> list[float]:
        numbers: list[float] = self._buffer[: self._count].tolist()
        self._pool.give(self._buffer)
        return numbers


def reading(tensors: Sequence[Tensor]) -> Reading:
    """The reading that fits the tensors' device; all of them on one device, all floating or all integer."""
    if tensors and tensors[0].is_cuda:
        return DeviceReading(tensors, torch.cuda.Event())
    return HostReading(tensors)


class Known:
    """A number that is at hand."""

    __slots__ = ("_value",)

    def __init__(self, value: float) -> None:
        self._value = value

    def ready(self) -> bool:
        return True

    def values(self) -> list[float]:
        return [self._value]


def scalar(tensor: Tensor) -> Reading:
    """The reading of a tensor of one element that the job may change later: at once on the CPU, else of a copy."""
    if type(tensor) is Tensor and tensor.is_cpu and not tensor.is_complex():
        return Known(float(tensor.item()))
    return reading([tensor.detach().clone()])


class DeviceClock:
    """Host time of events on a device: one event is synchronised with once, when a module is put under watch (its
    constructor has synchronised anyway), and every later one is measured against it."""

    def __init__(self) -> None:
        self._base = torch.cuda.Event(enable_timing=True)
        self._base.record()
        self._base.synchronize()
        self._host = time.monotonic_ns()

    def at(self, event: Any) -> int:
        """Nanoseconds of the host's monotonic clock at which an event that has passed was reached."""
        return self._host + int(self._base.elapsed_time(event) * 1e6)


def capturing() -> bool:
    """Whether a CUDA graph is being captured: then nothing of ours may query, record, copy or allocate."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
