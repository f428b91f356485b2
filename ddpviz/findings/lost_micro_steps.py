"""lost-micro-steps: gradients were accumulated locally, and cleared or left behind without ever reaching a step.

Measured: each clearing of gradients (zero_grad, or gradients found gone), whether they had reached a step, and which
passes they came from.

Fires when
- a window that ended in a local pass was cleared before any step, and the backward line is one that also feeds steps,
  or the clearing line is the loop's own and this happens for most steps: zero_grad() is inside the accumulation loop;
- every step found no gradient at all, since they were cleared between backward and step;
- the job finished with such local passes that no step used: the last window was never closed.

Does not fire for windows that GradScaler skipped; for windows whose last pass was all-reduced (dropped on purpose: a
non-finite norm, a pass through a critic); for gradients that land in one module while another is trained in the same
backward pass; for backward lines of their own (an evaluation, an attack, SAM's first step, a warm-up); for modules
that no optimizer steps; for jobs that did not finish.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Lane, Module, Sync, Timeline
from ddpviz.trace.records import StepFlag


def check(tl: Timeline) -> Iterator[Finding]:
    for module in tl.modules:
        found = {lane.rank: _lost(tl, module, lane) for lane in facts.lanes(module)}
        ranks = tuple(rank for rank, (lost, _rest) in found.items() if len(lost))
        if ranks:
            yield _cleared(tl, module, ranks, *found[ranks[0]])
            continue
        left = {lane.rank: _left(tl, module, lane) for lane in facts.lanes(module)}
        ranks = tuple(rank for rank, indices in left.items() if len(indices))
        if ranks:
            yield _left_over(tl, module, ranks, left[ranks[0]])


def _lost(tl: Timeline, module: Module, lane: Lane) -> tuple[facts.Ints, facts.Ints]:
    """Local passes whose gradients were cleared unused, and the positions of the clearings in `lane.clears`."""
    none = np.zeros(0, np.int64)
    if not len(lane.clears) or not len(lane.passes) or not len(lane.steps):
        return none, none
    if lane.clears["by_step"].all():
        return none, none
    reached = np.union1d(lane.clears["window"][lane.clears["by_step"] != 0], lane.skipped["window"])
    clears = np.flatnonzero((lane.clears["by_step"] == 0) & ~np.isin(lane.clears["window"], reached))
    windows = lane.passes["window"]
    lo = np.searchsorted(windows, lane.clears["window"][clears], "left")
    hi = np.searchsorted(windows, lane.clears["window"][clears], "right")
    some = hi > lo
    clears, lo, hi = clears[some], lo[some], hi[some]
    local = lane.sync[hi - 1] == int(Sync.LOCAL)
    clears, lo, hi = clears[local], lo[local], hi[local]
    if not len(clears):
        return none, none
    with_others = _shared_passes(module, lane, tl)
    own = ~with_others[hi - 1]
    empty = facts.has(lane.steps, StepFlag.NO_GRADS)
    if not empty.all():
        used = _feeding(lane)
        site = lane.passes["backward_site"]
        same_line = np.isin(site[hi - 1], site[used]) | (site[hi - 1] == 0)
        before = np.searchsorted(lane.steps["after"], hi - 1)  # the step that each lost window comes before
        at_steps, often = np.unique(before[own], return_counts=True)
        usual = int((often > 1).sum()) * 2 >= len(lane.steps) and len(at_steps) > 0
        loops = lane.clears["site"][lane.clears["by_step"] != 0]
        own &= same_line | (np.isin(lane.clears["site"][clears], loops) & usual)
    clears, lo, hi = clears[own], lo[own], hi[own]
    if not len(clears):
        return none, none
    return np.concatenate([np.arange(a, b) for a, b in zip(lo, hi, strict=True)]), clears


def _feeding(lane: Lane) -> facts.Ints:
    """Passes whose gradients a step used, or GradScaler skipped."""
    _rest, step = facts.segments(lane)
    return np.flatnonzero(step != -1)


def _shared_passes(module: Module, lane: Lane, tl: Timeline) -> facts.Bools:
    """Passes that also gave gradients to another module: one backward through several, of which not all are trained."""
    found = np.zeros(len(lane.passes), bool)
    for other in tl.modules:
        theirs = other.lanes.get(lane.rank)
        if other.id != module.id and theirs is not None and len(theirs.passes):
            found |= np.isin(lane.passes["begin"], theirs.passes["begin"])
    return found


def _left(tl: Timeline, module: Module, lane: Lane) -> facts.Ints:
    """Local passes at the end of a finished job that no step used."""
    none = np.zeros(0, np.int64)
    if tl.run.status != "finished" or not len(lane.passes) or not len(lane.steps):
        return none
    if (state := tl.ranks.get(lane.rank)) is None or state.exit is None:
        return none  # no last word: the end of its recording may be missing (a full disk)
    ends = [int(lane.steps["after"].max())]
    ends += [int(lane.skipped["after"].max())] if len(lane.skipped) else []
    ends += [int(lane.clears["after"].max())] if len(lane.clears) else []
    rest = np.arange(max(ends) + 1, len(lane.passes))
    if not len(rest) or lane.sync[-1] != int(Sync.LOCAL) or _shared_passes(module, lane, tl)[-1]:
        return none
    used, site = _feeding(lane), lane.passes["backward_site"]
    return rest if len(used) and (site[-1] == 0 or site[-1] in site[used]) else none


def _cleared(tl: Timeline, module: Module, ranks: tuple[int, ...], lost: facts.Ints, clears: facts.Ints) -> Finding:
    lane = module.lanes[ranks[0]]
    clear = lane.clears[clears[0]]
    where = tl.site(lane.rank, int(clear["site"]))
    of, total = words.of(tl, module), len(lane.passes)
    message = _(
        "The gradients of {micro_steps}{of} were cleared{at} before any step used them: the work of "
        "{lost:,} of {total} was thrown away on {ranks}.",
        micro_steps=words.numbered("micro-step", lost),
        of=of,
        at=words.at(where),
        lost=len(lost),
        total=words.plural(total, "micro-step"),
        ranks=words.ranks(ranks, module.ranks),
    )
    if facts.has(lane.steps, StepFlag.NO_GRADS).all():
        message += _(" None of the {steps} found any gradient.", steps=words.plural(len(lane.steps), "step"))
        advice = _("Call zero_grad() after optimizer.step(), or before the backward; not between the two.")
    else:
        advice = _("Call zero_grad() once a window, right after optimizer.step(), not for every micro-step.")
    return Finding(
        "lost-micro-steps",
        Severity.WARNING,
        message,
        advice,
        module=module.id,
        ranks=ranks,
        count=len(lost),
        backward=int(lost[0]),
        file=where.file,
        line=where.line,
        code=where.code,
        via=where.via,
        backwards=tuple(lost.tolist()),
    )


def _left_over(tl: Timeline, module: Module, ranks: tuple[int, ...], left: facts.Ints) -> Finding:
    lane = module.lanes[ranks[0]]
    where = tl.site(lane.rank, int(lane.passes[left[-1]]["backward_site"]))
    return Finding(
        "lost-micro-steps",
        Severity.WARNING,
        _(
            "The job ended with {micro_steps}{of} ({numbers}{at}) whose gradients no step used, on {ranks}: "
            "the last window was never closed.",
            micro_steps=words.plural(len(left), "micro-step"),
            of=words.of(tl, module),
            numbers=words.ranges(left.tolist()),
            at=", " + where.short if where.file else "",
            ranks=words.ranks(ranks, module.ranks),
        ),
        _(
            "Close the short window too: synchronise and step on the last micro-step of the data as well, `if "
            "(i + 1) % accumulation == 0 or i + 1 == len(loader)`."
        ),
        module=module.id,
        ranks=ranks,
        count=len(left),
        backward=int(left[0]),
        file=where.file,
        line=where.line,
        code=where.code,
        via=where.via,
        backwards=tuple(left.tolist()),
    )
