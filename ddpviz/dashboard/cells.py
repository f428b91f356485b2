"""What the Sync timeline says, before it is drawn: per rank and pass a cell and a step mark; grouped and aggregated.

Pure functions over the timeline, by numpy: a call costs what is visible, not what the run holds. Aggregation is honest:
a column that covers many passes shows their mix, and always the worst of them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ddpviz.dashboard.moments import Ints, between
from ddpviz.dashboard.state import longest
from ddpviz.findings.model import Finding, Severity
from ddpviz.timeline.model import Gradients, Lane, Module, Sync, Timeline

Codes = npt.NDArray[np.uint8]


class Cell(IntEnum):
    """What one rank's pass is; the worse, the greater."""

    EMPTY = 0  # not there yet, or never will be
    ABSENT = 1  # the rank is gone or done, the others ran this pass
    LOCAL = 2
    SYNCED = 3
    RUNNING = 4
    WAITING = 5
    PARTIAL = 6
    UNFINISHED = 7
    DEAD = 8  # the rank ended here, and should not have


class Tick(IntEnum):
    """What stands behind a pass; the worse, the greater."""

    NONE = 0
    SKIPPED = 1
    STEP = 2
    LOCAL_STEP = 3  # local, and meant so: one rank alone, or local SGD
    STALE = 4
    WRONG = 5


_CELL_OF_SYNC = np.zeros(256, np.uint8)
for _sync, _cell in {
    Sync.LOCAL: Cell.LOCAL,
    Sync.SYNCED: Cell.SYNCED,
    Sync.PARTIAL: Cell.PARTIAL,
    Sync.MIXED: Cell.PARTIAL,
    Sync.UNFINISHED: Cell.UNFINISHED,
    Sync.RUNNING: Cell.RUNNING,
    Sync.ABSENT: Cell.ABSENT,
}.items():
    _CELL_OF_SYNC[_sync] = _cell
