"""One rank's rows of one module, growing block by block: what the fold keeps behind a public `Lane`.

Rows may come in any blocks, a pass after its buckets or its step included; what they change is judged anew, the rest
is left alone, so a feed costs what is new.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import msgspec
import numpy as np

from ddpviz.timeline import verdicts
from ddpviz.timeline.align import later
from ddpviz.timeline.columns import DTYPES, Column, Shift, shift_rows
from ddpviz.timeline.model import Lane, Rows
from ddpviz.timeline.numbering import Cuts
from ddpviz.trace import records as r

# Members of enums are looked up once: each access costs a microsecond.
_PASS = r.RowKind.PASS
_BUCKET = r.RowKind.BUCKET
_STEP = r.RowKind.STEP
_CLEAR = r.RowKind.CLEAR
_LAYER = r.RowKind.LAYER
_SKIPPED = int(r.StepFlag.SKIPPED)
_FAILED = int(r.BucketFlag.FAILED)
_MOST_MISSING = 5_000_000  # a jump in the index beyond this is damage, not lost rows


class Dirty:
    """A range of indices to judge anew."""

    __slots__ = ("high", "low")

    def __init__(self) -> None:
        self.low, self.high = 1 << 62, 0

    def add(self, low: int, high: int) -> None:
        if low < high:
            self.low, self.high = min(self.low, low), max(self.high, high)

    def __bool__(self) -> bool:
        return self.low < self.high


class LaneFold:
    """Builds `lane`. Call `add` for each block, then `judge` once, then read `dirty_passes` and `dirty_steps`."""

    def __init__(self, rank: int, ranks: int, flagged: Column) -> None:
        self._ranks = ranks
        self._flagged = flagged  # counts of this rank's collectives that carried gradients, on the module's group
        self._flagged_seen = 0
        self.passes = Column(DTYPES[_PASS])
        self.sync = Column(np.uint8)
        self.failed = Column(np.uint16)  # by pass: buckets whose collective failed
        self.counts = Column(np.uint32, r.NO_INDEX)
        self.averaged = Column(np.uint32)  # synced or partial passes before each
        self.buckets = Column(DTYPES[_BUCKET])
        self.steps = Column(DTYPES[_STEP])
        self.own = Column(np.uint8)  # gradients of each step as this rank alone can tell
        self.gradients = Column(np.uint8)  # ... and as all ranks together tell
        self.sent = Column(np.int64)  # elements that the script itself put through collectives for this step
        self.carried = Column(np.bool_)  # ... some of which were seen to be gradients
        self.skipped = Column(DTYPES[_STEP])
        self.clears = Column(DTYPES[_CLEAR])
        self.layers = Column(DTYPES[_LAYER])
        self.dirty_passes, self.dirty_steps, self.dirty_skipped = Dirty(), Dirty(), Dirty()
        self._rows_from = 1 << 62  # first step row that is new or moved
        self.cuts = Cuts()  # from this rank's own numbers of steps to those of all ranks
        self.renumbered = 1 << 62  # the first number of a step that means another one since the last feed
        self.lane = Lane(
            rank,
            *(self.passes.view, self.sync.view, self.buckets.view, self.steps.view, self.gradients.view),
            *(self.skipped.view, self.clears.view, self.layers.view),
        )

    def add(self, kind: r.RowKind, rows: Rows) -> None:
        if kind is _PASS:
            self._add_passes(rows)
        elif kind is _BUCKET:
            self._add_buckets(rows)
        elif kind is _STEP:
            rows = rows[rows["index"] < self.steps.size + self.skipped.size + _MOST_MISSING]
            skipped = rows["flags"] & _SKIPPED != 0
            if skipped.any():
                at = self.skipped.extend_sorted(rows[skipped], "index")
                index = self.skipped.view["index"]
                self.dirty_skipped.add(int(index[at]), int(index[-1]) + 1)
                rows = rows[~skipped]
            if len(rows):
                if not self.cuts.none:
                    rows["index"] = self.cuts.common(rows["index"].astype(np.int64))
                self._rows_from = min(self._rows_from, self.steps.extend_sorted(rows, "index"))
        elif kind is _CLEAR:
            self.clears.extend(rows)
        elif kind is _LAYER:
            self.layers.extend_sorted(rows, "pass", "param")

    def _add_passes(self, rows: Rows) -> None:
        """Puts each row at its own index. Rows that never came leave a row that touched nothing: absent."""
        index = rows["index"].astype(np.int64)
        old = self.passes.size
        if index[0] == old and np.array_equal(index, np.arange(old, old + len(rows))):
            self.passes.extend(rows)
            self.dirty_passes.add(old, self.passes.size)
            return
        sane = index < old + _MOST_MISSING
        rows, index = rows[sane], index[sane]
        if not len(rows):
            return
        self.passes.grow(int(index.max()) + 1)
        data = self.passes.view
        data[index] = rows
        gaps = np.setdiff1d(np.arange(old, len(data)), index, assume_unique=False)
        before = np.setdiff1d(np.arange(old, len(data)), gaps)
        if len(gaps):
            last = np.concatenate([[old - 1], before])[np.searchsorted(before, gaps)]  # the pass known before each gap
            data["index"][gaps] = gaps
            gaps, last = gaps[last >= 0], last[last >= 0]
            data["window"][gaps] = data["window"][last]
            data["begin"][gaps] = data["end"][gaps] = data["end"][last]
        self.dirty_passes.add(min(old, int(index.min())), len(data))

    def _add_buckets(self, rows: Rows) -> None:
        self.buckets.extend_sorted(rows, "pass", "index")
        top = int(rows["pass"].max()) + 1
        if top > self.passes.size + _MOST_MISSING:
            return
        self.counts.grow(top)
        self.failed.grow(top)
        sent = rows["count"] != r.NO_INDEX
        issued = rows if sent.all() else rows[sent]
        if len(issued):
            passes = issued["pass"]
            starts = np.concatenate([[0], np.flatnonzero(passes[1:] != passes[:-1]) + 1])
            first = np.minimum.reduceat(issued["count"], starts)
            view = self.counts.view
            view[passes[starts]] = np.minimum(view[passes[starts]], first)
            self.dirty_passes.add(int(passes.min()), int(passes.max()) + 1)
        lost = rows["flags"] & _FAILED != 0
        if lost.any():
            failed = rows["pass"][lost]
            np.add.at(self.failed.view, failed, 1)
            self.dirty_passes.add(int(failed.min()), int(failed.max()) + 1)

    def shift(self, by: Shift) -> None:
        """Moves all times: the host's clock is known better now."""
        kinds = (_PASS, self.passes), (_BUCKET, self.buckets), (_STEP, self.steps), (_STEP, self.skipped)
        for kind, column in (*kinds, (_CLEAR, self.clears)):
            shift_rows(kind, column.view, by)
        for records in (self.lane.clips, self.lane.replicas, self.lane.unanswered):
            records[:] = [later(record, by) for record in records]
        self.lane.buffers = later(self.lane.buffers, by) if self.lane.buffers is not None else None
        self._rows_from = 0
        if self.skipped.size:
            self.dirty_skipped.add(0, int(self.skipped.view["index"][-1]) + 1)

    def renumber(self, old: Cuts, new: Cuts) -> None:
        """Another rank took a step that this one left out, so that its later ones have other numbers."""
        self.cuts = new
        self.lane.replicas[:] = [
            msgspec.structs.replace(x, step=new.one(old.one_own(x.step))) for x in self.lane.replicas
        ]
        index = self.steps.view["index"].astype(np.int64)
        fresh = new.common(old.own(index))
        changed = np.flatnonzero(fresh != index)
        if len(changed):
            first = int(min(index[changed[0]], fresh[changed[0]]))
            self.steps.view["index"] = fresh
            self.renumbered = min(self.renumbered, first)
            self.dirty_steps.add(first, int(max(index[-1], fresh[-1])) + 1)

    def judge(self) -> None:
        """This rank's own verdicts, of what is new or changed."""
        passes = self.passes.view
        n = len(passes)
        steps_from = self._rows_from
        if self.dirty_passes:
            low = min(self.dirty_passes.low, n)
            for column in (self.sync, self.failed, self.counts, self.averaged):
                column.grow(n)
            self.averaged.grow(n + 1)
            sync = self.sync.view
            sync[low:n] = verdicts.sync_of(passes[low:], self.failed.view[low:n])
            averaged = self.averaged.view
            good = (sync[low:n] == 1) | (sync[low:n] == 2)
            averaged[low + 1 : n + 1] = averaged[low] + np.cumsum(good)
            steps_from = min(steps_from, bisect_left(self.steps.view["after"], low))
        flagged = self._flagged.view
        if len(flagged) > self._flagged_seen:
            least = flagged[self._flagged_seen :].min()
            self._flagged_seen = len(flagged)
            steps_from = min(steps_from, bisect_right(self.steps.view["collective"], least))
        self._rows_from = 1 << 62
        if steps_from < self.steps.size:
            self._judge_steps(steps_from)
        self._publish()

    def _judge_steps(self, low: int) -> None:
        for column in (self.own, self.gradients, self.sent, self.carried):
            column.grow(self.steps.size)
        steps, passes, n = self.steps.view, self.passes.view, self.passes.size
        new = steps[low:]
        self.own.view[low:] = verdicts.gradients_of(new, passes, self.sync.view, self.averaged.view, self._ranks)
        self.gradients.view[low:] = self.own.view[low:]
        sent = new["by_hand"].astype(np.int64)
        if low:
            before = steps[low - 1 : -1]
        else:
            before = np.concatenate([new[:1], new[:-1]])
            before["window"][0] = new["window"][0]  # nothing before the first
        # by_hand counts since the last pass; where gradients came without one, since the step before
        again = (before["after"] == new["after"]) & (before["window"] != new["window"])
        self.sent.view[low:] = sent - np.where(again, before["by_hand"], 0)
        if len(self._flagged.view):
            after = np.minimum(np.maximum(new["after"], 0), max(n - 1, 0)).astype(np.int64)
            since = np.zeros(len(new), np.int64)
            if n:
                since = passes["collective"][after].astype(np.int64) + passes["collectives"][after]
                since = np.where((new["after"] >= 0) & (new["after"] < n), since, 0)
            since = np.where(again, before["collective"], since)
            flagged = self._flagged.view
            until = np.searchsorted(flagged, new["collective"], "left")
            self.carried.view[low:] = until > np.searchsorted(flagged, since, "left")
        index = steps["index"]
        self.dirty_steps.add(int(index[low]), int(index[-1]) + 1)

    def _publish(self) -> None:
        lane, n = self.lane, self.passes.size
        lane.passes, lane.sync, lane.counts = self.passes.view, self.sync.view, self.counts.view[:n]
        lane.buckets, lane.layers, lane.clears = self.buckets.view, self.layers.view, self.clears.view
        lane.steps, lane.gradients, lane.skipped = self.steps.view, self.gradients.view, self.skipped.view
