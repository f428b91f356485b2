"""What just happened, in one exact sentence for someone who has never read reducer.cpp. Pure functions, plain text.

Every number in a sentence is measured; what was not measured is not said.
"""

from __future__ import annotations

from ddpviz.dashboard.format import norm, plural, ranges, shorten, size
from ddpviz.dashboard.levels import Levels, levels
from ddpviz.dashboard.moments import between, gather
from ddpviz.dashboard.names import layers_of
from ddpviz.dashboard.state import Cursor, longest, module_of
from ddpviz.dashboard.why import QUIET, WHY
from ddpviz.language import N_, Words, _, ngettext
from ddpviz.phrases import all_ranks, which_ranks
from ddpviz.timeline.model import Gradients, Module, Replicas, Site, Step, Sync, Timeline
from ddpviz.trace import records as r

LEVELS = ("quiet", "normal", "teacher")
TOLD = {
    "quiet": N_("quiet: only steps, and what is wrong"),
    "normal": N_("normal: one sentence for each thing that happens"),
    "teacher": N_("teacher: says why, too"),
}
_level = "normal"


def speak(level: str) -> None:
    """How much is told from now on; a level that is not there is the normal one."""
    global _level
    _level = level if level in LEVELS else "normal"


def level() -> str:
    return _level


def narrate(tl: Timeline, cursor: Cursor, now: Levels | None = None) -> str:
    """The sentence for the moment that the cursor shows; a teacher adds why, and one who is to be quiet tells only the
    optimizer's steps and what is wrong."""
    kind, said = told(tl, cursor, now)
    if _level == "quiet":
        return said if kind in QUIET else ""
    why = _(WHY.get(kind, "")) if _level == "teacher" else ""
    return f"{said} {why}" if why else said


def told(tl: Timeline, cursor: Cursor, now: Levels | None = None) -> tuple[str, str]:
    """What kind of moment the cursor shows, and the sentence for it; `now` are the levels at it, if they are known."""
    module = module_of(tl, cursor)
    if module is None:
        return "start", before_the_module(tl)
    if module.passes == 0 or cursor.index < 0:
        return "wrapped", _(
            "{name} was wrapped in DDP{at}: {ranks} start from the same {parameters}. No backward pass has ended yet.",
            name=module.name,
            at=_at(module.site),
            ranks=plural(len(module.ranks), "rank"),
            parameters=plural(len(module.params), "parameter"),
        )
    now = levels(tl, module, cursor.time, upto=cursor.index) if now is None else now
    index = now.index if now.index >= 0 else cursor.index
    if now.moving:
        return "moving", _moving(module, index, now)
    step = step_behind(tl, module, index, cursor.time)
    if step is not None:
        return _kind_of_step(module, step), _stepped(tl, module, step, index)
    made = gather(module, index)
    if made is not None and cursor.time < made.end and not now.done:
        return "running", _(
            "Micro-step {index}: backward runs and adds this batch's gradients to what each rank holds.", index=index
        )
    return _kind_of_pass(module, index), _passed(tl, module, index)


def before_the_module(tl: Timeline) -> str:
    """Until a DDP module exists."""
    if not tl.ranks:
        count = tl.run.world_size
        who = plural(count, "rank") if count else _("the job")
        return _("Python starts in {who} and imports torch; that takes a few seconds.", who=who)
    doing = {state.stack.doing for state in tl.ranks.values() if state.stack is not None}
    if "init_process_group" in doing:
        waiting = [k for k, s in tl.ranks.items() if s.stack and s.stack.doing == "init_process_group"]
        return ngettext(
            "{ranks:start} waits in init_process_group until every rank has joined.",
            "{ranks:start} wait in init_process_group until every rank has joined.",
            min(len(waiting), 2),
            ranks=_ranks(waiting),
        )
    if "DDP constructor" in doing:
        return _(
            "The DDP constructor checks that all ranks hold the same parameters, then copies those of rank 0 to all."
        )
    return _("torch is there on {ranks}; no DDP module has been built yet.", ranks=plural(len(tl.ranks), "rank"))