_TICK_OF_GRADIENTS = np.zeros(256, np.uint8)
for _gradients, _tick in {
    Gradients.SYNCED: Tick.STEP,
    Gradients.LOCAL: Tick.WRONG,
    Gradients.STALE: Tick.STALE,
    Gradients.MIXED: Tick.WRONG,
    Gradients.NONE: Tick.SKIPPED,
}.items():
    _TICK_OF_GRADIENTS[_gradients] = _tick


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the timeline: one rank, or several that did the same."""

    ranks: tuple[int, ...]
    cells: Codes  # Cell per visible column, the worst of its passes and ranks
    synced: npt.NDArray[np.float32]  # share of a column's passes that were all-reduced; NaN where there is none
    ticks: Codes  # Tick per visible column


@dataclass(frozen=True, slots=True)
class Grid:
    """What is visible: columns of `factor` passes each, from pass `first`."""

    first: int
    factor: int
    columns: int
    rows: tuple[Row, ...]
    bounds: npt.NDArray[np.bool_]  # per column: a window ends with its last pass
    mixed: npt.NDArray[np.bool_]  # per column: ranks disagreed
    steps: dict[int, int]  # column -> number of the last optimizer step behind it


@dataclass(frozen=True, slots=True)
class Whole:
    """The whole run over a few columns, all ranks in one."""

    cells: Codes
    synced: npt.NDArray[np.float32]  # the greatest share of any row
    ticks: Codes


def length(tl: Timeline, module: Module) -> int:
    """Passes to show: those reported, and the one that a rank is in."""
    inside = [
        state.stack.pass_index + 1
        for rank in module.ranks
        if (state := tl.ranks.get(rank)) is not None and state.stack is not None and state.stack.module == module.id
    ]
    return max([module.passes, *inside])


def meant_local(module: Module, findings: list[Finding]) -> bool:
    """Steps on local gradients are no mistake here: one rank alone, or the rule found local SGD."""
    if len(module.ranks) < 2:
        return True
    mine = [f.severity for f in findings if f.rule == "unsynced-step" and f.module in (module.id, None)]
    return bool(mine) and max(mine) is Severity.INFO


def cells(tl: Timeline, module: Module, rank: int, start: int, stop: int) -> Codes:
    """The cell of each pass from `start` to `stop` on one rank."""
    out = np.zeros(max(stop - start, 0), np.uint8)
    lane = module.lanes.get(rank)
    known = 0 if lane is None else len(lane.sync)
    if lane is not None and start < known:
        out[: min(stop, known) - start] = _CELL_OF_SYNC[lane.sync[start:stop]]
    if stop > known:
        out[max(known - start, 0) :] = _beyond(tl, module, rank, max(known, start), stop)
    return out


def _beyond(tl: Timeline, module: Module, rank: int, start: int, stop: int) -> Codes:
    """What a rank is at passes it has not reported."""
    out = np.zeros(stop - start, np.uint8)
    state = tl.ranks.get(rank)
    lane = module.lanes.get(rank)
    known = 0 if lane is None else len(lane.sync)
    if state is None:
        return out
    if state.status in ("failed", "died"):
        out[: module.passes - start] = Cell.ABSENT
        if start == known:
            out[0] = Cell.DEAD
    elif state.status == "finished" or module.id in state.joined:
        out[: max(module.passes - start, 0)] = Cell.ABSENT
    elif start == known:
        stack = state.stack
        waits = stack is not None and stack.doing != "computing"
        inside = stack is not None and stack.module == module.id and stack.pass_index == known
        if waits:
            out[0] = Cell.WAITING
        elif inside or start < module.passes:
            out[0] = Cell.RUNNING
    return out


def ticks(module: Module, lane: Lane | None, start: int, stop: int, *, meant: bool) -> Codes:
    """What stands behind each pass from `start` to `stop` on one rank."""
    out = np.zeros(max(stop - start, 0), np.uint8)
    if lane is None:
        return out
    lo, hi = between(lane.skipped["after"], start, stop)
    out[lane.skipped["after"][lo:hi] - start] = Tick.SKIPPED
    lo, hi = between(lane.steps["after"], start, stop)
    kinds = _TICK_OF_GRADIENTS[lane.gradients[lo:hi]]
    if meant:
        kinds = np.where(kinds == Tick.WRONG, np.uint8(Tick.LOCAL_STEP), kinds)
    np.maximum.at(out, lane.steps["after"][lo:hi] - start, kinds)
    return out


def edges(length: int, factor: int) -> Ints:
    """Where columns of `factor` passes begin."""
    return np.arange(0, length, factor)


def worst(codes: Codes, at: Ints) -> Codes:
    """The greatest (the worst) code of each column; `at` is where columns begin."""
    return np.asarray(np.maximum.reduceat(codes, at), dtype=np.uint8) if len(codes) else codes


def share_synced(codes: Codes, at: Ints) -> npt.NDArray[np.float32]:
    """Of the passes of a column that ended, the share that was all-reduced; NaN where none ended."""
    if not len(codes):
        return np.zeros(0, np.float32)
    local = np.add.reduceat((codes == Cell.LOCAL).astype(np.float32), at)
    synced = np.add.reduceat((codes == Cell.SYNCED).astype(np.float32), at)
    with np.errstate(invalid="ignore"):
        return np.asarray(synced / (local + synced), dtype=np.float32)


def group(
    tl: Timeline, module: Module, *, meant: bool, most: int, only: tuple[int, ...] | None = None
) -> tuple[list[tuple[int, ...]], int]:
    """The ranks of each row, and how many groups found none: a row a rank, or where they do not fit, a row for all
    ranks that did the same so far. The odd ones come out; the largest group keeps its place."""
    ranks = _wanted(module, only)
    if len(ranks) <= most:
        return [(rank,) for rank in ranks], 0
    groups = alike(tl, module, meant=meant, only=only)
    if len(groups) <= most:
        return groups, 0
    largest = max(groups, key=len)
    odd = sorted((g for g in groups if g is not largest), key=lambda g: (-_worst(tl, module, g, meant), len(g)))
    kept = [largest, *odd[: max(most - 1, 0)]]
    return sorted(kept), len(groups) - len(kept)


def by_host(
    tl: Timeline,
    module: Module,
    kinds: list[tuple[int, ...]],
    *,
    meant: bool,
    most: int,
    only: tuple[int, ...] | None = None,
) -> tuple[list[tuple[int, ...]], int]:
    """As `group`, with a row a host. Where they do not fit, those stay whose ranks did otherwise than most, by the
    `kinds` that `alike` found."""
    hosts: dict[str, list[int]] = {}
    for rank in _wanted(module, only):
        hosts.setdefault(tl.ranks[rank].host if rank in tl.ranks else "", []).append(rank)
    rows = [tuple(ranks) for ranks in hosts.values()]
    if len(rows) <= most:
        return rows, 0
    usual = max(kinds, key=len)
    odd = {rank: 1 + _worst(tl, module, kind, meant) for kind in kinds if kind is not usual for rank in kind}
    kept = sorted(rows, key=lambda row: -max(odd.get(rank, 0) for rank in row))[:most]
    return sorted(kept), len(rows) - len(kept)


def hosts_of(tl: Timeline, ranks: tuple[int, ...]) -> list[str]:
    """Each host of these ranks once."""
    return list(dict.fromkeys(tl.ranks[rank].host for rank in ranks if rank in tl.ranks and tl.ranks[rank].host))


def _wanted(module: Module, only: tuple[int, ...] | None) -> tuple[int, ...]:
    return tuple(rank for rank in module.ranks if only is None or rank in only)


def alike(tl: Timeline, module: Module, *, meant: bool, only: tuple[int, ...] | None = None) -> list[tuple[int, ...]]:
    """The ranks, those together that did the same so far."""
    going = [len(lane.sync) for rank, lane in module.lanes.items() if _goes_on(tl, rank)]
    common = min(going, default=module.passes)
    kinds: dict[object, list[int]] = {}
    for rank in _wanted(module, only):
        kinds.setdefault(_behaviour(tl, module, rank, common, meant), []).append(rank)
    return [tuple(members) for members in kinds.values()]


def _goes_on(tl: Timeline, rank: int) -> bool:
    state = tl.ranks.get(rank)
    return state is not None and state.status in ("running", "waiting")


def _behaviour(tl: Timeline, module: Module, rank: int, common: int, meant: bool) -> object:
    """Equal for ranks that did the same in every pass that all of them have reported."""
    lane = module.lanes.get(rank)
    state = tl.ranks.get(rank)
    ended = state is not None and state.status in ("failed", "died")
    if lane is None:
        return (ended,)
    reached = min(common, len(lane.sync))
    marks = ticks(module, lane, 0, reached - 1, meant=meant)  # a step behind the newest pass may still come
    return (ended, reached, zlib.crc32(lane.sync[:reached].tobytes()), zlib.crc32(marks.tobytes()))


def _worst(tl: Timeline, module: Module, ranks: tuple[int, ...], meant: bool) -> int:
    stop = length(tl, module)
    codes = cells(tl, module, ranks[0], 0, stop)
    marks = ticks(module, module.lanes.get(ranks[0]), 0, stop, meant=meant)
    bad = codes.max(initial=0) if codes.max(initial=0) >= Cell.PARTIAL else 0
    return int(bad) + (10 if marks.max(initial=0) >= Tick.STALE else 0)


def grid(
    tl: Timeline,
    module: Module,
    groups: list[tuple[int, ...]],
    *,
    first: int,
    factor: int,
    columns: int,
    meant: bool,
    same: bool = True,
) -> Grid:
    """The visible part: `columns` columns of `factor` passes from pass `first`. `same`: ranks in a row are alike."""
    start, stop = first, first + factor * columns
    total = length(tl, module)
    stop = min(stop, -(-total // factor) * factor)
    rows = []
    at = edges(max(stop - start, 0), factor)
    for ranks in groups:
        codes = cells(tl, module, ranks[0], start, stop)
        marks = ticks(module, module.lanes.get(ranks[0]), start, stop, meant=meant)
        for rank in ranks[1:]:
            if not same or len(ranks) <= 64 or rank == ranks[-1]:  # where alike, all but the live end is the same
                codes = np.maximum(codes, cells(tl, module, rank, start, stop))
                marks = np.maximum(marks, ticks(module, module.lanes.get(rank), start, stop, meant=meant))
        rows.append(Row(ranks, worst(codes, at), share_synced(codes, at), worst(marks, at)))
    return Grid(
        first=first,
        factor=factor,
        columns=-(-max(stop - start, 0) // factor),
        rows=tuple(rows),
        bounds=worst(_bounds(module, start, stop), at).astype(np.bool_),
        mixed=worst(_mixed(module, start, stop), at).astype(np.bool_),
        steps=_steps(module, start, stop, factor),
    )


def whole(
    tl: Timeline, module: Module, groups: list[tuple[int, ...]], *, total: int, columns: int, meant: bool
) -> Whole:
    """The run from its first pass over `columns` columns (no more than passes); a group's first rank stands for it."""
    at = np.arange(columns) * total // max(columns, 1)
    codes, ticked = np.zeros(columns, np.uint8), np.zeros(columns, np.uint8)
    synced = np.zeros(columns, np.float32)
    for ranks in groups:
        its = cells(tl, module, ranks[0], 0, total)
        codes = np.maximum(codes, worst(its, at))
        ticked = np.maximum(ticked, worst(ticks(module, module.lanes.get(ranks[0]), 0, total, meant=meant), at))
        synced = np.maximum(synced, np.nan_to_num(share_synced(its, at)))
    return Whole(codes, synced, ticked)


def _bounds(module: Module, start: int, stop: int) -> Codes:
    """1 where the next pass, if there is one, belongs to another window."""
    out = np.zeros(max(stop - start, 0), np.uint8)
    lane = longest(module)
    if lane is not None:
        windows = lane.passes["window"][start : stop + 1]
        ends = windows[1:] != windows[:-1]
        out[: len(ends)] = ends
        lo, hi = between(lane.clears["after"], start, stop)
        out[lane.clears["after"][lo:hi] - start] = 1
    return out


def _mixed(module: Module, start: int, stop: int) -> Codes:
    out = np.zeros(max(stop - start, 0), np.uint8)
    verdicts = module.verdicts[start:stop]
    out[: len(verdicts)] = verdicts == Sync.MIXED
    return out


def _steps(module: Module, start: int, stop: int, factor: int) -> dict[int, int]:
    lane = longest(module)
    if lane is None:
        return {}
    after = lane.steps["after"]
    lo, hi = between(after, start, stop)
    return {
        (after - start) // factor: number
        for after, number in zip(after[lo:hi].tolist(), lane.steps["index"][lo:hi].tolist(), strict=True)
    }
