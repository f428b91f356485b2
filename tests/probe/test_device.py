"""Numbers on their way from an accelerator: a fake device whose copies arrive late, out of order, or never.

The fake keeps every copy back until the event behind it has passed, so a number that is read too early is the poison
that its buffer held.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, strategies as st

from ddpviz.probe import encode, measure
from ddpviz.probe.collectives import DeviceEnd, GroupWatch
from ddpviz.probe.jobs import Collective, Launch, PassJob
from ddpviz.trace import records as r

POISON = -1e300


class Slice:
    def __init__(self, buffer: Buffer, count: int) -> None:
        self.buffer, self.count = buffer, count

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> None:
        assert non_blocking, "the training thread would wait"
        assert source.numel() == self.count
        self.buffer.device.copies.append((self.buffer, source.clone()))

    def tolist(self) -> list[float]:
        return self.buffer.memory[: self.count].tolist()


class Buffer:
    """Pinned memory of the fake."""

    def __init__(self, device: Device, length: int, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.memory = torch.full((length,), POISON if dtype.is_floating_point else -1, dtype=dtype)

    def __getitem__(self, part: slice) -> Slice:
        return Slice(self, part.stop)

    def numel(self) -> int:
        return self.memory.numel()


class Event:
    """Passes when `complete` is called: then the copies enqueued before it have arrived."""

    def __init__(self, device: Device) -> None:
        self.device, self.passed, self.recorded = device, False, False

    def record(self) -> None:
        self.recorded = True
        self.waiting, self.device.copies = self.device.copies, []

    def query(self) -> bool:
        assert self.recorded
        return self.passed

    def complete(self) -> None:
        for buffer, source in self.waiting:
            buffer.memory[: source.numel()] = source
        self.passed = True


class Device(measure.Pool):
    """A pool of the fake's buffers, and the copies that are still on their way."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[tuple[Buffer, torch.Tensor]] = []
        self.made: list[Buffer] = []

    def take(self, size: int, dtype: torch.dtype) -> Buffer:  # type: ignore[override]
        free = self._free.get((64, dtype))
        if free:
            return free.pop()  # type: ignore[return-value]
        self.made.append(Buffer(self, 64, dtype))
        return self.made[-1]

    def reading(self, values: list[float]) -> tuple[measure.DeviceReading, Event]:
        event = Event(self)
        return measure.DeviceReading([torch.tensor(v) for v in values], event, self), event


@given(st.data())
def test_any_order_of_completion(data: st.DataObject) -> None:
    """Readings in flight share no buffer, whatever completes when; each gives its own numbers, once."""
    device = Device()
    flying: list[tuple[list[float], measure.DeviceReading, Event]] = []
    for turn in range(data.draw(st.integers(1, 20))):
        values = [float(turn * 100 + i) for i in range(data.draw(st.integers(1, 5)))]
        flying.append((values, *device.reading(values)))
        while flying and data.draw(st.booleans()):
            expected, reading, event = flying.pop(data.draw(st.integers(0, len(flying) - 1)))
            assert not reading.ready()
            event.complete()
            assert reading.ready()
            assert reading.values() == expected
    for expected, reading, event in reversed(flying):
        event.complete()
        assert reading.values() == expected


def test_buffers_are_used_again() -> None:
    device = Device()
    for turn in range(50):
        reading, event = device.reading([float(turn)])
        event.complete()
        assert reading.values() == [float(turn)]
    assert len(device.made) == 1


def test_integers_keep_all_their_bits() -> None:
    """Checksums travel as integers: a float64 would lose the low bits."""
    device, event = Device(), None
    value = (1 << 62) + 12345
    event = Event(device)
    reading = measure.DeviceReading([torch.tensor(value)], event, device)
    event.complete()
    assert reading.values() == [value]


def a_pass(index: int, norm: measure.Reading | None, end: int, launches: list[Launch] | None = None) -> PassJob:
    return PassJob(
        module=0, index=index, window=index, flags=int(r.PassFlag.SAMPLED | r.PassFlag.CLEARED), begin=end - 10,
        end=end,
        collective=0, collectives=0, forward_site=0, forward=(0, 0), backward_site=0, layout=0, buckets=[[0]],
        bucket_of=[0], managed=1, itemsize=4, touched=[0], closed={}, launches=launches or [],
        local_order=[0], local=norm,
    )  # fmt: skip


