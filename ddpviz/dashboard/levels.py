"""How full each rank's gradients are at one moment: a pure function of the timeline and a time.

A rank's level is the L2 norm of its accumulated gradients. Inside a backward it rises from what was there to
`local_norm`, each bucket's share until that bucket was ready; in an all-reduce each bucket's share moves from the
rank's own value to the mean's between its launch and its end; clearing empties it. Corners are measured, straight lines
between them are drawing. What was not measured is None, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ddpviz.dashboard.moments import Gathered, gather, newest
from ddpviz.findings.model import Finding
from ddpviz.timeline.model import Lane, Module, Sync, Timeline
from ddpviz.trace import records as r

# plain numbers: an operation on an enum costs a microsecond, and a frame of 64 ranks has hundreds
_HAS_LOCAL_NORM, _HAS_NORM = int(r.PassFlag.HAS_LOCAL_NORM), int(r.PassFlag.HAS_NORM)
_CLEARED = int(r.PassFlag.CLEARED)
_BUCKET_HAS_LOCAL_NORM, _BUCKET_HAS_NORM = int(r.BucketFlag.HAS_LOCAL_NORM), int(r.BucketFlag.HAS_NORM)
_SENT = int(r.BucketFlag.SENT)
_UNFINISHED = int(Sync.UNFINISHED)


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
    layout: int  # the bucket layout of this pass; -1: nothing sent
    done: int  # buckets whose all-reduce has ended on every rank, in this pass
    buckets: int  # buckets of the layout in force; 0: none sent in this pass
    mean: float | None  # where the levels meet, once an all-reduce of this pass has started
    apart_since: int | None  # step after which replicas differed, if that was before this moment


def levels(
    tl: Timeline, module: Module, time: int, findings: list[Finding] | None = None, upto: int | None = None
) -> Levels:
    """The levels at `time` (ns on the run's clock).

    Ranks that nothing holds together run apart. With `upto`, the pass that is looked at, a rank that was already in a
    later one is drawn as it left that pass.
    """
    reached = {rank: newest(module.lanes[rank], time) for rank in module.ranks if rank in module.lanes}
    if upto is not None and upto >= 0:
        reached = {rank: min(own, upto) for rank, own in reached.items()}
    index = max(reached.values(), default=-1)
    made = gather(module, index)
    moving, done, buckets, mean, layout = _wire(made, time)
    return Levels(
        levels=tuple(_levels(module, reached, index, made.rest if made else 0, time)),
        index=index,
        moving=moving,
        layout=layout,
        done=done,
        buckets=buckets,
        mean=mean,
        apart_since=apart_since(tl, module, time, findings or []),
    )


def _wire(made: Gathered | None, time: int) -> tuple[tuple[int, ...], int, int, float | None, int]:
    """Buckets under way, how many are done and there are, where the levels meet, the layout; once one was launched."""
    wire = made.wire if made is not None else None
    if made is None or wire is None or time < wire[0]:
        return (), 0, 0, None, -1
    rows = made.buckets[made.buckets["launch"] > 0]
    under_way = (rows["launch"] <= time) & ((rows["done"] == 0) | (time < rows["done"]))
    moving = set(rows["index"][under_way].tolist())
    ended = set(rows["index"][(rows["done"] > 0) & (rows["done"] <= time)].tolist()) - moving
    synced = (made.sync == Sync.SYNCED) & ((made.rows["flags"] & _HAS_NORM) != 0)
    mean = float(made.rows["norm"][synced][0]) if synced.any() else None
    return tuple(sorted(moving)), len(ended), int(rows["index"].max()) + 1, mean, int(rows["layout"].max())


def _levels(module: Module, reached: dict[int, int], index: int, rest: int, time: int) -> Iterator[Level]:
    """Each rank's level, from the newest pass that it had begun itself."""
    places: dict[int, dict[int, int]] = {}
    for rank, own in reached.items():
        made = gather(module, own)
        if made is None:
            yield Level(rank, None, ())
            continue
        if own not in places:
            places[own] = {k: i for i, k in enumerate(made.ranks)}
        yield _level(made, places[own][rank], rank, time, rest if own == index else 0)


def apart_since(tl: Timeline, module: Module, time: int, findings: list[Finding]) -> int | None:
    """The first step after which this module's replicas were measured to differ, if it had ended by `time`."""
    for finding in findings:
        number = finding.step
        if finding.rule == "replicas-diverged" and finding.module in (module.id, None) and number is not None:
            return number if number < len(tl.steps) and _end(tl, number) <= time else None
    return None


_ends: dict[tuple[int, int, int], int] = {}  # a step of many ranks is dear to build, and asked for in every frame


def _end(tl: Timeline, number: int) -> int:
    key = (id(tl), tl.version, number)
    if key not in _ends:
        _ends.clear()
        _ends[key] = tl.steps[number].end
    return _ends[key]


def _measured(lane: Lane, index: int, column: str) -> float | None:
    flag = _HAS_NORM if column == "norm" else _HAS_LOCAL_NORM
    row = lane.passes[index]
    return float(row[column]) if int(row["flags"]) & flag else None


def _before(lane: Lane, index: int) -> float | None:
    """What was there when pass `index` began."""
    if index == 0 or int(lane.passes[index]["flags"]) & _CLEARED:
        return 0.0
    if int(lane.passes[index]["window"]) != int(lane.passes[index - 1]["window"]):
        return 0.0
    return _measured(lane, index - 1, "norm")


def _level(made: Gathered, at: int, rank: int, time: int, rest: int) -> Level:
    """The level of the rank at position `at`, from this pass.

    A rank that is microseconds ahead steps and clears while the others still return from backward. It is drawn as
    stepped only once they all have returned (`rest`), and as emptied once they all have stepped, so that there is a
    moment at which the levels are seen to have met, and one at which a wrong step is seen.
    """
    lane, row = made.module.lanes[rank], made.rows[at]
    flags = int(row["flags"])
    emptied = max(rest, int(made.stepped.max()) if rest else 0) < time and int(made.cleared[at]) <= time
    if emptied:
        return Level(rank, 0.0 if flags & _HAS_LOCAL_NORM else None, (), empty=True)
    if not flags & _HAS_LOCAL_NORM:
        return Level(rank, None, ())
    local = float(row["local_norm"])
    begin, end = int(row["begin"]), max(int(row["end"]), int(row["begin"]) + 1)
    before = _before(lane, made.index) if time < end else None
    rows = made.buckets[made.owner == at]
    known = len(rows) > 0 and bool(((rows["flags"] & _BUCKET_HAS_LOCAL_NORM) != 0).all())
    if known and time >= end and made.sync[at] == _UNFINISHED:
        known = False  # it raised: what its all-reduce would have brought never came
    if known and math.isfinite(local):
        parts = tuple(_part(bucket, before, local, begin, end, time) for bucket in rows)
    else:
        averaged = made.sync[at] == Sync.SYNCED and time >= end and flags & _HAS_NORM
        square = float(row["norm"]) ** 2 if averaged else _rise(before, local * local, begin, end, time)
        parts = (Part(-1, square, Phase.SYNCED if averaged else Phase.LOCAL),)
    if made.wrong[at] and rest < time and int(made.stepped[at]) <= time:
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
    sent = bool(int(row["flags"]) & _SENT) and launch > 0
    measured = bool(int(row["flags"]) & _BUCKET_HAS_NORM)
    if not sent or time < launch:
        ready = int(row["ready"]) or end
        start = None if before is None else before * math.sqrt(share)
        return Part(number, _rise(start, own, begin, ready, time), Phase.LOCAL)
    mean = float(row["norm"]) ** 2 if measured else own
    ended = done or end
    if time < ended:
        return Part(number, own + (mean - own) * (time - launch) / max(ended - launch, 1), Phase.MOVING)
    return Part(number, mean, Phase.SYNCED)


def scale(module: Module, index: int, around: int = 64) -> float:
    """The top of the bars: the greatest level of the passes around `index`, so that it holds still."""
    top = 0.0
    for lane in module.lanes.values():
        rows = lane.passes[max(index // around - 1, 0) * around : (index // around + 1) * around]
        values = rows["local_norm"][(rows["flags"] & _HAS_LOCAL_NORM) != 0]
        values = values[np.isfinite(values)]
        top = max(top, float(values.max(initial=0.0)))
    return top or 1.0
