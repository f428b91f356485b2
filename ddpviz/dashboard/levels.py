"""How full each rank's gradients are at one moment: a pure function of the timeline and a time.

A rank's level is the L2 norm of its accumulated gradients. Inside a backward it rises from what was there to
`local_norm`, each bucket's share until that bucket was ready; in an all-reduce each bucket's share moves from the
rank's own value to the mean's between its launch and its end; clearing empties it. Corners are measured, straight lines
between them are drawing. What was not measured is None, never a guess.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ddpviz.dashboard import playback
from ddpviz.findings.model import Finding
from ddpviz.timeline.model import Gradients, Lane, Module, Sync, Timeline
from ddpviz.trace import records as r


class Phase(IntEnum):
    """What a share of a level is made of."""

    LOCAL = 0  # this rank's own
    MOVING = 1  # its all-reduce runs
    SYNCED = 2  # the mean over the ranks
    WRONG = 3  # was stepped with, and never averaged (or added to after it)


@dataclass(frozen=True, slots=True)
class Part:
    """One bucket's share: `square` is its part of the squared norm."""

    bucket: int  # -1: the whole model
    square: float
    phase: Phase


@dataclass(frozen=True, slots=True)
class Level:
    rank: int
    value: float | None  # None: not measured, or no pass yet
    parts: tuple[Part, ...]
    empty: bool = False  # cleared, and nothing added since

    @property
    def phase(self) -> Phase:
        return max((part.phase for part in self.parts), default=Phase.LOCAL)


@dataclass(frozen=True, slots=True)
class Levels:
    """All ranks at one moment."""

    levels: tuple[Level, ...]
    index: int  # the newest pass begun by then; -1: none
    moving: tuple[int, ...]  # buckets whose all-reduce runs on some rank
    done: int  # buckets whose all-reduce has ended on every rank, in this pass
    buckets: int  # buckets of the layout in force; 0: none sent in this pass
    mean: float | None  # where the levels meet, once an all-reduce of this pass has started
    apart_since: int | None  # step after which replicas differed, if that was before this moment


def levels(tl: Timeline, module: Module, time: int, findings: list[Finding] | None = None) -> Levels:
    """The levels at `time` (ns on the run's clock)."""
    index = playback.pass_at(module, time)
    wire = playback.all_reduce_span(module, index) if index >= 0 else None
    mean: float | None = None
    moving: set[int] = set()
    done: dict[int, int] = {}
    buckets = 0
    if wire is not None and time >= wire[0]:
        for lane in module.lanes.values():
            for row in lane.buckets_of(index):
                if not row["launch"]:
                    continue
                number, ended = int(row["index"]), int(row["done"])
                buckets = max(buckets, number + 1)
                if row["launch"] <= time and (ended == 0 or time < ended):
                    moving.add(number)
                elif ended and ended <= time:
                    done[number] = done.get(number, 0) + 1
            if mean is None and index < len(lane.passes) and lane.sync[index] == Sync.SYNCED:
                mean = _measured(lane, index, "norm")
    rest = playback.rest(module, index) if index >= 0 else 0
    finished = sum(1 for number in range(buckets) if number in done and number not in moving)
    return Levels(
        levels=tuple(
            _level(module.lanes[rank], rank, time, index, rest) for rank in module.ranks if rank in module.lanes
        ),
        index=index,
        moving=tuple(sorted(moving)),
        done=finished,
        buckets=buckets,
        mean=mean,
        apart_since=apart_since(tl, module, time, findings or []),
    )


def apart_since(tl: Timeline, module: Module, time: int, findings: list[Finding]) -> int | None:
    """The first step after which this module's replicas were measured to differ, if it had ended by `time`."""
    for finding in findings:
        number = finding.step
        if finding.rule == "replicas-diverged" and finding.module in (module.id, None) and number is not None:
            return number if number < len(tl.steps) and tl.steps[number].end <= time else None
    return None


def _measured(lane: Lane, index: int, column: str) -> float | None:
    flag = r.PassFlag.HAS_NORM if column == "norm" else r.PassFlag.HAS_LOCAL_NORM
    row = lane.passes[index]
    return float(row[column]) if int(row["flags"]) & flag else None