def step_behind(tl: Timeline, module: Module, index: int, time: int) -> Step | None:
    """The newest step of the module after pass `index` that had ended by `time`."""
    lane, made = longest(module), gather(module, index)
    if lane is None or made is None or time <= made.rest:
        return None
    lo, hi = between(lane.steps["after"], index, index + 1)
    ended = [int(row["index"]) for row in lane.steps[lo:hi] if row["end"] <= time]
    return tl.steps[ended[-1]] if ended and ended[-1] < len(tl.steps) else None


def _kind_of_pass(module: Module, index: int) -> str:
    if len(module.ranks) == 1:
        return "alone"
    return Sync(int(module.verdicts[index])).word if index < len(module.verdicts) else "running"


def _kind_of_step(module: Module, step: Step) -> str:
    part = next((p for p in step.parts if p.module == module.id), None)
    if part is None or part.gradients is Gradients.NONE or len(module.ranks) == 1:
        return "step"
    return f"step {part.gradients.word}"


def _at(site: Site) -> str:
    return f" ({site.short})" if site.short else ""


def _ranks(numbers: list[int]) -> Words:
    return which_ranks(numbers, ranges(numbers))


def _all(module: Module) -> Words:
    return all_ranks(len(module.ranks))


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
    return (
        _("the sum of micro-steps {first} to {index}", first=first, index=index)
        if first < index
        else _("this micro-step's gradients")
    )


def _moving(module: Module, index: int, now: Levels) -> str:
    layers = layers_of(module, now.layout, now.moving[0])
    names = f" ({shorten(layers, 48)})" if layers else ""
    rest = _("; {done} of {buckets} buckets are done", done=now.done, buckets=now.buckets) if now.done else ""
    return _(
        "Micro-step {index} is all-reduced: bucket {moving}{names} is being averaged over {all}{rest}. It "
        "carries {sum_of}.",
        index=index,
        moving=now.moving[0],
        names=names,
        all=_all(module),
        rest=rest,
        sum_of=_sum_of(module, index),
    )


_USED = {
    Gradients.SYNCED: N_("averaged gradients"),
    Gradients.LOCAL: N_("its own, never averaged"),
    Gradients.STALE: N_("averaged ones with more of its own added"),
    Gradients.MIXED: N_("partly averaged ones"),
    Gradients.NONE: N_("none at all"),
}


def _passed(tl: Timeline, module: Module, index: int) -> str:
    verdict = Sync(int(module.verdicts[index])) if index < len(module.verdicts) else Sync.RUNNING
    if verdict is Sync.LOCAL:
        return _local(tl, module, index)
    if verdict is Sync.SYNCED:
        return _synced(module, index)
    if verdict is Sync.MIXED:
        there = {k: lane.sync[index] for k, lane in module.lanes.items() if index < len(lane.sync)}
        yes = _ranks([k for k, sync in there.items() if sync == Sync.SYNCED])
        no = _ranks([k for k, sync in there.items() if sync == Sync.LOCAL])
        return _(
            "Micro-step {index}: the ranks disagree. {yes:start} all-reduced, {no} kept the gradients "
            "local: whoever sends averages with whatever the others send next.",
            index=index,
            yes=yes,
            no=no,
        )
    if verdict is Sync.PARTIAL:
        return _(
            "Micro-step {index}: only a part of the gradients was all-reduced; the rest stayed each rank's own.",
            index=index,
        )
    if verdict is Sync.UNFINISHED:
        return _("Micro-step {index}: backward never finished; it raised, or its rank is gone.", index=index)
    late = [rank for rank, lane in module.lanes.items() if index >= len(lane.sync)]
    ready = [rank for rank in module.lanes if rank not in late]
    return ngettext(
        "Micro-step {index}: {there} is done, {late} not yet.",
        "Micro-step {index}: {there} are done, {late} not yet.",
        min(len(ready), 2),
        index=index,
        there=_ranks(ready),
        late=_ranks(late),
    )


