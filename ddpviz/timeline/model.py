"""The state that everything on screen and in a report is drawn from: what the ranks did, aligned.

Pure data. `fold.py` alone changes it; rules, widgets and exporters read it. Times are nanoseconds since the run's
start on one common clock. Indices of passes, windows and steps count from 0, per module and rank. Columns are numpy
structured arrays with the fields of `trace.records.COLUMNS`, in pass (or call) order, times on the common clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpviz.trace import records as r

Rows = npt.NDArray[np.void]


class Sync(IntEnum):
    """What happened to a pass's gradients. Across ranks the worst stands: UNFINISHED > MIXED > PARTIAL > the rest."""

    LOCAL = 0
    SYNCED = 1
    PARTIAL = 2
    MIXED = 3
    UNFINISHED = 4
    RUNNING = 5  # live only: some rank has not reported this pass yet
    ABSENT = 6  # a rank never ran it

    @property
    def word(self) -> str:
        return self.name.lower()


class Gradients(IntEnum):
    """What a step used: averaged over the ranks, never averaged, or averaged and then added to locally.

    MIXED on one rank: part of its gradients was averaged and part not (a partial pass, or parameters that the reducer
    does not manage). MIXED over the ranks: they differ, or one of them is. NONE: no gradient, or its pass was lost.
    """

    SYNCED = 0
    LOCAL = 1
    STALE = 2
    MIXED = 3
    NONE = 4  # no gradient at all

    @property
    def word(self) -> str:
        return self.name.lower()


class Replicas(IntEnum):
    UNKNOWN = 0
    EQUAL = 1
    DIVERGED = 2

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the user's code."""

    file: str = ""
    line: int = 0
    function: str = ""
    code: str = ""
    via: str = ""

    @property
    def short(self) -> str:
        """`train.py:19`, or an empty string if unknown."""
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}" if self.file else ""


@dataclass(slots=True)
class RunInfo:
    """run.json, as far as viewers need it."""

    id: str = ""
    command: tuple[str, ...] = ()
    title: str = ""
    lesson: str = ""  # the demo that this is a run of
    world_size: int = 0
    backend: str = ""
    backend_reason: str = ""
    torch: str = ""
    ddpviz: str = ""
    status: str = "running"  # "starting" | "running" | "finished" | "failed" | "hung" | "interrupted"
    exit_code: int | None = None
    observed_by: str = ""
    redirected: bool = False
    budget: float | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RankState:
    """One rank: its process, its last word, and what it is doing."""

    rank: int
    host: str = ""
    pid: int = 0
    local_rank: int = 0
    backend: str = ""
    device: str = ""
    attempt: int = 0
    debug: str = ""  # TORCH_DISTRIBUTED_DEBUG
    started_ns: int = 0
    last_ns: int = 0  # time of the newest thing heard from it
    progress: int = 0  # grows with everything its probe sees
    progress_ns: int = 0  # when `progress` last grew
    beat_ns: int = 0  # when its interpreter last answered
    cpu_ns: int = -1  # CPU time of its main thread at that beat; -1: not known
    busy_ns: int = 0  # when that CPU time was last seen to grow by more than 1 % of the time between two beats
    stack: r.Stack | None = None  # what it is blocked in; None while it moves
    exit: r.Exit | None = None
    signal: int | None = None  # filled from run.json where the launcher knows it
    exit_code: int | None = None
    said: str = ""  # what it printed as it crashed, where the launcher kept that
    refused: list[r.Refused] = field(default_factory=list)
    dropped: int = 0
    joined: dict[int, int] = field(default_factory=dict)  # module -> last pass before it shadows
    collectives: dict[int, int] = field(default_factory=dict)  # group key -> collectives issued so far

    @property
    def status(self) -> str:
        """ "running", "waiting", "finished", "failed" or "died" (gone without a last word)."""
        if self.exit is not None:
            return "finished" if self.exit.reason != "exception" and not self.exit.code else "failed"
        if self.signal is not None or self.exit_code not in (None, 0):
            return "died"
        return "waiting" if self.stack is not None and self.stack.doing != "computing" else "running"


@dataclass(slots=True)
class Param:
    name: str
    numel: int
    managed: bool = True
    reason: str = ""  # why the reducer does not manage it


@dataclass(slots=True)
class Layout:
    buckets: list[tuple[int, ...]]  # parameter indices of each bucket
    bytes: list[int]
    at: int


def _span(column: Any, value: int) -> tuple[int, int]:
    """Where a sorted column has this value. Not by searchsorted: that copies a whole column of a structured array."""
    return bisect_left(column, value), bisect_right(column, value)


