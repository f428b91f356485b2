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
_GRADIENTS, _REPLICAS = tuple(Gradients), tuple(Replicas)
_AT_ONCE = 1024  # steps built at once by iteration
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
            if not self.skipped:
                places.view[lane.renumbered :] = -1
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

    @property
    def there(self) -> npt.NDArray[np.bool_]:
        """By step index: whether any rank took that step on this module. `gradients`, `replicas`, `equal` have a place
        for each index, to be read through `.view`."""
        return np.asarray(self.gradients.view != _NOT_THERE)

    def parts(
        self, lanes: dict[int, LaneFold], index: npt.NDArray[np.int64], first: list[tuple[int, int, int] | None]
    ) -> Iterator[tuple[int, StepPart]]:
        """(position in `index`, part) of those of the steps that this module has. `first` gets, for each position, the
        lowest rank that took it, with that rank's site and optimizer."""
        if not self.gradients.size:  # a module that took no step
            return
        inside = np.minimum(index, self.gradients.size - 1)
        there = (index < self.gradients.size) & (self.gradients.view[inside] != _NOT_THERE)
        at = np.flatnonzero(there).tolist()
        index = index[there]
        after, by_rank = [], []
        for rank in self.module.ranks:
            its_after: list[int | None] = [None] * len(at)
            its_gradients: list[Gradients | None] = [None] * len(at)
            after.append(its_after)
            by_rank.append(its_gradients)
            if rank not in self.places or rank not in lanes or not len(at):
                continue
            places = self.places[rank].view
            place = np.where(index < len(places), places[np.minimum(index, len(places) - 1)], -1)
            rows = self._rows(lanes[rank])[place[place >= 0]]
            used = np.full(len(rows), int(Gradients.NONE))
            if not self.skipped:
                used = lanes[rank].gradients.view[place[place >= 0]]
            values = (rows["after"].tolist(), used.tolist(), rows["site"].tolist(), rows["optimizer"].tolist())
            for k, last, grads, site, optimizer in zip(np.flatnonzero(place >= 0).tolist(), *values, strict=True):
                its_after[k] = last
                its_gradients[k] = _GRADIENTS[grads]
                known = first[at[k]]
                if known is None or rank < known[0]:
                    first[at[k]] = (rank, site, optimizer)
        columns = (self.gradients.view[index], self.replicas.view[index], self.equal.view[index])
        whole = zip(
            at, *(c.tolist() for c in columns), zip(*after, strict=True), zip(*by_rank, strict=True), strict=True
        )
        for k, gradients, replicas, equal, last, grads in whole:
            yield (
                k,
                StepPart(
                    module=self.module.id,
                    after=last,
                    gradients=_GRADIENTS[gradients],
                    by_rank=grads,
                    replicas=_REPLICAS[replicas],
                    grads_equal=None if equal < 0 else bool(equal),
                ),
            )


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
            return self._build(np.arange(*at.indices(len(self))))
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        return self._build(np.array([at % len(self)]))[0]

    def __iter__(self) -> Iterator[Step]:
        for low in range(0, len(self), _AT_ONCE):
            yield from self._build(np.arange(low, min(low + _AT_ONCE, len(self))))

    def of(self, module: int) -> ModuleSteps | None:
        """One module's own columns, by step index; None if it took no step."""
        known = self._modules.get(module)
        return known[0] if known is not None else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(Step.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def _build(self, positions: npt.NDArray[np.int64]) -> list[Step]:
        """The steps at these positions: some microseconds each, by the block."""
        index = positions if self._order is None else self._order[positions]
        first: list[tuple[int, int, int] | None] = [None] * len(index)
        parts: list[list[StepPart]] = [[] for _ in first]
        for steps, lanes in self._modules.values():
            for k, part in steps.parts(lanes, index, first):
                parts[k].append(part)
        columns = (index, self._begin.view[index], self._end.view[index], self._in_phase.view[index])
        out = []
        for k, (number, begin, end, in_phase) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            rank, site, optimizer = first[k] or (0, 0, -1)
            known = self._timeline.optimizers.get((rank, optimizer))
            out.append(
                Step(
                    index=number,
                    parts=tuple(parts[k]),
                    begin=begin,
                    end=end,
                    site=self._timeline.site(rank, site),
                    optimizer=known.name if known is not None else "",
                    in_phase=in_phase,
                )
            )
        return out
