"""Which steps of different ranks are one step: their common number, however many steps a rank leaves out by itself.

A rank numbers its own executed steps. While all ranks take every step those numbers agree, and nothing happens here.
Two steps at the same number are one if they concern the same module and come after the same micro-step or after the
same number of collectives of its group. Otherwise the one that comes first in both has no partner on the other rank,
whose later numbers then move up by one: it left that step out. Pure functions of what the ranks reported; the fold
alone calls them, and renumbers the rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ddpviz.timeline.columns import Column
from ddpviz.timeline.model import Rows
from ddpviz.trace import records as r

_AHEAD = 16  # steps looked ahead where modules alternate
_MOST = 1000  # numbers at which ranks may differ; from there on they keep their own
_MOST_MISSING = 5_000_000  # a jump beyond this is damage, not lost rows
_NONE = -1
_SKIPPED = int(r.StepFlag.SKIPPED)

Ints = npt.NDArray[np.int64]


class Cuts:
    """From which of its own steps on a rank's numbers are how much higher. Rises, so both ways are monotonic."""

    __slots__ = ("shifts", "starts")

    def __init__(self, starts: list[int] | None = None, shifts: list[int] | None = None) -> None:
        self.starts = starts or [0]
        self.shifts = shifts or [0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cuts) and (self.starts, self.shifts) == (other.starts, other.shifts)

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Cuts:
        return Cuts(list(self.starts), list(self.shifts))

    @property
    def last(self) -> int:
        return self.shifts[-1]

    @property
    def none(self) -> bool:
        return len(self.starts) == 1 and not self.shifts[0]

    def leave_out(self, common: int) -> None:
        """This rank has no step of that number."""
        start = common - self.last
        if self.starts[-1] == start:
            self.shifts[-1] += 1
        else:
            self.starts.append(start)
            self.shifts.append(self.shifts[-1] + 1)

    def common(self, own: Ints) -> Ints:
        """The common numbers of steps of this rank's own counting; -1 (no step yet) stays."""
        at = np.maximum(np.searchsorted(self.starts, own, "right") - 1, 0)
        return np.where(own < 0, own, own + np.asarray(self.shifts)[at])

    def one(self, own: int) -> int:
        return int(self.common(np.array([own]))[0]) if not self.none else own

    def one_own(self, common: int) -> int:
        return int(self.own(np.array([common]))[0]) if not self.none else common

    def own(self, common: Ints) -> Ints:
        """The way back."""
        lows = np.asarray(self.starts) + np.asarray(self.shifts)
        at = np.maximum(np.searchsorted(lows, common, "right") - 1, 0)
        return np.where(common < 0, common, common - np.asarray(self.shifts)[at])


class _Own:
    """One rank's steps in its own order: module, last micro-step before, and collectives of that module's group."""

    def __init__(self) -> None:
        self.module = Column(np.int32, _NONE)
        self.after = Column(np.int32)
        self.count = Column(np.uint32)

    @property
    def size(self) -> int:
        return self.module.size

    def add(self, module: int, rows: Rows) -> None:
        rows = rows[(rows["flags"] & _SKIPPED == 0) & (rows["index"] < self.size + _MOST_MISSING)]
        if not len(rows):
            return
        index = rows["index"].astype(np.int64)
        for column in (self.module, self.after, self.count):
            column.grow(int(index.max()) + 1)
        known = self.module.view[index]
        fresh = (known == _NONE) | (known > module)  # a step of several modules: the first stands for it
        at = index[fresh]
        self.module.view[at] = module
        self.after.view[at], self.count.view[at] = rows["after"][fresh], rows["collective"][fresh]

    def step(self, own: int) -> tuple[int, int, int]:
        return int(self.module.view[own]), int(self.after.view[own]), int(self.count.view[own])

    def comes(self, start: int, step: tuple[int, int, int]) -> bool:
        """Whether the same step is among the next few."""
        part = slice(start, start + _AHEAD)
        same = (self.after.view[part] == step[1]) | (self.count.view[part] == step[2])
        return bool((same & (self.module.view[part] == step[0])).any())