@dataclass(slots=True)
class Lane:
    """What one rank did with one module."""

    rank: int
    passes: Rows  # PASS rows, by index; a view, do not keep it across feeds
    sync: npt.NDArray[np.uint8]  # Sync of each pass on this rank alone
    buckets: Rows  # BUCKET rows, sorted by pass then index
    steps: Rows  # STEP rows of this module on this rank, executed ones only
    gradients: npt.NDArray[np.uint8]  # Gradients of each of `steps` on this rank alone
    skipped: Rows  # STEP rows that GradScaler skipped
    clears: Rows
    layers: Rows  # LAYER rows, sorted by pass then parameter
    # the group's collective count of each pass's first bucket, NO_INDEX where it sent none: pairs passes across ranks
    counts: npt.NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    unused: r.Unused | None = None
    nonfinite: r.NonFinite | None = None
    clips: list[r.Clip] = field(default_factory=list)
    buffers: r.Buffers | None = None
    replicas: list[r.Replica] = field(default_factory=list)  # parameter checksums outside steps, in order
    unanswered: list[r.Unanswered] = field(default_factory=list)  # forwards that no backward followed

    def buckets_of(self, index: int) -> Rows:
        """The bucket rows of one pass, in bucket order."""
        lo, hi = _span(self.buckets["pass"], index)
        return self.buckets[lo:hi]

    def layers_of(self, index: int) -> Rows:
        """The layer rows of one pass (none unless it was sampled), in parameter order."""
        lo, hi = _span(self.layers["pass"], index)
        return self.layers[lo:hi]

    def window_of(self, window: int) -> tuple[int, int]:
        """First pass of a window and the one after its last: `lane.passes[lo:hi]`."""
        return _span(self.passes["window"], window)


@dataclass(slots=True)
class Module:
    """One DDP module, the same on all its ranks, in the order of construction."""

    id: int
    name: str
    params: list[Param]
    group: int  # key into Timeline.groups
    ranks: tuple[int, ...]  # global ranks that hold it
    dtype: str
    itemsize: int
    options: dict[str, bool | int | float | str]
    site: Site
    layouts: list[Layout]
    lanes: dict[int, Lane]
    hook: str = ""  # name of the user's communication hook
    # Sync across ranks, by index
    verdicts: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    # first pass whose all-reduce met another micro-step's on some rank: from there the ranks are apart (pairs.py)
    drift: int | None = None

    @property
    def numel(self) -> int:
        return sum(p.numel for p in self.params if p.managed)

    @property
    def passes(self) -> int:
        """Micro-steps so far: the most that any rank has."""
        return len(self.verdicts)


@dataclass(frozen=True, slots=True)
class StepPart:
    """One module's share in one step."""

    module: int
    after: tuple[
        int | None, ...
    ]  # by position in Module.ranks: last pass before the update, None if the rank did not step
    gradients: Gradients
    by_rank: tuple[Gradients | None, ...]
    replicas: Replicas
    grads_equal: bool | None  # gradients as used, compared bit for bit across ranks; None if not measured


@dataclass(frozen=True, slots=True)
class Step:
    """One executed optimizer.step, in call order, aligned across ranks by index."""

    index: int
    parts: tuple[StepPart, ...]
    begin: int  # earliest over ranks
    end: int  # latest
    site: Site
    optimizer: str
    in_phase: bool  # all ranks stepped after the same micro-step

    @property
    def gradients(self) -> Gradients:
        kinds = {p.gradients for p in self.parts if p.gradients is not Gradients.NONE}
        return kinds.pop() if len(kinds) == 1 else (Gradients.MIXED if kinds else Gradients.NONE)

    @property
    def replicas(self) -> Replicas:
        kinds = {p.replicas for p in self.parts}
        if Replicas.DIVERGED in kinds:
            return Replicas.DIVERGED
        return Replicas.EQUAL if kinds == {Replicas.EQUAL} else Replicas.UNKNOWN


@dataclass(slots=True)
class GroupState:
    """One process group over its members: who issued what, by the group's own count."""

    key: int
    name: str
    ranks: tuple[int, ...]
    backend: str
    collectives: dict[int, Rows] = field(default_factory=dict)  # rank -> COLLECTIVE rows (bucket all-reduces apart)


@dataclass(frozen=True, slots=True)
class HostClock:
    """How another host's clock was set by the reference host's."""

    offset_ns: int  # beside what the wall clocks say
    drift: float  # ns that it is slow in a ns
    error_ns: int  # by how much its times may be off
    shared: int  # all-reduces whose ends were compared


@dataclass(slots=True)
class Timeline:
    """Everything known about a run. `version` grows with every change, so a viewer knows when to draw."""

    run: RunInfo = field(default_factory=RunInfo)
    ranks: dict[int, RankState] = field(default_factory=dict)
    groups: dict[int, GroupState] = field(default_factory=dict)
    modules: list[Module] = field(default_factory=list)
    # In call order. The fold puts a `steps.StepTable` here: a sequence whose columns (`gradients`, `replicas`, ...) are
    # arrays by position, to look for the wrong ones without building every Step.
    steps: Sequence[Step] = field(default_factory=list)
    skipped: Sequence[Step] = field(default_factory=list)  # those that GradScaler skipped; their indices count apart
    optimizers: dict[tuple[int, int], r.Optimizer] = field(default_factory=dict)  # by (rank, optimizer)
    unmanaged: dict[int, list[r.Unmanaged]] = field(default_factory=dict)  # rank -> what the reducer does not manage
    learning: dict[int, list[r.Learning]] = field(default_factory=dict)  # rank -> learning-rate changes
    clocks: dict[str, HostClock] = field(default_factory=dict)  # of each host but the reference, once it is known
    now_ns: int = 0  # newest time heard from any rank
    version: int = 0

    def site(self, rank: int, site_id: int) -> Site:
        """The place that `site_id` names in that rank's trace; an empty Site if unknown."""
        return self.sites.get((rank, site_id), Site())

    sites: dict[tuple[int, int], Site] = field(default_factory=dict)