def drained(encoder: encode.Encoder, pending: list[PassJob], now: int) -> list[tuple[int, int, float]]:
    """(index, flags, local norm) of the rows that come out now, as the writer thread takes them: in order."""
    while pending and encoder.ready(pending[0], now):
        encoder.take(pending.pop(0))
    names = [name for name, _ in r.COLUMNS[r.RowKind.PASS]]
    rows = [
        dict(zip(names, struct.unpack(r.struct_format(r.RowKind.PASS), x), strict=True))
        for x in encoder.rows.pop(r.RowKind.PASS, [])
    ]
    return [(row["index"], row["flags"], row["local_norm"]) for row in rows]


def test_rows_keep_their_order_and_wait_for_their_numbers() -> None:
    device, encoder = Device(), encode.Encoder(lambda: 0)
    readings = [device.reading([float(i + 1)]) for i in range(3)]
    pending = [a_pass(i, reading, end=1000 + i) for i, (reading, _) in enumerate(readings)]
    assert drained(encoder, pending, 2000) == []
    readings[2][1].complete()
    readings[1][1].complete()
    assert drained(encoder, pending, 2000) == [], "the first number is still on its way"
    readings[0][1].complete()
    assert [(i, norm) for i, _, norm in drained(encoder, pending, 2000)] == [(0, 1.0), (1, 2.0), (2, 3.0)]


def test_a_number_that_never_comes_costs_its_row_the_number_and_nobody_else() -> None:
    device, encoder = Device(), encode.Encoder(lambda: 0)
    lost, event = device.reading([1.0])
    good, other = device.reading([2.0])
    pending = [a_pass(0, lost, end=1000), a_pass(1, good, end=1001)]
    other.complete()
    assert drained(encoder, pending, 1_000_000_000) == []
    (first, flags, norm), (second, flags2, norm2) = drained(encoder, pending, 3_000_000_000)
    assert (first, second, norm, norm2) == (0, 1, 0.0, 2.0)
    assert not flags & r.PassFlag.HAS_LOCAL_NORM, "not measured is not a number"
    assert flags2 & r.PassFlag.HAS_LOCAL_NORM
    again, third = device.reading([3.0])
    event.complete()  # after all: it lands in a buffer that nobody else got
    third.complete()
    assert again.values() == [3.0]


@pytest.fixture
def session() -> object:
    class Session:
        progress = 0
        device_clock = None

    return Session()


def test_the_end_of_a_collective_is_its_event(session: object) -> None:
    """On an accelerator a Work is complete when it is enqueued: its end is an event behind it, polled by the writer."""
    device = Device()
    event = Event(device)
    event.record()
    watch = object.__new__(GroupWatch)
    coll = Collective(0, 7, 1, 10, 1, 40, begin=5)
    watch.pending = {7: coll}
    end = DeviceEnd(session, watch, coll, event)  # type: ignore[arg-type]
    assert not end.poll()
    assert coll.open
    assert coll.done == 0
    event.complete()
    assert end.poll()
    assert not coll.open
    assert coll.done > 0
    assert watch.pending == {}
    done = coll.done
    assert end.poll(), "polled again, it changes nothing"
    assert coll.done == done


def test_the_clock_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host time of an event: the base's host time and the milliseconds that the device counts between the two."""

    class Timed:
        def __init__(self, enable_timing: bool = False) -> None:
            assert enable_timing

        def record(self) -> None: ...

        def synchronize(self) -> None: ...

        def elapsed_time(self, later: object) -> float:
            return 1.5

    monkeypatch.setattr(torch.cuda, "Event", Timed)
    clock = measure.DeviceClock()
    assert clock.at(object()) - clock._host == 1_500_000


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_nothing_synchronises_on_a_gpu() -> None:
    """Norms, sums and checksums of tensors on the device, under the debug mode that raises at any synchronisation."""
    tensors = [torch.randn(n, device="cuda") for n in (7, 5000, 100_000)]
    warm: list[Callable[[], measure.Reading]] = [
        lambda: measure.reading(measure.norms(tensors)),
        lambda: measure.reading(measure.all_bits(tensors)),
        lambda: measure.reading([measure.total(t) for t in tensors]),
        lambda: measure.scalar(tensors[0].sum()),
    ]
    for take in warm:  # the first use of a kernel or of pinned memory may synchronise
        take()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        readings = [take() for take in warm]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert all(reading.ready() for reading in readings)
    for value, tensor in zip(readings[0].values(), tensors, strict=True):
        assert math.isclose(value, tensor.double().norm().item(), rel_tol=1e-6)
