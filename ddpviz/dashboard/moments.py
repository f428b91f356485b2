"""One pass over all ranks of a module, gathered once and looked at many times. Pure; the last few are remembered.

Searches are by bisection in place: `searchsorted` would copy a whole column of a structured array first.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddpviz.timeline.model import Gradients, Lane, Module, Rows

Ints = npt.NDArray[np.int64]
NEVER = np.iinfo(np.int64).max
_KEPT = 64  # passes
_MODULES = 4  # ... of so many
_WRONG = (int(Gradients.LOCAL), int(Gradients.STALE), int(Gradients.MIXED))


@dataclass(frozen=True, slots=True)
class Gathered:
    """A pass on those of the module's ranks that reported it; arrays are by position in `ranks`."""

    module: Module
    index: int
    ranks: tuple[int, ...]
    rows: Rows  # PASS rows
    sync: npt.NDArray[np.uint8]
    buckets: Rows  # BUCKET rows of all of them
    owner: Ints  # position of the rank of each bucket row
    cleared: Ints  # when the gradients it left were cleared; NEVER
    stepped: Ints  # when the last optimizer step behind it ended; 0: none
    wrong: npt.NDArray[np.bool_]  # that step used gradients which were not averaged

    @property
    def begin(self) -> int:
        return int(self.rows["begin"].min())

    @property
    def end(self) -> int:
        return max(int(self.rows["end"].max()), self.begin)

    @property
    def wire(self) -> tuple[int, int] | None:
        """From the first launch to the last end of the all-reduces; None where nothing was sent or timed."""
        launch, done = self.buckets["launch"], self.buckets["done"]
        launch, done = launch[launch > 0], done[done > 0]
        if not len(launch) or not len(done) or int(done.max()) <= int(launch.min()):
            return None
        return int(launch.min()), int(done.max())

    @property
    def rest(self) -> int:
        """When the last rank had returned from backward."""
        wire = self.wire
        return max(self.end, wire[1] if wire else 0)

    @property
    def used(self) -> int | None:
        """When its gradients were stepped with or cleared (the latest of both); None if neither."""
        cleared = self.cleared[self.cleared != NEVER]
        latest = max(int(self.stepped.max()), int(cleared.max()) if len(cleared) else 0)
        return latest or None


_kept: OrderedDict[tuple[int, int], Gathered] = OrderedDict()


def gather(module: Module, index: int) -> Gathered | None:
    """Pass `index`; None if no rank has reported it."""
    key = (id(module), index)
    known = _kept.get(key)
    if known is not None and known.module is module:
        return known
    made = _gather(module, index)
    if made is not None:
        _kept[key] = made
        known_modules = list(dict.fromkeys(id(its.module) for its in _kept.values()))
        old = set(known_modules[:-_MODULES])  # of snapshots that are past: they would keep whole columns in memory
        for other in [other for other in _kept if other[0] in old]:
            del _kept[other]
        while len(_kept) > _KEPT:
            _kept.popitem(last=False)
    return made


def _gather(module: Module, index: int) -> Gathered | None:
    lanes = [(rank, lane) for rank, lane in module.lanes.items() if 0 <= index < len(lane.sync)]
    if not lanes:
        return None
    buckets = [lane.buckets_of(index) for _, lane in lanes]
    behind = [_behind(lane, index) for _, lane in lanes]
    return Gathered(
        module=module,
        index=index,
        ranks=tuple(rank for rank, _ in lanes),
        rows=_joined([lane.passes[index : index + 1] for _, lane in lanes]),
        sync=np.array([lane.sync[index] for _, lane in lanes], np.uint8),
        buckets=_joined(buckets),
        owner=np.repeat(np.arange(len(lanes)), [len(rows) for rows in buckets]),
        cleared=np.array([cleared for cleared, _, _ in behind], np.int64),
        stepped=np.array([stepped for _, stepped, _ in behind], np.int64),
        wrong=np.array([wrong for _, _, wrong in behind], np.bool_),
    )


def _joined(parts: list[Rows]) -> Rows:
    """One after the other. Not by `concatenate`: that works the common type of structured arrays out field by field."""
    out: Rows = np.empty(sum(map(len, parts)), parts[0].dtype)
    at = 0
    for part in parts:
        out[at : at + len(part)] = part
        at += len(part)
    return out


def _behind(lane: Lane, index: int) -> tuple[int, int, bool]:
    """What came behind pass `index` on one rank: cleared when, stepped when, and wrongly so."""
    lo, hi = between(lane.clears["after"], index, index + 1)
    cleared = int(lane.clears["at"][lo:hi].min()) if hi > lo else NEVER
    lo, hi = between(lane.steps["after"], index, index + 1)
    stepped = int(lane.steps["end"][lo:hi].max()) if hi > lo else 0
    return cleared, stepped, any(int(kind) in _WRONG for kind in lane.gradients[lo:hi])


def between(column: npt.NDArray[np.generic], low: int, high: int) -> tuple[int, int]:
    """Where a sorted column lies in [low, high)."""
    lo = bisect_left(column, low)
    return lo, bisect_left(column, high, lo)


def newest(lane: Lane, time: int) -> int:
    """The newest pass of one rank that had begun by `time`; -1 before the first."""
    begins = lane.passes["begin"]
    count = len(begins)
    if count and begins[count - 1] <= time:
        return count - 1
    return bisect_right(begins, time) - 1
