"""Steps of all modules and ranks, aligned by index: a sequence of `Step` that is columns underneath.

A million steps are columns of a few bytes each; a `Step` is built when one is asked for. Rules and widgets that look
for the wrong ones read the arrays (`gradients`, `replicas`, ...), which are by position like the sequence itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

import numpy as np
import numpy.typing as npt

from ddpviz.timeline import verdicts
from ddpviz.timeline.columns import Column
from ddpviz.timeline.lanes import Dirty, LaneFold
from ddpviz.timeline.model import Gradients, Module, Replicas, Rows, Step, StepPart
from ddpviz.trace import records as r

if TYPE_CHECKING:
    from ddpviz.timeline.model import Timeline

_NOT_THERE = verdicts.NOT_THERE
# Members of enums are looked up once: each access costs a microsecond.
_HAS_GRAD = int(r.StepFlag.HAS_GRAD)
_HAS_PARAM = int(r.StepFlag.HAS_PARAM)
_LOCAL = int(Gradients.LOCAL)
_MIXED = int(Gradients.MIXED)
_LATE = np.iinfo(np.int64).max
_BLOCK = 1 << 16  # steps judged at once: bounds the memory of a long recording


class ModuleSteps:
    """One module's steps over its ranks, by step index."""

    def __init__(self, module: Module, skipped: bool) -> None:
        self.module = module
        self.skipped = skipped
        self.places: dict[int, Column] = {}  # rank -> position of each step among its rows, -1: none
        self.gradients = Column(np.uint8, _NOT_THERE)
        self.replicas = Column(np.uint8)
        self.equal = Column(np.int8, -1)  # gradients as used: 1, 0, -1 not measured
        self.in_phase = Column(np.bool_)
        self.begin = Column(np.int64, _LATE)
        self.end = Column(np.int64)

    def update(self, lanes: dict[int, LaneFold]) -> Dirty:
        """Judges the steps that changed on any rank; returns their range."""
        dirty = Dirty()
        for rank, lane in lanes.items():
            changed = lane.dirty_skipped if self.skipped else lane.dirty_steps
            if not changed:
                continue
            index = self._rows(lane)["index"]
            low, high = bisect_left(index, changed.low), bisect_left(index, changed.high)
            places = self.places.setdefault(rank, Column(np.int32, -1))
            places.grow(int(index[-1]) + 1)
            places.view[index[low:high]] = np.arange(low, high)
            dirty.add(changed.low, changed.high)
        if dirty:
            for column in (self.gradients, self.replicas, self.equal, self.in_phase, self.begin, self.end):
                column.grow(dirty.high)
            for low in range(dirty.low, dirty.high, _BLOCK):
                self._judge(lanes, low, min(low + _BLOCK, dirty.high))
        return dirty

    def _rows(self, lane: LaneFold) -> Rows:
        return lane.skipped.view if self.skipped else lane.steps.view

    def _judge(self, lanes: dict[int, LaneFold], low: int, high: int) -> None:
        ranks, size = self.module.ranks, high - low
        shape = (len(ranks), size)
        there, has_grad, has_param = (np.zeros(shape, np.bool_) for _ in range(3))
        grads, params = np.zeros(shape, np.uint64), np.zeros(shape, np.uint64)
        after = np.zeros(shape, np.int64)
        own = np.full(shape, _NOT_THERE, np.uint8)
        where: list[tuple[LaneFold, npt.NDArray[np.int64], npt.NDArray[np.int32]] | None] = []
        begin, end = np.full(size, _LATE), np.zeros(size, np.int64)
        for k, rank in enumerate(ranks):
            where.append(None)
            if rank not in self.places or rank not in lanes:
                continue
            places = self.places[rank].view[low:high]
            at = np.flatnonzero(places >= 0)
            if not len(at):
                continue
            rows = self._rows(lanes[rank])[places[at]]
            where[k] = (lanes[rank], at, places[at])
            there[k, at] = True
            after[k, at] = rows["after"]
            has_grad[k, at] = rows["flags"] & _HAS_GRAD != 0
            has_param[k, at] = rows["flags"] & _HAS_PARAM != 0
            grads[k, at], params[k, at] = rows["grad_checksum"], rows["param_checksum"]
            begin[at] = np.minimum(begin[at], rows["begin"])
            end[at] = np.maximum(end[at], rows["end"])
            if not self.skipped:
                own[k, at] = lanes[rank].own.view[places[at]]
        equal = verdicts.equality(grads, has_grad, after, there)
        replicas = verdicts.equality(params, has_param, after, there)
        if not self.skipped and ((own >= _LOCAL) & (own <= _MIXED)).any():
            numel = self.module.numel
            for k, known in enumerate(where):
                if known is not None:
                    lane, at, places = known
                    final = verdicts.by_hand(
                        own[k, at], lane.sent.view[places], lane.carried.view[places], numel, equal[at]
                    )
                    own[k, at] = lane.gradients.view[places] = final
        some = there.any(0)
        part = slice(low, high)
        self.gradients.view[part] = np.where(some, verdicts.gradients_across(own), _NOT_THERE)
        self.replicas.view[part] = np.choose(replicas + 1, [Replicas.UNKNOWN, Replicas.DIVERGED, Replicas.EQUAL])
        self.equal.view[part], self.in_phase.view[part] = equal, verdicts.in_phase(after, there)
        self.begin.view[part], self.end.view[part] = begin, end

    def has(self, index: int) -> bool:
        return index < self.gradients.size and self.gradients.view[index] != _NOT_THERE

    def rows(self, lanes: dict[int, LaneFold], index: int) -> Iterator[tuple[int, int, Rows | None]]:
        """(rank, position, row) of one step, by position in Module.ranks."""
        for rank in self.module.ranks:
            places = self.places.get(rank)
            place = int(places.view[index]) if places is not None and index < places.size else -1
            yield rank, place, self._rows(lanes[rank])[place] if place >= 0 and rank in lanes else None


