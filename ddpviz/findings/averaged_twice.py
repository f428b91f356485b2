"""averaged-twice: DDP has averaged the gradients, and the script all-reduces them again by hand.

Measured: the collectives between the backward pass that DDP all-reduced and the step, those that were seen to carry the
module's gradients, and the norm of the gradients before and after.

Fires when they carry at least as many elements as the module has: the second all-reduce is wasted, and where it sums
without dividing, every gradient is as many times too large as there are ranks.

Does not fire where DDP was kept quiet (no_sync) and the averaging by hand is the only one; for parameters that DDP does
not manage; on another group of ranks than DDP's; for norms, losses or copies of gradients that are gathered to look at.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Lane, Module, Sync, Timeline
from ddpviz.trace import records as r

_NEAR = 0.02  # of the ratio of two norms


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        found = {lane.rank: _again(tl, module, lane) for lane in facts.lanes(module)}
        ranks = tuple(rank for rank, (steps, _rest) in found.items() if len(steps))
        if not ranks:
            continue
        lane, (steps, sites) = module.lanes[ranks[0]], found[ranks[0]]
        row = lane.steps[steps[0]]
        after, n = int(row["after"]), len(module.ranks)
        where = tl.site(lane.rank, sites[0])
        ratio = _ratio(lane, row)
        summed = ratio is not None and abs(ratio - n) < _NEAR * n
        result = (
            _(
                " It sums and does not divide, so every gradient is {n} times the mean, and with it the effective "
                "learning rate.",
                n=n,
            )
            if summed
            else _(" The gradients were the mean already: the second all-reduce is wasted.")
            if ratio is not None and abs(ratio - 1) < _NEAR
            else ""
        )
        yield Finding(
            "averaged-twice",
            Severity.WARNING,
            _(
                "DDP all-reduced micro-step {after}{of}, and before step {index} the script all-reduced its "
                "gradients once more{at}.{result}{again}",
                after=after,
                of=words.of(tl, module),
                index=int(row["index"]),
                at=words.at(where),
                result=result,
                again=words.again(len(steps), len(lane.steps)),
            ),
            _(
                "Leave the averaging to DDP and remove the all-reduce by hand; or keep DDP quiet with `with "
                "model.no_sync():` and divide by the world size."
            ),
            module=module.id,
            ranks=ranks,
            count=len(steps),
            backward=after,
            step=int(row["index"]),
            file=where.file,
            line=where.line,
            code=where.code,
            via=where.via,
            steps=tuple(int(k) for k in lane.steps["index"][steps]),
        )


def _again(tl: Timeline, module: Module, lane: Lane) -> tuple[facts.Ints, list[int]]:
    """Positions of the steps whose gradients DDP had averaged and the script all-reduced again, and from where."""
    none = np.zeros(0, np.int64)
    group = tl.groups.get(module.group)
    rows = group.collectives.get(lane.rank) if group is not None else None
    if rows is None or not len(rows) or not len(lane.steps) or not len(lane.passes):
        return none, []
    carried = facts.has(rows, r.CollectiveFlag.GRADIENTS) & ((rows["flags"] & int(r.CollectiveFlag.IN_PASS)) == 0)
    rows = rows[carried & (rows["kind"] == int(r.CollectiveKind.ALL_REDUCE))]
    after = lane.steps["after"].astype(np.int64)
    inside = (after >= 0) & (after < len(lane.passes)) & (lane.steps["unmanaged"] == 0)
    passes = lane.passes[np.clip(after, 0, len(lane.passes) - 1)]
    inside &= lane.sync[np.clip(after, 0, len(lane.passes) - 1)] == int(Sync.SYNCED)
    first = np.searchsorted(rows["count"], passes["collective"].astype(np.int64) + passes["collectives"])
    last = np.searchsorted(rows["count"], lane.steps["collective"])
    moved = np.concatenate([[0], np.cumsum(rows["numel"].astype(np.int64))])
    steps = np.flatnonzero(inside & (last > first) & (moved[last] - moved[np.minimum(first, last)] >= module.numel))
    return steps, [int(site) for site in rows["site"][first[steps]]]


def _ratio(lane: Lane, row: np.void) -> float | None:
    """Norm of the gradients as the step used them over their norm after DDP's all-reduce; None if not measured."""
    before = lane.passes[int(row["after"])]
    known = int(row["flags"]) & r.StepFlag.HAS_GRAD and int(before["flags"]) & r.PassFlag.HAS_NORM
    if not known or not np.isfinite(before["norm"]) or not before["norm"] > 0:
        return None
    return float(row["grad_norm"]) / float(before["norm"])
