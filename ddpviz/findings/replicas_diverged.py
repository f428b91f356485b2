"""replicas-diverged: the parameters differ across ranks after a step.

Measured: a checksum of all parameters after the update, equal bits giving equal numbers, compared across ranks that
stepped after the same micro-step (so a rank that skipped a step by itself is compared too). Gradients, learning rates
and the number of steps say why.

Fires once for each module, at the first step after which the replicas differ; steps after it differ because it did, and
are counted, not blamed. Where only some steps were measured, the message says between which two it happened.

Does not fire for local SGD that ends equal; nor for ranks that are out of phase or finished under `join`, whose k-th
steps are not the same step.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.timeline.model import Gradients, Module, Replicas, Step, StepPart, Timeline
from ddpviz.trace import records as r


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        indices, replicas, _ = facts.compared(tl, module)
        apart = indices[replicas == int(Replicas.DIVERGED)]
        if not len(apart):
            yield from _out_of_phase(tl, module)
            continue
        step = facts.step_at(tl, int(apart[0]))
        part = facts.part_at(tl, module, int(apart[0]))
        if step is None or part is None:
            continue
        sgd = facts.local_sgd(tl, module)
        if sgd is not None and sgd.equal:
            continue
        equal = indices[(replicas == int(Replicas.EQUAL)) & (indices < step.index)]
        since = int(equal[-1]) if len(equal) else -1
        reason, advice = _why(tl, module, step, part, since)
        where, of = step.site, words.of(tl, module)
        if step.index - since == 1 or (since < 0 and step.index == int(indices[0])):
            when = f"After step {step.index}{words.at(where)}"
        elif since < 0:
            when = f"After step {step.index}{words.at(where)}, the first that was measured,"
        else:
            when = f"Between step {since}, when they were still equal, and step {step.index}{words.at(where)}"
        rest = int((replicas[indices > step.index] == int(Replicas.DIVERGED)).sum())
        after = f" They stayed different in {words.plural(rest, 'later measured step')}." if rest else ""
        yield Finding(
            "replicas-diverged",
            Severity.ERROR,
            f"{when} the parameters{of} differ between {words.ranks(module.ranks)}: they are no longer the same "
            f"model. {reason}{after}",
            advice,
            module=module.id,
            ranks=module.ranks,
            count=len(apart),
            backward=next((a for a in part.after if a is not None and a >= 0), None),
            step=step.index,
            file=where.file,
            line=where.line,
            code=where.code,
            via=where.via,
            steps=(step.index,),
        )


def _why(tl: Timeline, module: Module, step: Step, part: StepPart, since: int) -> tuple[str, str]:
    """The cause as far as it was measured, and what to do. Steps after `since` up to `step` may be to blame."""
    for kind, words_for in (
        (Gradients.LOCAL, "never averaged"),
        (Gradients.STALE, "averaged and then added to locally"),
    ):
        used = facts.steps_with(tl, module, kind)
        if used is not None:
            blamed = used.indices[(used.indices > since) & (used.indices <= step.index)]
            if len(blamed):
                rule = "unsynced-step" if kind is Gradients.LOCAL else "stale-sync-step"
                return (
                    f"Step {int(blamed[0])} used gradients that were {words_for} (see {rule}).",
                    "Let every step use averaged gradients, and start again from equal replicas: later right steps "
                    "do not bring them together.",
                )
    unmanaged = [n for u in tl.unmanaged.get(module.ranks[0], []) if u.module == module.id for n in u.names]
    if unmanaged:
        return (
            f"The optimizer updates {words.names(unmanaged)}, whose gradients are never all-reduced (see "
            "unmanaged-parameter).",
            "Wrap the model after its parameters are final, and start again from equal replicas.",
        )
    if part.gradients is Gradients.MIXED:
        return (
            f"Step {step.index} used gradients of which only a part was averaged.",
            "Let every parameter's gradient be averaged before the step, and start again from equal replicas.",
        )
    rates = _rates(tl, step.index)
    if len(set(rates.values())) > 1:
        shown = words.listed([f"{', '.join(f'{x:g}' for x in v)} on {words.ranks(k)}" for v, k in _grouped(rates)])
        return (
            f"The gradients were averaged; the learning rate is what differs: {shown}.",
            "Decide the learning rate from a value that all ranks share: average the metric (dist.all_reduce) before "
            "scheduler.step(metric), or decide on rank 0 and broadcast.",
        )
    if part.grads_equal is False:
        return (
            "The gradients were averaged, and then differed between ranks when the step used them (see "
            "gradients-changed-after-sync).",
            "Change gradients before they are averaged, or in the same way on every rank.",
        )
    if not module.options.get("init_sync", True) and since < 0:
        return (
            "DDP was built with init_sync=False, so the replicas need not have been equal at the start.",
            "Leave init_sync at its default, or load the same weights on every rank before wrapping.",
        )
    if part.grads_equal:
        return (
            "All ranks used bit-equal gradients, so the cause is not the averaging: the parameters differed before "
            "the step (edited in place or initialised after wrapping), or the optimizer's state or settings do "
            "(loaded on one rank, another momentum or weight decay).",
            "Make every rank edit parameters alike and load the same optimizer state; with per-rank random numbers, "
            "use one seed for whatever touches parameters.",
        )
    return (
        "The averaged gradients give no reason; parameters, optimizer state or settings differ between ranks.",
        "Look for code that only some ranks run and that touches parameters, the optimizer or its settings.",
    )


def _rates(tl: Timeline, step: int) -> dict[int, tuple[float, ...]]:
    """Learning rates in force at this step, by rank, of all optimizers; ranks without a record are left out."""
    found: dict[int, tuple[float, ...]] = {}
    for rank, changes in tl.learning.items():
        latest: dict[int, list[float]] = {}
        for change in changes:
            if change.step <= step:
                latest[change.optimizer] = change.rates
        if latest:
            found[rank] = tuple(x for key in sorted(latest) for x in latest[key])
    return found


def _grouped(rates: dict[int, tuple[float, ...]]) -> list[tuple[tuple[float, ...], list[int]]]:
    groups: dict[tuple[float, ...], list[int]] = {}
    for rank, values in sorted(rates.items()):
        groups.setdefault(values, []).append(rank)
    return list(groups.items())


def _out_of_phase(tl: Timeline, module: Module) -> Iterator[Finding]:
    """Ranks whose k-th steps are not the same, because one skipped a step: compared by the micro-step before."""
    gone = facts.joined(tl, module)
    tables = {lane.rank: lane.steps for lane in facts.lanes(module) if lane.rank not in gone and len(lane.steps)}
    if len(tables) < 2 or module.drift is not None:
        return
    rows0 = next(iter(tables.values()))
    if all(np.array_equal(rows[["index", "after"]], rows0[["index", "after"]]) for rows in tables.values()):
        return  # in phase: compared already
    common = None
    for rows in tables.values():
        mine = np.unique(rows["after"][facts.has(rows, r.StepFlag.HAS_PARAM)])
        common = mine if common is None else np.intersect1d(common, mine)
    if common is None or not len(common):
        return
    last = [rows[np.searchsorted(rows["after"], common, "right") - 1] for rows in tables.values()]
    sums = np.array([rows["param_checksum"] for rows in last])
    apart = np.flatnonzero((sums != sums[0]).any(0))
    if not len(apart):
        return
    first = int(common[apart[0]])
    taken = {rank: int((rows["after"] <= first).sum()) for rank, rows in tables.items()}
    few = [rank for rank, n in taken.items() if n == min(taken.values())]
    most = next(rank for rank, n in taken.items() if n == max(taken.values()))
    at = int(np.searchsorted(tables[most]["after"], first, "right")) - 1
    row = tables[most][at]
    where = tl.site(most, int(row["site"]))
    if len(few) < len(taken):
        theirs, mine = tables[most]["after"], tables[few[0]]["after"]
        lost = [int(a) for a in theirs[theirs <= first] if a not in mine]
        skipped = f", which skipped the step after {words.numbered('micro-step', lost)}" if lost else ""
        blamed, backward = tuple(few), lost[0] if lost else first
        reason = (
            f"Up to there {words.ranks(few)} took {words.plural(min(taken.values()), 'step')}{skipped}, and rank "
            f"{most} took {max(taken.values())}."
        )
        advice = (
            "Decide on all ranks together whether to skip a step: all-reduce the condition first "
            "(dist.all_reduce(flag, op=dist.ReduceOp.MAX))."
        )
    else:
        step = facts.step_at(tl, int(row["index"]))
        part = facts.part_at(tl, module, int(row["index"]))
        if step is None or part is None:
            return
        blamed, backward = module.ranks, first
        reason, advice = _why(tl, module, step, part, int(tables[most][at - 1]["index"]) if at else -1)
    yield Finding(
        "replicas-diverged",
        Severity.ERROR,
        f"After micro-step {first} and the step{words.at(where)} that follows it, the "
        f"parameters{words.of(tl, module)} differ between {words.ranks(module.ranks)}: they are no longer the same "
        f"model. {reason}",
        advice,
        module=module.id,
        ranks=blamed,
        count=len(apart),
        backward=backward,
        step=int(row["index"]),
        file=where.file,
        line=where.line,
        code=where.code,
        via=where.via,
    )
