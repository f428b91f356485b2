"""One job of a run folder (one attempt of one rendezvous): its processes' records and rows, as one Timeline."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
import numpy as np

from ddpviz.timeline import align, modules as m
from ddpviz.timeline.columns import Column, decode, shift_rows
from ddpviz.timeline.hosts import Hosts, Source
from ddpviz.timeline.lanes import LaneFold
from ddpviz.timeline.model import GroupState, Layout, Param, RankState, Rows, Site, Timeline
from ddpviz.timeline.numbering import Numbering
from ddpviz.timeline.plausible import Plausible
from ddpviz.timeline.steps import StepTable
from ddpviz.trace import records as r
from ddpviz.trace.reader import MOST_RANKS

# Members of enums are looked up once: each access costs a microsecond.
_PASS = r.RowKind.PASS
_BUCKET = r.RowKind.BUCKET
_STEP = r.RowKind.STEP
_CLEAR = r.RowKind.CLEAR
_COLLECTIVE = r.RowKind.COLLECTIVE
_IN_PASS = int(r.CollectiveFlag.IN_PASS)
_ASYNC = int(r.CollectiveFlag.ASYNC)
_GRADIENTS = int(r.CollectiveFlag.GRADIENTS)
_LAYOUTS = 1 << 10  # bucket layouts of a module that are believed: PyTorch rebuilds once
_Known = TypeVar("_Known")


def group_key(name: str, ranks: Iterable[int]) -> int:
    """The same number for the same group, whoever reports it and whenever."""
    return zlib.crc32(f"{name}:{','.join(map(str, ranks))}".encode())


class JobFold:
    """Builds `timeline` from the sources of one job."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.timeline.steps = self._steps = StepTable(self.timeline)
        self.timeline.skipped = self._skipped = StepTable(self.timeline, skipped=True)
        self._numbering = Numbering(lambda k: self._modules[k].module.ranks)
        self.live = True  # the run is not over: ranks may still report
        self.notes: dict[str, set[int]] = {}
        self._group_keys: dict[tuple[str, int | tuple[int, ...]], int] = {}
        self._plausible = Plausible()
        self._modules: list[m.ModuleFold] = []
        self._of_group: dict[tuple[int, int], int] = {}  # (rank, group key) -> modules seen so far
        self._flagged: dict[tuple[int, int], Column] = {}  # (rank, group key) -> counts that carried gradients
        self._collectives: dict[tuple[int, int], Column] = {}
        self._touched_groups: set[tuple[int, int]] = set()
        self._hosts = Hosts(self.timeline, self._modules, self._collectives)

    @property
    def micro_steps(self) -> int:
        """Over all modules: the most passes that any rank has reported."""
        return sum(max((lane.passes.size for lane in fold.lanes.values()), default=0) for fold in self._modules)

    @property
    def worked(self) -> bool:
        """Whether any rank reported a pass or a step."""
        return any(lane.passes.size or lane.steps.size for fold in self._modules for lane in fold.lanes.values())

    # records

    def record(self, source: Source, record: r.Record) -> None:
        rank = source.rank
        if rank is None:
            return
        state = self.timeline.ranks.setdefault(rank, RankState(rank))
        record = align.later(record, source.shift)
        if source.clock is not None:
            record = align.later(record, source.clock.by)
        self._heard(state, getattr(record, "at", 0))
        take = _TAKE.get(type(record))
        if take is not None:
            take(self, source, state, record)

    def _heard(self, state: RankState, at: int) -> None:
        state.last_ns = max(state.last_ns, at)
        self.timeline.now_ns = max(self.timeline.now_ns, at)

    def _process(self, source: Source, state: RankState, record: r.Process) -> None:
        state.host, state.pid, state.attempt = record.host, record.pid, record.attempt
        state.debug = record.distributed_debug
        if source.introduced:
            return  # said again
        source.introduced = True
        source.clock = self._hosts.clocks.get(record.host)
        state.started_ns = record.monotonic_ns + source.shift
        if source.clock is not None:
            state.started_ns = align.moved(state.started_ns, source.clock.by)
        self._heard(state, state.started_ns)
        self._hosts.sources.setdefault(record.host, []).append(source)
        run = self.timeline.run
        run.torch, run.ddpviz, run.observed_by = record.torch, record.ddpviz, record.observed_by
        run.redirected, run.budget = run.redirected or record.redirected, record.budget

    def _rank_is(self, source: Source, state: RankState, record: r.RankIs) -> None:
        state.local_rank, state.backend, state.device = record.local_rank, record.backend, record.device
        run = self.timeline.run
        if record.world_size <= MOST_RANKS:
            run.world_size = max(run.world_size, record.world_size)
        run.backend = run.backend or record.backend

    def _group(self, source: Source, state: RankState, record: r.Group) -> None:
        span = min(record.span, MOST_RANKS)
        known = (record.name, span if span and not record.ranks else tuple(record.ranks))
        key = self._group_keys.get(known)
        if key is None:
            ranks = tuple(record.ranks) or tuple(range(span))
            key = self._group_keys[known] = group_key(record.name, ranks)
            if key not in self.timeline.groups:
                self.timeline.groups[key] = GroupState(key, record.name, ranks, record.backend)
        source.groups[record.id] = key
        state.collectives.setdefault(key, 0)
        self._retry(source)

    def _site(self, source: Source, state: RankState, record: r.Site) -> None:
        site = Site(record.file, record.line, record.function, record.code, record.via)
        self.timeline.sites[state.rank, record.id] = site

    def _module(self, source: Source, state: RankState, record: r.Module) -> None:
        key = source.groups.get(record.group, -1)
        ordinal = self._of_group.get((state.rank, key), 0)
        self._of_group[state.rank, key] = ordinal + 1
        fold = next((f for f in self._modules if (f.group, f.ordinal) == (key, ordinal)), None)
        if fold is None:
            group = self.timeline.groups.get(key)
            ranks = group.ranks if group is not None else (state.rank,)
            fold = m.ModuleFold(
                m.new_module(len(self._modules), record, key, ranks), ordinal, (state.rank, record.site)
            )
            self._modules.append(fold)
            self.timeline.modules.append(fold.module)
        source.modules[record.id] = fold
        self._lane_of(state.rank, fold)
        self._retry(source)

    def _layout(self, source: Source, state: RankState, record: r.Layout) -> None:
        fold = source.modules.get(record.module)
        if fold is not None and 0 <= record.layout < _LAYOUTS:
            layouts = fold.module.layouts
            new = Layout([tuple(b) for b in record.buckets], list(record.bytes), record.at)
            while len(layouts) < record.layout:  # one was lost: what is known stands in, so that the indices hold
                layouts.append(new)
            if len(layouts) == record.layout:
                layouts.append(new)
            layouts[record.layout].at = min(layouts[record.layout].at, record.at)

    def _unmanaged(self, source: Source, state: RankState, record: r.Unmanaged) -> None:
        if (fold := source.modules.get(record.module)) is not None:
            params = fold.module.params
            news = [Param(n, k, False, record.reason) for n, k in zip(record.names, record.numels, strict=False)]
            params.extend(news[max(0, len(params) - record.first) :])
            record = msgspec.structs.replace(record, module=fold.module.id)
            self.timeline.unmanaged.setdefault(state.rank, []).append(record)

    def _of_lane(self, source: Source, state: RankState, record: Any) -> None:
        """Records that a lane keeps: the ids in them become the timeline's."""
        fold = source.modules.get(record.module)
        if fold is None:
            return
        record = msgspec.structs.replace(record, module=fold.module.id)
        lane = fold.module.lanes[state.rank]
        if isinstance(record, r.Unused):
            lane.unused = record
        elif isinstance(record, r.NonFinite):
            if lane.nonfinite is None or record.pass_index < lane.nonfinite.pass_index:
                lane.nonfinite = record
        elif isinstance(record, r.Clip):
            lane.clips.append(record)
        elif isinstance(record, r.Buffers):
            lane.buffers = record
        elif isinstance(record, r.Replica):
            cuts = fold.lanes[state.rank].cuts
            lane.replicas.append(msgspec.structs.replace(record, step=cuts.one(record.step)))
        elif isinstance(record, r.Unanswered):
            lane.unanswered.append(record)
        elif isinstance(record, r.HookIs):
            fold.module.hook = record.name
        elif isinstance(record, r.Joined):
            state.joined[fold.module.id] = record.after

    def _optimizer(self, source: Source, state: RankState, record: r.Optimizer) -> None:
        ids = [source.modules[k].module.id for k in record.modules if k in source.modules]
        self.timeline.optimizers[state.rank, record.id] = msgspec.structs.replace(record, modules=ids)

    def _learning(self, source: Source, state: RankState, record: r.Learning) -> None:
        cuts = self._numbering.cuts.get(state.rank)
        step = cuts.one(record.step) if cuts is not None else record.step
        self.timeline.learning.setdefault(state.rank, []).append(msgspec.structs.replace(record, step=step))

    def _stack(self, source: Source, state: RankState, record: r.Stack) -> None:
        fold = source.modules.get(record.module)
        key = source.groups.get(record.group, -1)
        state.stack = msgspec.structs.replace(record, module=fold.module.id if fold is not None else -1, group=key)
        source.calm = None
        if key >= 0 and record.count >= 0:
            state.collectives[key] = max(state.collectives.get(key, 0), record.count + 1)
        self._moved(state, state.progress_ns)

    def _beat(self, source: Source, state: RankState, record: r.Beat) -> None:
        if record.cpu_ns >= 0:
            grown, time = record.cpu_ns - state.cpu_ns, record.at - state.beat_ns
            if state.cpu_ns >= 0 and grown * 100 > time:
                state.busy_ns = record.at
            state.cpu_ns = record.cpu_ns
        state.beat_ns = record.at
        if record.progress > state.progress:
            state.progress = record.progress
            state.progress_ns = max(state.progress_ns, record.at)
        if state.stack is not None and record.at > state.stack.at:
            # the first beat after a stack may count what came just before it; growth after that is progress
            if source.calm is not None and record.progress > source.calm:
                state.stack = None
            source.calm = record.progress

    def _refused(self, source: Source, state: RankState, record: r.Refused) -> None:
        fold = source.modules.get(record.module)
        state.refused.append(msgspec.structs.replace(record, module=fold.module.id if fold is not None else -1))

    def _note(self, source: Source, state: RankState, record: r.Note) -> None:
        self.notes.setdefault(record.text, set()).add(state.rank)

    def _dropped(self, source: Source, state: RankState, record: r.Dropped) -> None:
        state.dropped += record.count

    def _exit(self, source: Source, state: RankState, record: r.Exit) -> None:
        state.exit = record
        if state.status == "finished":
            state.stack = None

    # rows

    def rows(self, source: Source, kind: r.RowKind, payload: bytes) -> None:
        rows = decode(kind, payload, source.shift)
        rank = source.rank
        if not len(rows) or rank is None:
            return
        if source.clock is not None:
            shift_rows(kind, rows, source.clock.by)
        state = self.timeline.ranks.setdefault(rank, RankState(rank))
        if kind is _COLLECTIVE:
            for key, part in self._split(source, kind, rows, payload, "group", source.groups):
                self._collective(state, key, part)
        else:
            for fold, part in self._split(source, kind, rows, payload, "module", source.modules):
                self._lane(state, fold, kind, part)

    def _split(
        self, source: Source, kind: r.RowKind, rows: Rows, payload: bytes, column: str, known: dict[int, _Known]
    ) -> Iterator[tuple[_Known, Rows]]:
        """The rows by module (or group), translated; those of one not announced yet wait for it."""
        ids = rows[column]
        alone = (ids == ids[0]).all()  # most blocks
        for k in ids[:1].tolist() if alone else np.unique(ids).tolist():
            part = rows if alone else rows[ids == k]
            if k in known:
                yield known[k], part
            else:  # it will be decoded again
                source.waiting.append((kind, decode(kind, payload, 0)[ids == k].tobytes()))

    def _retry(self, source: Source) -> None:
        waiting, source.waiting = source.waiting, []
        for kind, payload in waiting:
            self.rows(source, kind, payload)

    def _lane(self, state: RankState, fold: m.ModuleFold, kind: r.RowKind, rows: Rows) -> None:
        rows = self._plausible.rows(state.rank, fold.module.id, kind, rows)
        if not len(rows):
            return
        if kind is _STEP:
            self._numbering.add(state.rank, fold.module.id, rows)
        self._lane_of(state.rank, fold).add(kind, rows)
        issued = state.collectives.get(fold.group, 0)
        if kind is _PASS:
            # rows of a rank are in the order of time: the last one has the newest of each
            issued = max(issued, int(rows["collective"][-1]) + int(rows["collectives"][-1]))
            self._moved(state, int(rows["end"][-1]))
        elif kind is _BUCKET:
            top = int((rows["count"] + np.uint32(1)).max())  # NO_INDEX wraps to 0
            issued = max(issued, top)
            self._heard(state, max(int(rows["done"][-1]), int(rows["ready"][-1])))
        elif kind is _STEP:
            issued = max(issued, int(rows["collective"][-1]))
            self._moved(state, int(rows["end"][-1]))
        elif kind is _CLEAR:
            self._moved(state, int(rows["at"][-1]))
        state.collectives[fold.group] = issued

    def _lane_of(self, rank: int, fold: m.ModuleFold) -> LaneFold:
        new = rank not in fold.lanes
        lane = fold.lane(rank, self._flagged_of(rank, fold.group))
        if new and rank in self._numbering.cuts:
            lane.cuts = self._numbering.cuts[rank]
        return lane

    def _collective(self, state: RankState, key: int, rows: Rows) -> None:
        at = (state.rank, key)
        column = self._collectives.get(at)
        if column is None:
            column = self._collectives[at] = Column(rows.dtype)
        column.extend_sorted(rows, "count")
        self._touched_groups.add(at)
        issued = int(rows["count"].max()) + 1
        state.collectives[key] = max(state.collectives.get(key, 0), issued)
        carried = (rows["flags"] & _GRADIENTS != 0) & (rows["flags"] & _IN_PASS == 0)
        if carried.any():
            self._flagged_of(*at).extend(rows["count"][carried])
        self._heard(state, int(rows["end"].max()))
        waits = rows["flags"] & _ASYNC == 0
        self._moved(state, int(np.where(waits, rows["end"], rows["begin"]).max()))

    def _flagged_of(self, rank: int, key: int) -> Column:
        return self._flagged.setdefault((rank, key), Column(np.uint32))

    def _moved(self, state: RankState, at: int) -> None:
        """The main thread got somewhere at this time: what it was blocked in before is over."""
        self._heard(state, at)
        state.progress_ns = max(state.progress_ns, at)
        if state.stack is not None and state.progress_ns > state.stack.at:
            state.stack = None

    # after a feed

    def judge(self) -> None:
        """Brings every verdict up to date with what was taken in since the last call."""
        tl = self.timeline
        self._hosts.align()
        for rank, key in self._touched_groups:
            tl.groups[key].collectives[rank] = self._collectives[rank, key].view
        self._touched_groups.clear()
        for rank, old, new in self._numbering.update():
            for fold in self._modules:
                if rank in fold.lanes:
                    fold.lanes[rank].renumber(old, new)
            changes = tl.learning.get(rank, [])
            changes[:] = [msgspec.structs.replace(x, step=new.one(old.one_own(x.step))) for x in changes]
        for fold in self._modules:
            fold.module.site = tl.site(*fold.site)
            fold.judge(tl.ranks, self.live)
            self._steps.update(fold.module, fold.lanes)
            self._skipped.update(fold.module, fold.lanes)
            fold.settled()


_TAKE: dict[type[r.Record], Callable[[JobFold, Source, RankState, Any], None]] = {
    r.Process: JobFold._process,
    r.RankIs: JobFold._rank_is,
    r.Group: JobFold._group,
    r.Site: JobFold._site,
    r.Module: JobFold._module,
    r.Layout: JobFold._layout,
    r.Unmanaged: JobFold._unmanaged,
    r.Optimizer: JobFold._optimizer,
    r.Learning: JobFold._learning,
    r.Stack: JobFold._stack,
    r.Beat: JobFold._beat,
    r.Refused: JobFold._refused,
    r.Note: JobFold._note,
    r.Dropped: JobFold._dropped,
    r.Exit: JobFold._exit,
    **dict.fromkeys(
        (r.Unused, r.NonFinite, r.Clip, r.Buffers, r.Replica, r.Unanswered, r.HookIs, r.Joined), JobFold._of_lane
    ),
}
