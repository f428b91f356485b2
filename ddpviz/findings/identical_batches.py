"""identical-batches: ranks compute the same gradients, pass after pass, so they see the same data.

Measured: each rank's own gradient norm before any averaging, compared bit for bit. Different batches give different
norms in practice always; equal ones on equal hardware give equal bits.

Fires when two or more ranks have bit-equal norms in every measured pass, and there are at least two passes with a norm
that is finite and not zero.

Does not fire on zero or non-finite gradients, on passes that were not measured, nor with one rank. On unlike hardware
equal data may give unequal bits; then it stays silent.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Timeline
from ddpviz.trace.records import PassFlag

_MOST = 4096  # passes compared


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        lanes = [lane for lane in facts.lanes(module) if len(lane.passes) > 1]
        if len(lanes) < 2:
            continue
        n = min(len(lane.passes) for lane in lanes)
        known = np.ones(n, bool)
        for lane in lanes:
            known &= facts.has(lane.passes[:n], PassFlag.HAS_LOCAL_NORM)
        use = np.flatnonzero(known)[:_MOST]
        norms = np.array([lane.passes["local_norm"][use] for lane in lanes])
        real = (np.isfinite(norms) & (norms != 0)).all(0)
        norms, use = np.ascontiguousarray(norms[:, real]), use[real]
        if norms.shape[1] < 2:
            continue
        _rest, same = np.unique(norms.view(np.uint64), axis=0, return_inverse=True)
        same = np.asarray(same).reshape(-1)
        sizes = np.bincount(same)
        groups = [tuple(lanes[i].rank for i in np.flatnonzero(same == g)) for g in np.flatnonzero(sizes > 1)]
        if not groups:
            continue
        groups.sort()
        lane = module.lanes[groups[0][0]]
        where = tl.site(lane.rank, int(lane.passes[use[0]]["forward_site"]))
        if not where.file:
            where = tl.site(lane.rank, int(lane.passes[use[0]]["backward_site"]))
        which = words.listed([words.ranks(g, module.ranks) for g in groups[:4]])
        yield Finding(
            "identical-batches",
            Severity.WARNING,
            _(
                "{which} computed bit-equal gradients{of} in all {count:,} measured micro-steps{at}: they see the "
                "same batches, and do the same work as one rank.",
                which=words.start(which),
                of=words.of(tl, module),
                count=len(use),
                at=words.at(where),
            ),
            _(
                "Give each rank its own share: DistributedSampler with sampler.set_epoch(epoch), or a seed that "
                "differs by rank for the data (not for the initial weights)."
            ),
            module=module.id,
            ranks=tuple(sorted(r for g in groups for r in g)),
            count=len(use),
            backward=int(use[0]),
            file=where.file,
            line=where.line,
            code=where.code,
            via=where.via,
        )
