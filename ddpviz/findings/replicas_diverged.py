"""replicas-diverged: the parameters differ across ranks after a step.

Measured: a checksum of all parameters after the update, equal bits giving equal numbers, compared across ranks at the
same step. Gradients, the optimizers' settings and steps that a rank left out say why.

Fires once for each module, at the first step after which the replicas differ, or that some ranks left out; steps after
it differ because it did, and are counted, not blamed. Where only some steps were measured, the message says between
which two it happened; where the replicas are equal again later, since which step.

Does not fire for local SGD that ends equal; nor for ranks that are out of phase or finished under `join`, whose k-th
steps are not the same step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import N_, _
from ddpviz.timeline.model import Gradients, Module, Replicas, Step, StepPart, Timeline
from ddpviz.trace import records as r

_HAS_PARAM = int(r.StepFlag.HAS_PARAM)


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        indices, replicas, _rest = facts.compared(tl, module)
        apart = indices[replicas == int(Replicas.DIVERGED)]
        last = int(apart[0]) if len(apart) else int(indices[-1]) if len(indices) else -1
        equal = indices[(replicas == int(Replicas.EQUAL)) & (indices < last + (not len(apart)))]
        since = int(equal[-1]) if len(equal) else -1
        left_out = _left_out(tl, module, since, last)
        if not len(apart) and (left_out is None or facts.final_equal(tl, module) is not False):
            continue
        sgd = facts.local_sgd(tl, module)
        if sgd is not None and sgd.equal:
            continue
        number = left_out[0] if left_out is not None else last
        step, part = facts.step_at(tl, number), facts.part_at(tl, module, number)
        if step is None or part is None:
            continue
        reason, advice = (
            _why(tl, module, step, part, since) if left_out is None else _why_left_out(tl, module, left_out)
        )
        odd = left_out[2] if left_out is not None else _odd(module, step)
        if odd and left_out is None:
            same = [k for k in module.ranks if k not in odd]
            reason = (
                _("{same} are still alike, {odd} not. ", same=words.start(words.ranks(same)), odd=words.ranks(odd))
                + reason
            )
        where, of = step.site, words.of(tl, module)
        if number - since == 1 or left_out is not None or (since < 0 and number == int(indices[0])):
            when = _("After step {number}{at}", number=number, at=words.at(where))
        elif since < 0:
            when = _("After step {number}{at}, the first that was measured,", number=number, at=words.at(where))
        else:
            when = _(
                "Between step {since}, when they were still equal, and step {number}{at}",
                since=since,
                number=number,
                at=words.at(where),
            )
        yield Finding(
            "replicas-diverged",
            Severity.ERROR,
            _(
                "{when} the parameters{of} differ between {ranks}: they are no longer the same model. "
                "{reason}{afterwards}",
                when=when,
                of=of,
                ranks=words.ranks(module.ranks),
                reason=reason,
                afterwards=_afterwards(indices, replicas, number),
            ),
            advice,
            module=module.id,
            ranks=odd or module.ranks,
            count=max(1, len(apart)),
            backward=next((a for a in part.after if a is not None and a >= 0), None),
            step=number,
            file=where.file,
            line=where.line,
            code=where.code,
            via=where.via,
            steps=(number,),
        )


def _odd(module: Module, step: Step) -> tuple[int, ...]:
    """The ranks whose parameters are not those that most ranks have; none where there is no such majority."""
    rows = {lane.rank: facts.step_row(lane, step) for lane in facts.lanes(module)}
    sums = {k: int(row["param_checksum"]) for k, row in rows.items() if row is not None and row["flags"] & _HAS_PARAM}
    most, count = Counter(sums.values()).most_common(1)[0] if sums else (0, 0)
    if len(sums) < len(module.ranks) or 2 * count <= len(sums):
        return ()
    return tuple(k for k, number in sums.items() if number != most)


def _afterwards(indices: facts.Ints, replicas: npt.NDArray[np.uint8], number: int) -> str:
    """What became of it: a sentence, or nothing."""
    later = indices > number
    apart, equal = (
        indices[later & (replicas == int(Replicas.DIVERGED))],
        indices[later & (replicas == int(Replicas.EQUAL))],
    )
    again = equal[equal > apart[-1]] if len(apart) else equal
    if len(again):
        return _(" They were equal again after step {again}.", again=int(again[0]))
    return (
        _(
            " They stayed different in {later_measured_steps}.",
            later_measured_steps=words.plural(len(apart), "later measured step"),
        )
        if len(apart)
        else ""
    )


def _why(tl: Timeline, module: Module, step: Step, part: StepPart, since: int) -> tuple[str, str]:
    """The cause as far as it was measured, and what to do. Steps after `since` up to `step` may be to blame."""
    for kind, sentence in (
        (Gradients.LOCAL, N_("Step {index} used gradients that were never averaged (see unsynced-step).")),
        (
            Gradients.STALE,
            N_("Step {index} used gradients that were averaged and then added to locally (see stale-sync-step)."),
        ),
    ):
        used = facts.steps_with(tl, module, kind)
        if used is not None:
            blamed = used.indices[(used.indices > since) & (used.indices <= step.index)]
            if len(blamed):
                return (
                    _(sentence, index=int(blamed[0])),
                    _(
                        "Let every step use averaged gradients, and start again from equal replicas: later right steps "
                        "do not bring them together."
                    ),
                )
    unmanaged = [n for u in tl.unmanaged.get(module.ranks[0], []) if u.module == module.id for n in u.names]
    if unmanaged:
        return (
            _(
                "The optimizer updates {names}, whose gradients are never all-reduced (see unmanaged-parameter).",
                names=words.names(unmanaged),
            ),
            _("Wrap the model after its parameters are final, and start again from equal replicas."),
        )
    if part.gradients is Gradients.MIXED:
        return (
            _("Step {index} used gradients of which only a part was averaged.", index=step.index),
            _("Let every parameter's gradient be averaged before the step, and start again from equal replicas."),
        )
    without = _without_gradients(module, step)
    if without:
        return (
            _(
                "{ranks} took it without any gradient, and the others with theirs: they were cleared there after "
                "the backward.",
                ranks=words.start(words.ranks(without)),
            ),
            _("Clear or drop gradients on all ranks or on none: all-reduce the condition first."),
        )
    differing = _differing(tl, module, step.index)
    if differing is not None:
        name, values = differing
        shown = words.listed(
            [
                _("{values} on {ranks}", values=", ".join(f"{x:g}" for x in v), ranks=words.ranks(k))
                for v, k in _grouped(values)
            ]
        )
        return (
            _(
                "The gradients were averaged; the optimizer's {name} is what differs: {shown}.",
                name=_(name),
                shown=shown,
            ),
            _(
                "Decide the learning rate from a value that all ranks share: average the metric (dist.all_reduce) "
                "before scheduler.step(metric), or decide on rank 0 and broadcast."
            )
            if name == "learning rate"
            else _("Build the optimizer, and change its settings, from values that all ranks share."),
        )
    if part.grads_equal is False:
        return (
            _(
                "Step {index} used gradients that differ between ranks (see gradients-changed-after-sync).",
                index=step.index,
            ),
            _("Let every rank step on the same averaged gradients, and start again from equal replicas."),
        )
    if not module.options.get("init_sync", True) and since < 0:
        return (
            _("DDP was built with init_sync=False, so the replicas need not have been equal at the start."),
            _("Leave init_sync at its default, or load the same weights on every rank before wrapping."),
        )
    if part.grads_equal and since < 0:
        return (
            _(
                "All ranks used bit-equal gradients, so the cause is not the averaging: the parameters differed "
                "before the first step (weights loaded or initialised on each rank after wrapping: DDP sends rank "
                "0's only when it is built), or the optimizer's state did (loaded on one rank)."
            ),
            _(
                "Load and initialise weights before wrapping, or in the same way on every rank; load the "
                "optimizer's state on every rank."
            ),
        )
    if part.grads_equal:
        return (
            _(
                "They were equal after step {since}, and step {index} used bit-equal gradients on all ranks: some "
                "ranks edited parameters in place in between (clamped, averaged, reloaded, noise of their own), or "
                "the optimizer's state is not the same (loaded on one rank).",
                since=since,
                index=step.index,
            ),
            _(
                "Make every rank edit parameters alike and load the same optimizer state; with per-rank random "
                "numbers, use one seed for whatever touches parameters."
            ),
        )
    return (
        _("The averaged gradients give no reason; parameters, optimizer state or settings differ between ranks."),
        _("Look for code that only some ranks run and that touches parameters, the optimizer or its settings."),
    )


def _without_gradients(module: Module, step: Step) -> list[int]:
    """Ranks that took the step without gradients while others had some."""
    rows = {lane.rank: row for lane in facts.lanes(module) if (row := facts.step_row(lane, step)) is not None}
    without = [rank for rank, row in rows.items() if int(row["flags"]) & r.StepFlag.NO_GRADS]
    return without if len(without) < len(rows) else []


def _settings(tl: Timeline, module: Module, step: int) -> dict[int, dict[str, tuple[float, ...]]]:
    """What the module's optimizers were set to at this step, by rank; ranks without a record are left out."""
    found: dict[int, dict[str, tuple[float, ...]]] = {}
    for rank, changes in tl.learning.items():
        latest: dict[int, r.Learning] = {}
        for change in changes:
            known = tl.optimizers.get((rank, change.optimizer))
            if rank in module.ranks and change.step <= step and known is not None and module.id in known.modules:
                latest[change.optimizer] = change
        if latest:
            mine = [latest[number] for number in sorted(latest)]
            names = [N_("learning rate"), *dict.fromkeys(name for x in mine for name in x.others)]
            values = [{"learning rate": x.rates, **x.others} for x in mine]
            found[rank] = {name: tuple(v for x in values for v in x.get(name, [])) for name in names}
    return found


