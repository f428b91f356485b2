"""What just happened, in one exact sentence for someone who has never read reducer.cpp. Pure functions, plain text.

Every number in a sentence is measured; what was not measured is not said.
"""

from __future__ import annotations

from ddpviz.dashboard.format import norm, plural, ranges, shorten, size
from ddpviz.dashboard.levels import Levels, levels
from ddpviz.dashboard.moments import between, gather
from ddpviz.dashboard.names import layers_of
from ddpviz.dashboard.state import Cursor, longest, module_of
from ddpviz.timeline.model import Gradients, Module, Replicas, Site, Step, Sync, Timeline
from ddpviz.trace import records as r


def narrate(tl: Timeline, cursor: Cursor, now: Levels | None = None) -> str:
    """The sentence for the moment that the cursor shows; `now` are the levels at it, if they are known already."""
    module = module_of(tl, cursor)
    if module is None:
        return before_the_module(tl)
    if module.passes == 0 or cursor.index < 0:
        first = ", ".join(sorted({site} if (site := module.site.short) else set()))
        return (
            f"{module.name} was wrapped in DDP{' at ' + first if first else ''}: "
            f"{plural(len(module.ranks), 'rank')} start from the same {plural(len(module.params), 'parameter')}. "
            "No backward pass has ended yet."
        )
    now = levels(tl, module, cursor.time, upto=cursor.index) if now is None else now
    index = now.index if now.index >= 0 else cursor.index
    if now.moving:
        return _moving(module, index, now)
    step = step_behind(tl, module, index, cursor.time)
    if step is not None:
        return _stepped(tl, module, step, index)
    made = gather(module, index)
    if made is not None and cursor.time < made.end and not now.done:
        return f"Micro-step {index}: backward runs and adds this batch's gradients to what each rank holds."
    return _passed(tl, module, index)


def before_the_module(tl: Timeline) -> str:
    """Until a DDP module exists."""
    if not tl.ranks:
        count = tl.run.world_size
        who = plural(count, "rank") if count else "the job"
        return f"Python starts in {who} and imports torch; that takes a few seconds."
    doing = {state.stack.doing for state in tl.ranks.values() if state.stack is not None}
    if "init_process_group" in doing:
        waiting = ranges(k for k, s in tl.ranks.items() if s.stack and s.stack.doing == "init_process_group")
        return f"Rank {waiting} waits in init_process_group until every rank has joined."
    if "DDP constructor" in doing:
        return "The DDP constructor checks that all ranks hold the same parameters, then copies those of rank 0 to all."
    return "torch is there on " + plural(len(tl.ranks), "rank") + "; no DDP module has been built yet."


def step_behind(tl: Timeline, module: Module, index: int, time: int) -> Step | None:
    """The newest step of the module after pass `index` that had ended by `time`."""
    lane, made = longest(module), gather(module, index)
    if lane is None or made is None or time <= made.rest:
        return None
    lo, hi = between(lane.steps["after"], index, index + 1)
    ended = [int(row["index"]) for row in lane.steps[lo:hi] if row["end"] <= time]
    return tl.steps[ended[-1]] if ended and ended[-1] < len(tl.steps) else None


def _at(site: Site) -> str:
    return f" ({site.short})" if site.short else ""


def _all(module: Module) -> str:
    count = len(module.ranks)
    return "both ranks" if count == 2 else "the one rank" if count == 1 else f"all {count} ranks"


def _window(module: Module, index: int) -> tuple[int, int]:
    """First and last pass of the window that `index` is in, as far as it has come."""
    lane = longest(module)
    if lane is None or index >= len(lane.passes):
        return index, index
    windows = lane.passes["window"]
    lo, hi = between(windows, int(windows[index]), int(windows[index]) + 1)
    return lo, hi - 1


def _sum_of(module: Module, index: int) -> str:
    first = _window(module, index)[0]
    return f"the sum of micro-steps {first} to {index}" if first < index else "this micro-step's gradients"


def _moving(module: Module, index: int, now: Levels) -> str:
    layers = layers_of(module, now.layout, now.moving[0])
    names = f" ({shorten(layers, 48)})" if layers else ""
    rest = f"; {now.done} of {now.buckets} buckets are done" if now.done else ""
    return (
        f"Micro-step {index} is all-reduced: bucket {now.moving[0]}{names} is being averaged over "
        f"{_all(module)}{rest}. It carries {_sum_of(module, index)}."
    )


_USED = {
    Gradients.SYNCED: "averaged gradients",
    Gradients.LOCAL: "its own, never averaged",
    Gradients.STALE: "averaged ones with more of its own added",
    Gradients.MIXED: "partly averaged ones",
    Gradients.NONE: "none at all",
}