class Numbering:
    """Common numbers of all ranks' steps. `add` rows, then `update`; `cuts` translates.

    The numbers depend on what was reported alone, not on the order in which it came: what is decided before all ranks
    have reported as far is decided anew.
    """

    def __init__(self, ranks_of: Callable[[int], tuple[int, ...]]) -> None:
        self._ranks_of = ranks_of  # module -> the ranks that hold it
        self._own: dict[int, _Own] = {}
        self.cuts: dict[int, Cuts] = {}
        self._settled: dict[int, Cuts] = {}  # ... as far as every rank has reported
        self._at = 0  # the first number that is not settled
        self._found = 0  # numbers at which steps did not agree
        self._fresh = False

    def add(self, rank: int, module: int, rows: Rows) -> None:
        """Rows of executed steps, numbered as the rank does."""
        if rank not in self._own:
            self._own[rank], self.cuts[rank] = _Own(), Cuts()
            self._settled, self._at, self._found = {}, 0, 0  # one more to compare with
        self._own[rank].add(module, rows)
        self._fresh = True

    def update(self) -> list[tuple[int, Cuts, Cuts]]:
        """Compares what is new; returns (rank, cuts before, cuts now) of the ranks whose numbers changed."""
        if not self._fresh or len(self._own) < 2:
            return []
        self._fresh = False
        old, new = self.cuts, {k: self._settled[k].copy() if k in self._settled else Cuts() for k in self._own}
        at, found = self._at, self._found
        settled = False
        while found < _MOST:
            apart = self._apart(new, at)
            sure = min(own.size + new[k].last for k, own in self._own.items()) - _AHEAD
            if not settled and (apart < 0 or apart >= sure):
                self._at, self._found = max(at, sure), found
                self._settled = {k: cuts.copy() for k, cuts in new.items()}
                settled = True
            if apart < 0:
                break
            for k in self._without(new, apart):
                new[k].leave_out(apart)
            at, found = apart + 1, found + 1
        self.cuts = new
        return [(k, old[k], cuts) for k, cuts in new.items() if cuts != old[k]]

    def _apart(self, cuts: dict[int, Cuts], at: int) -> int:
        """The first number from `at` on at which two ranks have different steps; -1 if there is none."""
        ends = {k: own.size + cuts[k].last for k, own in self._own.items()}
        longest = max(ends, key=lambda k: (ends[k], -k))
        size = 1024
        while at < ends[longest]:
            found = [
                self._apart_in(longest, k, cuts, at, min(at + size, end))
                for k, end in ends.items()
                if k != longest and end > at
            ]
            if any(k != _NONE for k in found):
                return min(k for k in found if k != _NONE)
            at, size = at + size, size * 2
        return _NONE

    def _apart_in(self, rank: int, other: int, cuts: dict[int, Cuts], low: int, high: int) -> int:
        """The first number from `low` to `high` at which these two, who have steps as far, differ; else -1."""
        a, b = self._own[rank], self._own[other]
        mine = slice(low - cuts[rank].last, high - cuts[rank].last)
        theirs = slice(low - cuts[other].last, high - cuts[other].last)
        modules, others = a.module.view[mine], b.module.view[theirs]
        apart = (a.after.view[mine] != b.after.view[theirs]) & (a.count.view[mine] != b.count.view[theirs])
        apart |= modules != others
        apart &= (modules != _NONE) & (others != _NONE)
        places = np.flatnonzero(apart)
        while len(places):
            m, n = int(modules[places[0]]), int(others[places[0]])
            if self._comparable(rank, m, other, n):
                return low + int(places[0])
            places = places[(modules[places] != m) | (others[places] != n)]
        return _NONE

    def _comparable(self, rank: int, module: int, other: int, its: int) -> bool:
        """Steps on modules that the other rank does not hold are nothing to it."""
        return module == its or other in self._ranks_of(module) or rank in self._ranks_of(its)

    def _without(self, cuts: dict[int, Cuts], at: int) -> list[int]:
        """The ranks that left out the step that comes first among those at this number."""
        there = [k for k, own in self._own.items() if at - cuts[k].last < own.size]
        lead = there[0]
        for k in there[1:]:
            if self._before(cuts, at, k, lead):
                lead = k
        return [k for k in there if k != lead and self._before(cuts, at, lead, k)]

    def _before(self, cuts: dict[int, Cuts], at: int, rank: int, other: int) -> bool:
        """Whether `rank` took its step at this number without `other`, which comes to its own later."""
        mine, theirs = at - cuts[rank].last, at - cuts[other].last
        a, b = self._own[rank].step(mine), self._own[other].step(theirs)
        if _NONE in (a[0], b[0]) or not self._comparable(rank, a[0], other, b[0]):
            return False
        if a[0] == b[0]:
            return a[1] < b[1] and a[2] < b[2]
        return self._own[rank].comes(mine + 1, b) and not self._own[other].comes(theirs + 1, a)
