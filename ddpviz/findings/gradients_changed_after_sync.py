"""gradients-changed-after-sync: gradients were averaged, and differ across ranks when the step uses them.

Measured: a checksum of the gradients as the step uses them, compared across ranks that stepped after the same
micro-step.

Fires when the last pass behind the step was fully all-reduced on every rank, and the gradients differ all the same:
edited, clipped or scaled by a per-rank value, or noise added with a per-rank seed, after the all-reduce. Or the
step ran inside the backward itself, before the all-reduce: an optimizer in a gradient hook.

Does not fire where the pass was local, stale or partial (other rules say that); where the gradients are not finite (NaN
has many bit patterns); for local SGD that ends equal; where the steps were not measured.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Gradients, Timeline
from ddpviz.trace.records import StepFlag


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        indices, _rest, equal = facts.compared(tl, module)
        differ = indices[equal == 0]
        if not len(differ):
            continue
        for lane in facts.lanes(module):
            bad = (lane.gradients != int(Gradients.SYNCED)) | facts.has(lane.steps, StepFlag.NO_GRADS)
            bad |= ~np.isfinite(lane.steps["grad_norm"])
            differ = np.setdiff1d(differ, lane.steps["index"][bad])
        if not len(differ):
            continue
        sgd = facts.local_sgd(tl, module)
        if sgd is not None and sgd.equal:
            continue
        step = facts.step_at(tl, int(differ[0]))
        part = facts.part_at(tl, module, int(differ[0]))
        if step is None or part is None:
            continue
        norms, early = [], False
        for lane in facts.lanes(module):
            row = facts.step_row(lane, step)
            early |= row is not None and facts.in_own_backward(lane, row)
            if row is not None and int(row["flags"]) & StepFlag.HAS_GRAD:
                norms.append((lane.rank, float(row["grad_norm"])))
        shown = ", ".join(_("{norm:.6g} on rank {rank}", norm=norm, rank=rank) for rank, norm in norms[:4])
        where = step.site
        after = next((a for a in part.after if a is not None and a >= 0), None)
        of, number = words.of(tl, module), step.index
        message = (
            _(
                "Step {number}{of}{at} ran inside the backward of micro-step {after}, as an optimizer in a "
                "gradient hook does, and DDP averages a bucket only when all of it has arrived: the step used "
                "gradients that differ between ranks (norm {shown}).",
                number=number,
                of=of,
                at=words.at(where),
                after=after,
                shown=shown,
            )
            if early
            else _(
                "Micro-step {after}{of} was all-reduced, yet step {number}{at} used gradients that differ between "
                "ranks (norm {shown}): something changed them after the all-reduce, on each rank in its own way.",
                after=after,
                of=of,
                number=number,
                at=words.at(where),
                shown=shown,
            )
        )
        advice = (
            _("Step after the backward has returned: no optimizer in a hook of a parameter that DDP averages.")
            if early
            else _(
                "Between backward and step, do the same to the gradients on every rank: no scaling, clipping or "
                "noise by a value that only one rank knows. All-reduce such a value first."
            )
        )
        yield Finding(
            "gradients-changed-after-sync",
            Severity.ERROR,
            message + words.again(len(differ), len(indices)),
            advice,
            module=module.id,
            ranks=module.ranks,
            count=len(differ),
            backward=after,
            step=step.index,
            file=where.file,
            line=where.line,
            code=where.code,
            via=where.via,
            steps=tuple(differ.tolist()),
        )