def _cleared(lane: Lane, index: int, time: int, rest: int) -> bool:
    """Whether the gradients that pass `index` left had been cleared by `time`.

    A rank that is microseconds ahead clears while the others still return from backward; it is drawn as emptied only
    once they all have (`rest`), so that there is a moment at which the levels are seen to have met.
    """
    if time <= rest:
        return False
    after = lane.clears["after"]
    lo, hi = np.searchsorted(after, [index, index + 1])
    return bool((lane.clears["at"][lo:hi] <= time).any())


def _before(lane: Lane, index: int) -> float | None:
    """What was there when pass `index` began."""
    if index == 0 or int(lane.passes[index]["flags"]) & r.PassFlag.CLEARED:
        return 0.0
    if int(lane.passes[index]["window"]) != int(lane.passes[index - 1]["window"]):
        return 0.0
    return _measured(lane, index - 1, "norm")


def _level(lane: Lane, rank: int, time: int, newest: int, rest: int) -> Level:
    index = int(np.searchsorted(lane.passes["begin"], time, side="right")) - 1
    if index < 0:
        return Level(rank, None, ())
    row = lane.passes[index]
    rest = rest if index == newest else 0
    local = _measured(lane, index, "local_norm")
    if local is None:
        return Level(rank, None, (), empty=_cleared(lane, index, time, rest))
    if _cleared(lane, index, time, rest):
        return Level(rank, 0.0, (), empty=True)
    before = _before(lane, index)
    begin, end = int(row["begin"]), max(int(row["end"]), int(row["begin"]) + 1)
    rows = lane.buckets_of(index)
    known = len(rows) > 0 and bool(((rows["flags"] & int(r.BucketFlag.HAS_LOCAL_NORM)) != 0).all())
    if known and math.isfinite(local):
        parts = tuple(_part(bucket, before, local, begin, end, time) for bucket in rows)
    else:
        reached = _rise(before, local * local, begin, end, time)
        after = _measured(lane, index, "norm")
        synced = lane.sync[index] == Sync.SYNCED and time >= end and after is not None
        square = after * after if synced and after is not None else reached
        parts = (Part(-1, square, Phase.SYNCED if synced else Phase.LOCAL),)
    if _stepped_wrongly(lane, index, time) and time > rest:
        parts = tuple(Part(p.bucket, p.square, Phase.WRONG) for p in parts)
    total = sum(part.square for part in parts)
    return Level(rank, math.sqrt(total) if total >= 0 else math.nan, parts)


def _rise(before: float | None, square: float, begin: int, ready: int, time: int) -> float:
    """From what was there to `square`, in a straight line from `begin` until `ready`."""
    if time >= ready or before is None or not math.isfinite(square):
        return square
    old = before * before
    return old + (square - old) * max(time - begin, 0) / max(ready - begin, 1)


def _part(row: np.void, before: float | None, local: float, begin: int, end: int, time: int) -> Part:
    own = float(row["local_norm"]) ** 2
    share = own / (local * local) if local else 0.0
    number = int(row["index"])
    launch, done = int(row["launch"]), int(row["done"])
    sent = bool(int(row["flags"]) & r.BucketFlag.SENT) and launch > 0
    measured = bool(int(row["flags"]) & r.BucketFlag.HAS_NORM)
    if not sent or time < launch:
        ready = int(row["ready"]) or end
        start = None if before is None else before * math.sqrt(share)
        return Part(number, _rise(start, own, begin, ready, time), Phase.LOCAL)
    mean = float(row["norm"]) ** 2 if measured else own
    ended = done or end
    if time < ended:
        return Part(number, own + (mean - own) * (time - launch) / max(ended - launch, 1), Phase.MOVING)
    return Part(number, mean, Phase.SYNCED)


def _stepped_wrongly(lane: Lane, index: int, time: int) -> bool:
    lo, hi = np.searchsorted(lane.steps["after"], [index, index + 1])
    bad = np.isin(lane.gradients[lo:hi], (Gradients.LOCAL, Gradients.STALE, Gradients.MIXED))
    return bool((bad & (lane.steps["end"][lo:hi] <= time)).any())


def scale(module: Module, index: int, around: int = 64) -> float:
    """The top of the bars: the greatest level of the passes around `index`, so that it holds still."""
    top = 0.0
    for lane in module.lanes.values():
        rows = lane.passes[max(index // around - 1, 0) * around : (index // around + 1) * around]
        values = rows["local_norm"][(rows["flags"] & int(r.PassFlag.HAS_LOCAL_NORM)) != 0]
        values = values[np.isfinite(values)]
        top = max(top, float(values.max(initial=0.0)))
    return top or 1.0