def _differing(tl: Timeline, module: Module, step: int) -> tuple[str, dict[int, tuple[float, ...]]] | None:
    """The first setting of the optimizers that is not the same on all ranks, and its values by rank."""
    settings = _settings(tl, module, step)
    for name in next(iter(settings.values()), {}):
        values = {rank: mine.get(name, ()) for rank, mine in settings.items()}
        if len({len(v) for v in values.values()}) == 1 and len(set(values.values())) > 1:
            return name, values
    return None


def _grouped(values: dict[int, tuple[float, ...]]) -> list[tuple[tuple[float, ...], list[int]]]:
    """Ranks by what is set there; of several parameter groups only the places that differ."""
    places = [set(column) for column in zip(*values.values(), strict=True)]
    groups: dict[tuple[float, ...], list[int]] = {}
    for rank, mine in sorted(values.items()):
        groups.setdefault(tuple(v for v, seen in zip(mine, places, strict=True) if len(seen) > 1), []).append(rank)
    return list(groups.items())


def _left_out(
    tl: Timeline, module: Module, since: int, until: int
) -> tuple[int, tuple[int, ...], tuple[int, ...]] | None:
    """The first step after `since`, up to `until`, that some ranks took and others did not: number, these ranks, those
    ranks. A rank that ended early, or finished under `join`, leaves nothing out."""
    gone = facts.joined(tl, module)
    lanes = [lane for lane in facts.lanes(module) if lane.rank not in gone and len(lane.steps)]
    taken = {
        lane.rank: lane.steps["index"][(lane.steps["index"] > since) & (lane.steps["index"] <= until)] for lane in lanes
    }
    whole = np.unique(np.concatenate([*taken.values(), np.zeros(0, np.uint32)]))
    missing = {rank: np.setdiff1d(whole, mine, assume_unique=True) for rank, mine in taken.items()}
    missing = {rank: steps for rank, steps in missing.items() if len(steps)}
    if not missing:
        return None
    first = int(min(steps[0] for steps in missing.values()))
    without = tuple(rank for rank, steps in missing.items() if int(steps[0]) == first)
    return first, tuple(rank for rank in taken if rank not in without), without


def _why_left_out(tl: Timeline, module: Module, found: tuple[int, tuple[int, ...], tuple[int, ...]]) -> tuple[str, str]:
    number, took, without = found
    lane = module.lanes[took[0]]
    row = lane.steps[np.searchsorted(lane.steps["index"], number)]
    after = int(row["after"])
    scaler = any(after in module.lanes[rank].skipped["after"] for rank in without)
    reason = _(
        "{ranks} took the step after micro-step {after} and {without} did not{why}.",
        ranks=words.start(words.ranks(took)),
        after=after,
        without=words.ranks(without),
        why=_(": GradScaler skipped it there, on an Inf that only that rank had") if scaler else "",
    )
    if scaler:
        return reason, (
            _(
                "Average the gradients before GradScaler looks at them: scaler.unscale_(optimizer) after the "
                "all-reduce, so that an Inf of one rank is everybody's and all ranks skip the step."
            )
        )
    return reason, (
        _(
            "Decide on all ranks together whether to skip a step: all-reduce the condition first "
            "(dist.all_reduce(flag, op=dist.ReduceOp.MAX))."
        )
    )
