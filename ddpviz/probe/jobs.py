"""What the hooks hand to the writer thread: plain facts with numbers that may still be on their way from a device.

Data only. The training thread fills a job and lets go of it; `encode.py` turns it into rows on the writer thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ddpviz.probe.measure import Reading


@dataclass(slots=True)
class Collective:
    """One collective of one group. `done` is filled by a callback, possibly on another thread."""

    group: int
    count: int
    kind: int
    numel: int
    dtype: int
    nbytes: int
    begin: int
    flags: int = 0
    site: int = 0
    done: int = 0
    failed: bool = False
    open: bool = True  # nobody has said yet that it ended
    bucket: int = -1  # it is (part of) this bucket of `module`'s pass
    module: int = -1


@dataclass(slots=True)
class Launch:
    """A bucket on its way: the collectives that carry it. Usually one."""

    bucket: int
    at: int
    collectives: list[Collective] = field(default_factory=list)


@dataclass(slots=True)
class Forward:
    """A DDP forward with gradients, whose backward is still to come."""

    flag: bool | None  # what the module declared of itself then
    site: int
    begin: int
    end: int = 0


@dataclass(slots=True)
class PassJob:
    module: int
    index: int
    window: int
    flags: int
    begin: int
    end: int
    collective: int
    collectives: int
    forward_site: int
    forward: tuple[int, int]  # its begin and end; 0: not known
    backward_site: int
    layout: int
    buckets: Sequence[Sequence[int]]  # parameter indices of the layout in force
    bucket_of: Sequence[int]  # bucket of each parameter, -1 if unmanaged
    managed: int
    itemsize: int
    touched: list[int]  # parameters that received a gradient, in order of arrival
    closed: dict[int, int]  # bucket -> when the gradient of its last parameter arrived
    launches: list[Launch]
    loss: Reading | None = None
    local_order: list[int] = field(default_factory=list)  # parameters behind `local`, in order of arrival
    local: Reading | None = None
    local_sums: Reading | None = None
    after_order: list[int] = field(default_factory=list)
    after: Reading | None = None
    after_sums: Reading | None = None


@dataclass(slots=True)
class StepJob:
    module: int
    optimizer: int
    flags: int
    index: int
    after: int
    window: int
    begin: int
    end: int
    collective: int
    by_hand: int
    unmanaged: int
    site: int
    grad_bits: Reading | None = None
    grad_norms: Reading | None = None
    param_bits: Reading | None = None


@dataclass(slots=True)
class ClearJob:
    module: int
    by_step: int
    window: int
    after: int
    at: int
    site: int


@dataclass(slots=True)
class ClipJob:
    """A clip whose returned norm is on its way."""

    module: int
    after: int
    at: int
    site: int
    how: str
    limit: float
    norm: Reading | None


@dataclass(slots=True)
class ReplicaJob:
    """Checksum of a module's parameters outside a step: after an averaging by hand, or at the end."""

    module: int
    step: int
    at: int
    final: bool
    bits: Reading


def completes(bucket: Sequence[int], layout: int) -> int:
    """The parameter whose gradient should complete a bucket: the first layout expects the reverse of the order of
    definition, later ones list the order of arrival. -1 for an empty bucket."""
    return -1 if not bucket else bucket[0] if layout == 0 else bucket[-1]
