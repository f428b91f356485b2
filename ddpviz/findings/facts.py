"""What several rules need to know: ranks that count, the passes behind a step, averaging by other routes, local SGD.

Pure functions of a Timeline; no rule's judgement, and no words for people.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntFlag

import numpy as np
import numpy.typing as npt

from ddpviz.timeline.model import Gradients, Lane, Module, Replicas, RunInfo, Step, StepPart, Sync, Timeline
from ddpviz.timeline.steps import StepTable
from ddpviz.timeline.verdicts import NOT_THERE
from ddpviz.trace import records as r

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
ENDED = ("finished", "failed", "hung", "interrupted")


def has(rows: npt.NDArray[np.void], bits: IntFlag) -> Bools:
    """Which rows have all these flag bits."""
    found: Bools = (rows["flags"] & int(bits)) == int(bits)
    return found


def shared(tl: Timeline) -> Iterator[Module]:
    """Modules on more than one rank: with one there is nobody to average with."""
    return (m for m in tl.modules if len(m.ranks) > 1)


def joined(tl: Timeline, module: Module) -> set[int]:
    """Ranks that ran out of inputs inside `join` and shadow the others: fewer passes and steps are right there."""
    return {rank for rank in module.ranks if rank in tl.ranks and module.id in tl.ranks[rank].joined}


def lanes(module: Module) -> list[Lane]:
    return [module.lanes[rank] for rank in module.ranks if rank in module.lanes]


def ended(run: RunInfo) -> bool:
    return run.status in ENDED


# --- steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Used:
    """The executed steps of one module in which some rank used gradients of one kind; `first` is the oldest of them."""

    indices: Ints  # of the rank with the most
    ranks: tuple[int, ...]
    first: Step
    part: StepPart
    first_ranks: tuple[int, ...]

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(self.indices.tolist())


def steps_with(tl: Timeline, module: Module, kind: Gradients) -> Used | None:
    """Steps in which a rank used gradients of this kind. Steps whose gradients are all zero are left out."""
    chosen: dict[int, npt.NDArray[np.void]] = {}
    for lane in lanes(module):
        wrong = lane.gradients == int(kind)
        if wrong.any():
            wrong &= ~(has(lane.steps, r.StepFlag.HAS_GRAD) & (lane.steps["grad_norm"] == 0))
        if wrong.any():
            chosen[lane.rank] = lane.steps[wrong]
    if not chosen:
        return None
    earliest = min(chosen, key=lambda k: (int(chosen[k][0]["after"]), int(chosen[k][0]["index"]), k))
    after = int(chosen[earliest][0]["after"])
    step = step_at(tl, int(chosen[earliest][0]["index"]))
    part = next((p for p in step.parts if p.module == module.id), None) if step is not None else None
    if step is None or part is None:
        return None
    first_ranks = tuple(k for k in chosen if int(chosen[k][0]["after"]) == after)
    most = max(chosen.values(), key=len)["index"].astype(np.int64)
    return Used(most, tuple(chosen), step, part, (earliest, *(k for k in first_ranks if k != earliest)))


def step_at(tl: Timeline, index: int) -> Step | None:
    """The step with this index."""
    if not isinstance(tl.steps, StepTable):
        return next((s for s in tl.steps if s.index == index), None)
    numbers = tl.steps.indices
    at = int(np.searchsorted(numbers, index))
    return tl.steps[at] if at < len(numbers) and int(numbers[at]) == index else None


def part_at(tl: Timeline, module: Module, index: int) -> StepPart | None:
    step = step_at(tl, index)
    return next((p for p in step.parts if p.module == module.id), None) if step is not None else None


def compared(tl: Timeline, module: Module) -> tuple[Ints, npt.NDArray[np.uint8], npt.NDArray[np.int8]]:
    """For each step of the module: its index, the replicas after it (`Replicas`), and whether the gradients it used
    were equal across ranks (1, 0, -1 not measured)."""
    own = tl.steps.of(module.id) if isinstance(tl.steps, StepTable) else None
    if own is not None:
        there = np.flatnonzero(own.gradients.view != NOT_THERE).astype(np.int64)
        return there, own.replicas.view[there].astype(np.uint8), own.equal.view[there].astype(np.int8)
    parts = [(s.index, p) for s in tl.steps for p in s.parts if p.module == module.id]
    equal = [-1 if p.grads_equal is None else int(p.grads_equal) for _, p in parts]
    return (
        np.array([i for i, _ in parts], np.int64),
        np.array([int(p.replicas) for _, p in parts], np.uint8),
        np.array(equal, np.int8),
    )


def step_row(lane: Lane, step: Step) -> np.void | None:
    """This rank's row of the step, or None if it did not take it."""
    at = int(np.searchsorted(lane.steps["index"], step.index))
    return lane.steps[at] if at < len(lane.steps) and int(lane.steps[at]["index"]) == step.index else None


