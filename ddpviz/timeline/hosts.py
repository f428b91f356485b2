"""The processes of a job by their hosts, and the hosts' clocks on one: how each process's times become the run's."""

from __future__ import annotations

from ddpviz.timeline import align, modules as m
from ddpviz.timeline.columns import Column, Shift, shift_rows
from ddpviz.timeline.lanes import LaneFold
from ddpviz.timeline.model import Timeline
from ddpviz.trace import records as r


class Source:
    """One process: how its clock and its ids translate into the run's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process: r.Process | None = None
        self.rank: int | None = None
        self.introduced = False  # its Process record has been taken in
        self.shift = 0  # added to this process's monotonic times
        self.clock: align.Clock | None = None  # ... and then this, once the hosts' clocks are compared
        self.groups: dict[int, int] = {}  # its id -> key in Timeline.groups
        self.modules: dict[int, m.ModuleFold] = {}
        self.waiting: list[tuple[r.RowKind, bytes]] = []  # rows of modules or groups not yet announced
        self.calm: int | None = None  # `progress` of the first beat after the stack that stands


class Hosts:
    """Of one job. `align` after each feed sets the clocks of all hosts but the first rank's."""

    def __init__(
        self, timeline: Timeline, modules: list[m.ModuleFold], collectives: dict[tuple[int, int], Column]
    ) -> None:
        self.sources: dict[str, list[Source]] = {}
        self.clocks: dict[str, align.Clock] = {}  # what has been done to a host's times, beside its wall clock
        self._compared: dict[str, int] = {}  # ... from how many buckets
        self._timeline, self._modules, self._collectives = timeline, modules, collectives

    def align(self) -> None:
        """Sets other hosts' clocks by the all-reduces shared with the first rank's host: each time there are twice as
        many, from a number of buckets that is a power of two, so that how the blocks came makes no difference."""
        if len(self.sources) < 2:
            return
        host_of = {source.rank: host for host, sources in self.sources.items() for source in sources}
        reference = host_of[min(rank for rank in host_of if rank is not None)]
        done: set[str] = set()
        for fold in self._modules:
            lanes: dict[str, LaneFold] = {}  # of each host's first rank
            for rank in sorted(fold.lanes):
                lanes.setdefault(host_of[rank], fold.lanes[rank])
            if (mine := lanes.pop(reference, None)) is None:
                continue
            for host in lanes.keys() - done:
                size = min(mine.buckets.size, lanes[host].buckets.size)
                size = 1 << size.bit_length() - 1 if size else 0
                if size <= self._compared.get(host, 0):
                    continue
                known = self.clocks.get(host, align.Clock())
                found = align.fit(mine.buckets.view[:size], lanes[host].buckets.view[:size], known)
                if found is not None:
                    done.add(host)
                    self._compared[host] = size
                    self.clocks[host], self._timeline.clocks[host] = found
                    self._shift(host, align.change(known, found[0]))

    def _shift(self, host: str, by: Shift) -> None:
        tl = self._timeline
        for source in self.sources[host]:
            source.clock = self.clocks[host]
            rank = source.rank or 0
            align.shift_state(tl.ranks[rank], by)
            if rank in tl.unmanaged:
                tl.unmanaged[rank] = [align.later(record, by) for record in tl.unmanaged[rank]]
            for fold in self._modules:
                if rank in fold.lanes:
                    fold.lanes[rank].shift(by)
            for (of, _), column in self._collectives.items():
                if of == rank:
                    shift_rows(r.RowKind.COLLECTIVE, column.view, by)
        tl.now_ns = max(state.last_ns for state in tl.ranks.values())
