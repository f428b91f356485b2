"""Where the time of the all-reduces went: hidden behind the backward or exposed after it, and who arrives late."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddpviz.timeline.model import Lane, Module, Rows
from ddpviz.trace import records as r

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Communication:
    """A rank's all-reduce time, for each pass whose launches and ends were measured; ns, all by position.

    `exposed` is what is left after the pass's last gradient was ready (until then the backward computed beside it),
    waiting for late ranks included; `hidden` is the rest of the time in which some bucket's all-reduce was under way.
    """

    passes: Ints
    exposed: Ints
    hidden: Ints

    @property
    def share_hidden(self) -> float | None:
        """Of all all-reduce time; None if none was measured."""
        hidden, exposed = int(self.hidden.sum()), int(self.exposed.sum())
        return hidden / (hidden + exposed) if hidden + exposed else None


def _timed(lane: Lane) -> Rows:
    rows = lane.buckets
    known = (rows["flags"] & int(r.BucketFlag.SENT) != 0) & (rows["launch"] > 0) & (rows["done"] > 0)
    rows = rows[known]
    in_order: Rows = rows[np.lexsort((rows["launch"], rows["pass"]))]
    return in_order


def _starts(rows: Rows) -> Ints:
    """Where each pass begins."""
    return np.flatnonzero(np.diff(rows["pass"].astype(np.int64), prepend=-1))


def communication(lane: Lane) -> Communication:
    """Hidden and exposed all-reduce time of one rank, pass by pass. Buckets that overlap in time count once."""
    rows = _timed(lane)
    if not len(rows):
        none = np.zeros(0, np.int64)
        return Communication(none, none, none)
    starts = _starts(rows)
    last_ready = np.repeat(np.maximum.reduceat(rows["ready"], starts), np.diff(np.append(starts, len(rows))))
    # a bucket adds the part of its span that no earlier one of the pass covers; passes of a rank do not overlap
    covered = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(rows["done"])[:-1]])
    covered[starts] = np.iinfo(np.int64).min
    begin = np.maximum(rows["launch"], covered)
    busy = np.maximum(rows["done"] - begin, 0)
    exposed = np.clip(rows["done"] - np.maximum(begin, last_ready), 0, busy)
    total = np.add.reduceat(exposed, starts)
    return Communication(rows["pass"][starts].astype(np.int64), total, np.add.reduceat(busy, starts) - total)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When each rank came to the first all-reduce of a pass, later than the first of them; ns, [rank, pass].

    Over the passes in which every rank's launch was measured. Ranks by position in `Module.ranks`.
    """

    ranks: tuple[int, ...]
    passes: Ints
    late: Ints

    @property
    def last(self) -> Ints:
        """The rank that came last, for each pass."""
        return np.asarray(self.ranks, np.int64)[self.late.argmax(0)] if self.late.size else np.zeros(0, np.int64)

    @property
    def spread(self) -> Ints:
        """From the first rank's arrival to the last one's, for each pass."""
        return self.late.max(0) if self.late.size else np.zeros(0, np.int64)

    def median_late(self, rank: int) -> float | None:
        """By how much this rank comes after the first one, in the median; None if nothing was measured."""
        return float(np.median(self.late[self.ranks.index(rank)])) if self.late.size else None


def arrivals(module: Module) -> Arrivals:
    """Who comes late to the all-reduces. Only passes before the ranks drift apart: after that others meet."""
    ranks = tuple(rank for rank in module.ranks if rank in module.lanes)
    size = min((len(module.lanes[rank].passes) for rank in ranks), default=0)
    size = size if module.drift is None else min(size, module.drift)
    launch = np.zeros((len(ranks), size), np.int64)
    for k, rank in enumerate(ranks):
        rows = _timed(module.lanes[rank])
        rows = rows[rows["pass"] < size]
        first = _starts(rows)
        launch[k, rows["pass"][first]] = rows["launch"][first]
    known = np.flatnonzero((launch > 0).all(0)) if len(ranks) == len(module.ranks) > 1 else np.zeros(0, np.int64)
    launch = launch[:, known]
    return Arrivals(ranks, known, launch - launch.min(0) if launch.size else launch)