def in_own_backward(lane: Lane, row: np.void) -> bool:
    """Whether the step ran inside the very backward pass whose gradients it used, as an optimizer in a hook does."""
    after = int(row["after"])
    if not 0 <= after < len(lane.passes) or int(row["flags"]) & r.StepFlag.CLOSURE:
        return False
    return bool(lane.passes[after]["begin"] <= row["begin"] < lane.passes[after]["end"])


def passes_behind(lane: Lane, row: np.void) -> Ints:
    """Indices of the passes whose gradients this step row used, oldest first."""
    after = int(row["after"])
    window = lane.passes["window"][: after + 1]
    if after < 0 or not len(window):
        return np.zeros(0, np.int64)
    first = int(np.searchsorted(window, window[-1]))
    previous = lane.steps["after"][lane.steps["index"] < int(row["index"])]
    if len(previous) and int(previous[-1]) == after:  # no pass since the step before: nothing new was added
        return np.zeros(0, np.int64)
    return np.arange(first, after + 1)


def norms_differ(module: Module, part: StepPart) -> bool | None:
    """Whether the ranks' own accumulated gradients differed after the last pass before the step; None: not measured."""
    found = []
    for rank, after in zip(module.ranks, part.after, strict=False):
        lane = module.lanes.get(rank)
        if lane is None or after is None:
            continue
        if not 0 <= after < len(lane.passes):
            return None
        row = lane.passes[after]
        if not int(row["flags"]) & r.PassFlag.HAS_LOCAL_NORM or not np.isfinite(row["local_norm"]):
            return None
        found.append(float(row["local_norm"]))
    return len(set(found)) > 1 if len(found) > 1 else None


def averaged_unseen(tl: Timeline, module: Module, used: Used) -> bool:
    """The ranks' gradients differed after their backward passes and are bit-equal when the steps use them.

    Then something averaged them that the probe does not see (another library, another group): such steps are right.
    Judged by the steps that were measured; none measured is no proof.
    """
    verdicts: list[bool] = []
    for index in used.indices[:: max(1, len(used.indices) // 32)]:
        part = part_at(tl, module, int(index))
        differ = norms_differ(module, part) if part is not None else None
        if part is not None and part.grads_equal is not None and differ is not None:
            verdicts.append(part.grads_equal and differ)
    return bool(verdicts) and all(verdicts)


_segments: dict[int, tuple[Lane, tuple[int, ...], Ints, Ints]] = {}  # several rules ask for the same lane's


def segments(lane: Lane) -> tuple[Ints, Ints]:
    """For each pass: the stretch it belongs to (same window, same steps before it), and the step that used it or -1.

    Stretches are numbered from 0 in order. Steps that GradScaler skipped close a stretch as executed ones do; the
    second array gives the position in `lane.steps`, and -2 for a skipped step. Kept until `forget`.
    """
    sizes = (len(lane.passes), len(lane.steps), len(lane.skipped))
    known = _segments.get(id(lane))
    if known is None or known[0] is not lane or known[1] != sizes:
        known = _segments[id(lane)] = (lane, sizes, *_find_segments(lane))
    return known[2], known[3]


def forget() -> None:
    """Drop what was kept between the rules of one `find`."""
    _segments.clear()


def _find_segments(lane: Lane) -> tuple[Ints, Ints]:
    n = len(lane.passes)
    if not n:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    number = np.flatnonzero(~has(lane.steps, r.StepFlag.NO_GRADS))
    after, window = lane.steps["after"][number].astype(np.int64), lane.steps["window"][number].astype(np.int64)
    if len(lane.skipped):
        after = np.concatenate([after, lane.skipped["after"]])
        window = np.concatenate([window, lane.skipped["window"]])
        number = np.concatenate([number, np.full(len(lane.skipped), -2)])
        order = np.argsort(after, kind="stable")
        after, window, number = after[order], window[order], number[order]
    # how many steps came before each pass: those after pass -1, 0, ..., i - 1
    following = np.cumsum(np.bincount(np.clip(after, -1, n - 1) + 1, minlength=n + 1))[:n]
    windows = lane.passes["window"]
    change = np.zeros(n, np.int64)
    change[1:] = (following[1:] != following[:-1]) | (windows[1:] != windows[:-1])
    at = np.minimum(following, max(len(after) - 1, 0))
    step = np.full(n, -1, np.int64)
    if len(after):
        fits = (following < len(after)) & (window[at] == windows)
        step[fits] = number[at[fits]]
    return np.cumsum(change), step


def starts_of(keys: npt.NDArray[np.generic]) -> Ints:
    """Where each run of equal keys begins."""
    if not len(keys):
        return np.zeros(0, np.int64)
    return np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1]).astype(np.int64)