def _local(tl: Timeline, module: Module, index: int) -> str:
    why = ""
    flags = [int(lane.passes[index]["flags"]) for lane in module.lanes.values() if index < len(lane.passes)]
    if flags and all(f & r.PassFlag.FLAGS_KNOWN and f & r.PassFlag.NO_SYNC_FORWARD for f in flags):
        why = _(" ran inside no_sync")
    elif len(module.ranks) == 1:
        return _("Micro-step {index}: one rank alone, there is nobody to average with.", index=index)
    values = _norms(module, index, "local_norm", r.PassFlag.HAS_LOCAL_NORM)
    grown = ""
    first = _window(module, index)[0]
    if values and len(values) <= 4:
        grown = ": " + ", ".join(_("rank {k} holds {v}", k=k, v=norm(v)) for k, v in values.items())
    added = (
        _("the first of its window") if first == index else _("number {number} of its window", number=index - first + 1)
    )
    return _(
        "Micro-step {index}{value}, {added}. Each rank added its own gradients; nothing was sent{grown}.",
        index=index,
        value=why or " stayed local",
        added=added,
        grown=grown,
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
    held = _(", norm {norm} on each", norm=norm(values[0])) if equal else ""
    made = gather(module, index)
    sent = ""
    if made is not None and len(made.buckets):
        rows = made.buckets[made.owner == made.owner[0]]
        total = int(rows["wire_bytes"].sum())
        sent = (
            _(" {size} in {buckets} went round.", size=size(total), buckets=plural(len(rows), "bucket"))
            if total
            else ""
        )
    return _(
        "Micro-step {index} was all-reduced: {all} now hold the mean of {sum_of}{held}.{sent}",
        index=index,
        all=_all(module),
        sum_of=_sum_of(module, index),
        held=held,
        sent=sent,
    )


def _stepped(tl: Timeline, module: Module, step: Step, index: int) -> str:
    part = next((p for p in step.parts if p.module == module.id), None)
    at, number = _at(step.site), step.index
    if part is None or part.gradients is Gradients.NONE:
        return _("Step {number}{at}: no parameter of {name} had a gradient.", number=number, at=at, name=module.name)
    if part.gradients is Gradients.SYNCED:
        same = {
            Replicas.EQUAL: _(" and the replicas are still equal, bit for bit"),
            Replicas.DIVERGED: _(", yet the replicas differ"),
            Replicas.UNKNOWN: "",
        }[part.replicas]
        return _(
            "Step {number}{at}: the optimizer used the mean gradient on {all}{same}.",
            number=number,
            at=at,
            all=_all(module),
            same=same,
        )
    if len(module.ranks) == 1:
        return _(
            "Step {number}{at}: the optimizer used this rank's gradients; there is nobody to average with.",
            number=number,
            at=at,
        )
    apart = _(" The replicas are now different models.") if part.replicas is Replicas.DIVERGED else ""
    if part.gradients is Gradients.STALE:
        return _(
            "Step {number}{at}: gradients were added after the all-reduce and never averaged; each rank "
            "stepped with its own.{apart}",
            number=number,
            at=at,
            apart=apart,
        )
    kinds = {kind for kind in part.by_rank if kind is not None}
    if part.gradients is Gradients.MIXED and len(kinds) > 1:
        by_rank = list(zip(module.ranks, part.by_rank, strict=True))
        told = "; ".join(
            _("{ranks} used {used}", ranks=_ranks([rank for rank, its in by_rank if its is kind]), used=_(_USED[kind]))
            for kind in sorted(kinds)
        )
        return _("Step {number}{at}: {told}.{apart}", number=number, at=at, told=told, apart=apart)
    if part.gradients is Gradients.MIXED:
        return _(
            "Step {number}{at}: a part of the gradients was averaged, a part was not; the ranks stepped "
            "differently.{apart}",
            number=number,
            at=at,
            apart=apart,
        )
    first = _window(module, index)[0]
    passes = (
        _("micro-steps {first} to {index}", first=first, index=index)
        if first < index
        else _("micro-step {index}", index=index)
    )
    return _(
        "Step {number}{at}: each rank stepped with its own gradients; {passes} ran without an all-reduce.{apart}",
        number=number,
        at=at,
        passes=passes,
        apart=apart,
    )