class StepTable(Sequence[Step]):
    """Executed steps (or skipped ones) in call order; slicing gives a list.

    `gradients`, `replicas`, `in_phase`, `begin`, `end` and `indices` are arrays by position.
    """

    def __init__(self, timeline: Timeline, skipped: bool = False) -> None:
        self._timeline, self._skipped = timeline, skipped
        self._modules: dict[int, tuple[ModuleSteps, dict[int, LaneFold]]] = {}
        self._gradients = Column(np.uint8, _NOT_THERE)
        self._replicas = Column(np.uint8)
        self._in_phase = Column(np.bool_)
        self._begin = Column(np.int64, _LATE)
        self._end = Column(np.int64)
        self._order: npt.NDArray[np.int64] | None = None  # indices that some module has; None: all

    def update(self, module: Module, lanes: dict[int, LaneFold]) -> bool:
        """Takes in what changed in one module's lanes (the fold calls this)."""
        if module.id not in self._modules:
            self._modules[module.id] = (ModuleSteps(module, self._skipped), lanes)
        dirty = self._modules[module.id][0].update(lanes)
        if dirty:
            for low in range(dirty.low, dirty.high, _BLOCK):
                self._combine(low, min(low + _BLOCK, dirty.high))
            there = self._gradients.view != _NOT_THERE
            self._order = None if there.all() else np.flatnonzero(there)
        return bool(dirty)

    def _combine(self, low: int, high: int) -> None:
        """Over the modules: gradients that differ are MIXED, one diverged module is enough, EQUAL takes all of them."""
        for column in (self._gradients, self._replicas, self._in_phase, self._begin, self._end):
            column.grow(high)
        size = high - low
        by_module, replicas = [], []
        phase = np.ones(size, np.bool_)
        begin, end = np.full(size, _LATE), np.zeros(size, np.int64)
        for steps, _ in self._modules.values():
            mine = np.full(size, _NOT_THERE, np.uint8)
            part = slice(low, min(high, steps.gradients.size))
            n = max(0, part.stop - low)
            mine[:n] = steps.gradients.view[part]
            by_module.append(mine)
            theirs = np.full(size, _NOT_THERE, np.uint8)
            theirs[:n] = np.where(mine[:n] == _NOT_THERE, _NOT_THERE, steps.replicas.view[part])
            replicas.append(theirs)
            phase[:n] &= steps.in_phase.view[part] | (mine[:n] == _NOT_THERE)
            begin[:n] = np.minimum(begin[:n], steps.begin.view[part])
            end[:n] = np.maximum(end[:n], steps.end.view[part])
        grads, reps = np.array(by_module), np.array(replicas)
        some = (grads != _NOT_THERE).any(0)
        view = slice(low, high)
        self._gradients.view[view] = np.where(some, verdicts.gradients_across(grads), _NOT_THERE)
        all_equal = ((reps == Replicas.EQUAL) | (reps == _NOT_THERE)).all(0)
        worst = np.where((reps == Replicas.DIVERGED).any(0), Replicas.DIVERGED, Replicas.UNKNOWN)
        self._replicas.view[view] = np.where(all_equal, Replicas.EQUAL, worst)
        self._in_phase.view[view], self._begin.view[view], self._end.view[view] = phase, begin, end

    def _pick(self, column: Column) -> npt.NDArray[np.int64]:
        return column.view if self._order is None else column.view[self._order]

    @property
    def gradients(self) -> npt.NDArray[np.uint8]:
        """`Gradients` of each step."""
        return self._pick(self._gradients).view(np.uint8)

    @property
    def replicas(self) -> npt.NDArray[np.uint8]:
        """`Replicas` after each step."""
        return self._pick(self._replicas).view(np.uint8)

    @property
    def in_phase(self) -> npt.NDArray[np.bool_]:
        return self._pick(self._in_phase).view(np.bool_)

    @property
    def begin(self) -> npt.NDArray[np.int64]:
        return self._pick(self._begin)

    @property
    def end(self) -> npt.NDArray[np.int64]:
        return self._pick(self._end)

    @property
    def indices(self) -> npt.NDArray[np.int64]:
        """Step index of each position (the position itself, unless some steps held no DDP module)."""
        return np.arange(self._gradients.size) if self._order is None else self._order

    def __len__(self) -> int:
        return self._gradients.size if self._order is None else len(self._order)

    @overload
    def __getitem__(self, at: int) -> Step: ...
    @overload
    def __getitem__(self, at: slice) -> list[Step]: ...
    def __getitem__(self, at: int | slice) -> Step | list[Step]:
        if isinstance(at, slice):
            return [self._build(k) for k in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        return self._build(at % len(self))

    def __iter__(self) -> Iterator[Step]:
        return (self._build(k) for k in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(Step.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def _build(self, position: int) -> Step:
        index = position if self._order is None else int(self._order[position])
        parts, first = [], None
        for steps, lanes in self._modules.values():
            if not steps.has(index):
                continue
            after: list[int | None] = []
            by_rank: list[Gradients | None] = []
            for rank, place, row in steps.rows(lanes, index):
                if row is None:
                    after.append(None)
                    by_rank.append(None)
                    continue
                after.append(int(row["after"]))
                by_rank.append(Gradients.NONE if self._skipped else Gradients(int(lanes[rank].gradients.view[place])))
                if first is None or rank < first[0]:
                    first = (rank, int(row["site"]), int(row["optimizer"]))
            equal = int(steps.equal.view[index])
            parts.append(
                StepPart(
                    module=steps.module.id,
                    after=tuple(after),
                    gradients=Gradients.NONE if self._skipped else Gradients(int(steps.gradients.view[index])),
                    by_rank=tuple(by_rank),
                    replicas=Replicas(int(steps.replicas.view[index])),
                    grads_equal=None if equal < 0 else bool(equal),
                )
            )
        rank, site, optimizer = first or (0, 0, -1)
        known = self._timeline.optimizers.get((rank, optimizer))
        return Step(
            index=index,
            parts=tuple(parts),
            begin=int(self._begin.view[index]),
            end=int(self._end.view[index]),
            site=self._timeline.site(rank, site),
            optimizer=known.name if known is not None else "",
            in_phase=bool(self._in_phase.view[index]),
        )