def _passed(tl: Timeline, module: Module, index: int) -> str:
    verdict = Sync(int(module.verdicts[index])) if index < len(module.verdicts) else Sync.RUNNING
    if verdict is Sync.LOCAL:
        return _local(tl, module, index)
    if verdict is Sync.SYNCED:
        return _synced(module, index)
    if verdict is Sync.MIXED:
        yes = ranges(
            k for k, lane in module.lanes.items() if index < len(lane.sync) and lane.sync[index] == Sync.SYNCED
        )
        no = ranges(k for k, lane in module.lanes.items() if index < len(lane.sync) and lane.sync[index] == Sync.LOCAL)
        return (
            f"Micro-step {index}: the ranks disagree. Rank {yes} all-reduced, rank {no} kept its gradients local: "
            "whoever sends averages with whatever the others send next."
        )
    if verdict is Sync.PARTIAL:
        return f"Micro-step {index}: only a part of the gradients was all-reduced; the rest stayed each rank's own."
    if verdict is Sync.UNFINISHED:
        return f"Micro-step {index}: backward never finished; it raised, or its rank is gone."
    late = [rank for rank, lane in module.lanes.items() if index >= len(lane.sync)]
    return f"Micro-step {index}: {_here(module, late)} done, rank {ranges(late)} not yet."


def _here(module: Module, late: list[int]) -> str:
    there = [rank for rank in module.lanes if rank not in late]
    return f"rank {ranges(there)} is" if len(there) == 1 else f"ranks {ranges(there)} are"


def _local(tl: Timeline, module: Module, index: int) -> str:
    why = ""
    flags = [int(lane.passes[index]["flags"]) for lane in module.lanes.values() if index < len(lane.passes)]
    if flags and all(f & r.PassFlag.FLAGS_KNOWN and f & r.PassFlag.NO_SYNC_FORWARD for f in flags):
        why = " ran inside no_sync"
    elif len(module.ranks) == 1:
        return f"Micro-step {index}: one rank alone, there is nobody to average with."
    values = _norms(module, index, "local_norm", r.PassFlag.HAS_LOCAL_NORM)
    grown = ""
    first = _window(module, index)[0]
    if values and len(values) <= 4:
        grown = ": " + ", ".join(f"rank {k} holds {norm(v)}" for k, v in values.items())
    added = "the first of its window" if first == index else f"number {index - first + 1} of its window"
    return (
        f"Micro-step {index}{why or ' stayed local'}, {added}. "
        f"Each rank added its own gradients; nothing was sent{grown}."
    )


def _norms(module: Module, index: int, column: str, flag: int) -> dict[int, float]:
    return {
        rank: float(lane.passes[index][column])
        for rank, lane in module.lanes.items()
        if index < len(lane.passes) and int(lane.passes[index]["flags"]) & flag
    }


def _synced(module: Module, index: int) -> str:
    values = list(_norms(module, index, "norm", r.PassFlag.HAS_NORM).values())
    equal = bool(values) and len(values) == len(module.ranks) and len({f"{v:.17g}" for v in values}) == 1
    held = f", norm {norm(values[0])} on each" if equal else ""
    made = gather(module, index)
    sent = ""
    if made is not None and len(made.buckets):
        rows = made.buckets[made.owner == made.owner[0]]
        total = int(rows["wire_bytes"].sum())
        sent = f" {size(total)} in {plural(len(rows), 'bucket')} went round." if total else ""
    return (
        f"Micro-step {index} was all-reduced: {_all(module)} now hold the mean of {_sum_of(module, index)}{held}.{sent}"
    )


def _stepped(tl: Timeline, module: Module, step: Step, index: int) -> str:
    part = next((p for p in step.parts if p.module == module.id), None)
    at, number = _at(step.site), step.index
    if part is None or part.gradients is Gradients.NONE:
        return f"Step {number}{at}: no parameter of {module.name} had a gradient."
    if part.gradients is Gradients.SYNCED:
        same = {
            Replicas.EQUAL: " and the replicas are still equal, bit for bit",
            Replicas.DIVERGED: ", yet the replicas differ",
            Replicas.UNKNOWN: "",
        }[part.replicas]
        return f"Step {number}{at}: the optimizer used the mean gradient on {_all(module)}{same}."
    if len(module.ranks) == 1:
        return f"Step {number}{at}: the optimizer used this rank's gradients; there is nobody to average with."
    apart = " The replicas are now different models." if part.replicas is Replicas.DIVERGED else ""
    if part.gradients is Gradients.STALE:
        return (
            f"Step {number}{at}: gradients were added after the all-reduce and never averaged; "
            f"each rank stepped with its own.{apart}"
        )
    kinds = {kind for kind in part.by_rank if kind is not None}
    if part.gradients is Gradients.MIXED and len(kinds) > 1:
        told = "; ".join(
            f"rank {ranges(k for k, its in zip(module.ranks, part.by_rank, strict=True) if its is kind)} "
            f"used {_USED[kind]}"
            for kind in sorted(kinds)
        )
        return f"Step {number}{at}: {told}.{apart}"
    if part.gradients is Gradients.MIXED:
        return (
            f"Step {number}{at}: a part of the gradients was averaged, a part was not; "
            f"the ranks stepped differently.{apart}"
        )
    first = _window(module, index)[0]
    passes = f"micro-steps {first} to {index}" if first < index else f"micro-step {index}"
    return f"Step {number}{at}: each rank stepped with its own gradients; {passes} ran without an all-reduce.{apart}"