# --- local SGD -------------------------------------------------------------------------------------------------------

_AVERAGES = (
    r.CollectiveKind.ALL_REDUCE,
    r.CollectiveKind.ALL_GATHER,
    r.CollectiveKind.REDUCE_SCATTER,
    r.CollectiveKind.REDUCE,
    r.CollectiveKind.UNKNOWN,
)
_FLOATS = np.array([name in ("float32", "float64", "float16", "bfloat16", "?") for name in r.DTYPES])


@dataclass(frozen=True, slots=True)
class LocalSgd:
    """Parameters averaged by collectives between local steps. `times` are the averagings, ns, on the first rank."""

    times: tuple[int, ...]
    equal: bool  # replicas were equal at the end, or after the last averaging of a run that goes on


def local_sgd(tl: Timeline, module: Module) -> LocalSgd | None:
    """Whether the job averages parameters (not gradients) between steps, which makes local steps a design.

    Seen in collectives outside any pass whose tensors are the module's parameters, or which move at least as many
    elements as the module has between two steps. A broadcast is no average: it throws the others' steps away.
    """
    lane = next(iter(lanes(module)), None)
    if lane is None or not len(lane.steps):
        return None
    rows = [
        g.collectives[lane.rank]
        for g in tl.groups.values()
        if set(module.ranks) <= set(g.ranks) and lane.rank in g.collectives
    ]
    times: list[int] = []
    named_any = False
    ends = lane.steps["end"].astype(np.int64)
    for table in rows:
        if not len(table):
            continue
        flags = table["flags"]
        inside = int(r.CollectiveFlag.IN_PASS | r.CollectiveFlag.IN_FORWARD | r.CollectiveFlag.USED_MAP)
        gradients = int(r.CollectiveFlag.GRADIENTS)
        keep = ((flags & (inside | gradients)) == 0) & np.isin(table["kind"], [int(k) for k in _AVERAGES])
        keep &= _FLOATS[np.minimum(table["dtype"], len(_FLOATS) - 1)]
        table = table[keep]
        if not len(table):
            continue
        between = np.searchsorted(ends, table["begin"])
        moved = np.bincount(between, weights=table["numel"].astype(float), minlength=len(ends) + 1)
        named = np.bincount(between, weights=(table["flags"] & int(r.CollectiveFlag.PARAMETERS)) != 0)
        enough = moved >= module.numel
        enough[: len(named)] |= named > 0
        named_any |= bool(named[1:].any())
        enough[0] = False  # before the first step: how a job starts
        last = np.zeros(len(ends) + 1, np.int64)
        np.maximum.at(last, between, table["begin"].astype(np.int64))
        times += [int(t) for t in last[enough]]
    if not times:
        return None
    final = final_equal(tl, module)
    if final is None:  # still running, or killed
        final = (named_any or _met_again(tl, module)) and (not ended(tl.run) or max(times) >= int(ends[-1]))
    return LocalSgd(tuple(sorted(times)), final)


def _met_again(tl: Timeline, module: Module) -> bool:
    """Whether replicas that had diverged were measured equal later, after a step or after an averaging by hand."""
    _, replicas, _ = compared(tl, module)
    apart = np.flatnonzero(replicas == int(Replicas.DIVERGED))
    if len(apart) and bool((replicas[apart[0] :] == int(Replicas.EQUAL)).any()):
        return True
    last: dict[int, set[int]] = {}
    for lane in lanes(module):
        for record in lane.replicas:
            last.setdefault(record.step, set()).add(record.checksum)
    return any(len(sums) == 1 for step, sums in last.items() if step >= 0)


def final_equal(tl: Timeline, module: Module) -> bool | None:
    """Whether the module's parameters were bit-equal on all ranks when the job ended; None: not measured."""
    sums = []
    for rank in module.ranks:
        lane = module.lanes.get(rank)
        last = [x for x in lane.replicas if x.final] if lane is not None else []
        if not last:
            return None
        sums.append(last[0].checksum)  # the first: as the process group was taken down, before what one rank does alone
    return len(set(sums)) == 1 if sums else None


def count_steps(tl: Timeline, module: Module) -> int:
    """Executed steps that concern the module, over all its ranks."""
    return max((len(lane.steps) for lane in lanes(module)), default=0)


def issued(lane: Lane) -> Ints:
    """Indices of the passes in which this rank issued at least one bucket's collective."""
    return np.flatnonzero((lane.sync == int(Sync.SYNCED)) | (lane.sync == int(Sync.PARTIAL)))
