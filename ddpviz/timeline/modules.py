"""One DDP module over its ranks: verdicts across ranks, kept up to date feed by feed."""

from __future__ import annotations

import numpy as np

from ddpviz.timeline import verdicts
from ddpviz.timeline.columns import Column
from ddpviz.timeline.lanes import Dirty, LaneFold
from ddpviz.timeline.model import Module, Param, RankState, Site, Sync
from ddpviz.trace import records as r

_Status = tuple[bool, "int | None", "int | None"]  # alive; joined after; pass that it is stuck in


def new_module(number: int, record: r.Module, group: int, ranks: tuple[int, ...]) -> Module:
    """The public Module of a rank's record."""
    return Module(
        id=number,
        name=record.name,
        params=[Param(name, numel) for name, numel in zip(record.params, record.numels, strict=False)],
        group=group,
        ranks=ranks,
        dtype=record.dtype,
        itemsize=record.itemsize,
        options=dict(record.options),
        site=Site(),
        layouts=[],
        lanes={},
    )


class ModuleFold:
    """Builds `module`: the `ordinal`-th of its group on every rank, since construction order is what DDP pairs by."""

    def __init__(self, module: Module, ordinal: int, site: tuple[int, int]) -> None:
        self.module = module
        self.site = site  # rank and its id of the place of construction
        self.group = module.group
        self.ordinal = ordinal
        self.lanes: dict[int, LaneFold] = {}
        self._verdicts = Column(np.uint8, Sync.ABSENT)
        self._status: dict[int, _Status] = {}

    def lane(self, rank: int, flagged: Column) -> LaneFold:
        if rank not in self.lanes:
            self.lanes[rank] = LaneFold(rank, len(self.module.ranks), flagged)
            in_order = rank > next(reversed(self.module.lanes), -1)
            self.module.lanes[rank] = self.lanes[rank].lane
            if not in_order:
                self.module.lanes = {k: self.lanes[k].lane for k in sorted(self.lanes)}
        return self.lanes[rank]

    def judge(self, ranks: dict[int, RankState], live: bool) -> None:
        """Each rank's own verdicts, then the ones across ranks, of the passes that changed."""
        changed = Dirty()
        for lane in self.lanes.values():
            lane.judge()
            changed.add(lane.dirty_passes.low, lane.dirty_passes.high)
        sizes = {rank: lane.passes.size for rank, lane in self.lanes.items()}
        size = max(sizes.values(), default=0)
        status = {rank: self._status_of(ranks.get(rank), live, sizes.get(rank, 0)) for rank in self.module.ranks}
        for _, _, stuck in status.values():
            if stuck is not None:
                size = max(size, stuck + 1)
        if status != self._status or size != self._verdicts.size:
            # who is still to report has changed: everything that some rank has not reported
            changed.add(min((sizes.get(rank, 0) for rank in self.module.ranks), default=0), size)
            self._status = status
        if not changed:
            return
        if size < self._verdicts.size:
            self._verdicts.size = size
        self._verdicts.grow(size)
        low, high = changed.low, min(changed.high, size)
        if low < high:
            self._across(status, low, high)
        self.module.verdicts = self._verdicts.view

    def _status_of(self, state: RankState | None, live: bool, size: int) -> _Status:
        """Alive means that it may still report. Stuck: inside the pass after its last, as its stack says."""
        if state is None:
            return live, None, None
        alive = live and state.exit is None and state.signal is None and state.exit_code is None
        stack = state.stack
        inside = stack is not None and stack.module == self.module.id and stack.pass_index == size
        return alive, state.joined.get(self.module.id), size if inside else None

    def _across(self, status: dict[int, _Status], low: int, high: int) -> None:
        own, expected, counts = [], [], []
        for rank, (alive, joined, stuck) in status.items():
            lane = self.lanes.get(rank)
            sync = lane.sync.view[low:high] if lane is not None else np.zeros(0, np.uint8)
            if stuck is not None and not alive and low <= stuck < high:
                sync = np.append(sync, np.uint8(Sync.UNFINISHED))
            own.append(sync)
            until = high if alive else 0
            expected.append(max(0, min(until, high if joined is None else joined + 1) - low))
            if lane is not None:
                counts.append(lane.counts.view[low : min(high, lane.passes.size)])
        self._verdicts.view[low:high] = verdicts.across(own, expected, high - low)
        self._drift(counts, low, high)

    def _drift(self, counts: list[np.ndarray[tuple[int], np.dtype[np.uint32]]], low: int, high: int) -> None:
        """First pass whose first all-reduce has another count on another rank: it met another micro-step's."""
        known = self.module.drift
        if known is not None and known < low:
            return
        least = np.full(high - low, r.NO_INDEX, np.uint32)
        most = np.zeros(high - low, np.uint32)
        for mine in counts:
            least[: len(mine)] = np.minimum(least[: len(mine)], mine)
            most[: len(mine)] = np.maximum(most[: len(mine)], np.where(mine == r.NO_INDEX, 0, mine))
        apart = np.flatnonzero((least != r.NO_INDEX) & (least != most))
        if len(apart):
            self.module.drift = low + int(apart[0])
        elif known is not None and known < high:
            self.module.drift = None

    def settled(self) -> None:
        """The feed is over: nothing is left to judge."""
        for lane in self.lanes.values():
            lane.dirty_passes, lane.dirty_steps, lane.dirty_skipped = Dirty(), Dirty(), Dirty()
            lane.renumbered = 1 << 62
