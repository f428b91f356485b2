"""exposed-communication: how much of the all-reduce time is not hidden behind the backward pass.

Measured, per pass: the time from the first launch to the last end of its buckets' all-reduces, and of it the part after
the last gradient was ready. That part is exposed: nothing is computed meanwhile. It includes waiting for a late rank.

Fires, as information, when at least 20 passes were measured, more than half of the all-reduce time is exposed, and it
is at least 10 % of the time of the passes and what lies between them (from one all-reduced pass's begin to the next's).

Does not fire where ends of all-reduces were not measured, as on NCCL without events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Lane, Timeline

_PASSES, _SHARE, _PART = 20, 0.5, 0.1


@dataclass(frozen=True, slots=True)
class Overlap:
    """All-reduce time of one rank's passes, ns, by pass."""

    passes: facts.Ints
    total: facts.Ints
    exposed: facts.Ints

    @property
    def share(self) -> float:
        """Exposed share of all-reduce time, 0 to 1."""
        return float(self.exposed.sum() / max(1, int(self.total.sum())))


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        found = {lane.rank: o for lane in facts.lanes(module) if (o := overlap(lane)) is not None}
        found = {rank: o for rank, o in found.items() if len(o.passes) >= _PASSES}
        if not found:
            continue
        rank = max(found, key=lambda k: found[k].share)
        worst = found[rank]
        begin = module.lanes[rank].passes["begin"][worst.passes]
        spent = int(begin[-1] - begin[0])
        exposed = int(worst.exposed[:-1].sum())
        if worst.share < _SHARE or not spent or exposed / spent < _PART:
            continue
        layout = module.layouts[-1] if module.layouts else None
        one = layout is not None and len(layout.buckets) == 1
        where = tl.site(rank, int(module.lanes[rank].passes[worst.passes[0]]["backward_site"]))
        yield Finding(
            "exposed-communication",
            Severity.INFO,
            _(
                "{share:.0%} of the all-reduce time{of} is not hidden behind backward on rank {rank}: {time} a "
                "pass (median of {count:,}), {part:.0%} of the time of the loop.{one}",
                share=worst.share,
                of=words.of(tl, module),
                rank=rank,
                time=words.duration(float(np.median(worst.exposed))),
                count=len(worst.passes),
                part=exposed / spent,
                one=_(" All parameters are in one bucket, which leaves nothing to overlap.") if one else "",
            ),
            _(
                "Let buckets start earlier with a smaller bucket_cap_mb, accumulate over more micro-steps with "
                "no_sync(), or compress (fp16_compress_hook)."
            )
            if one
            else _(
                "Send less or less often: accumulate over more micro-steps with no_sync(), or compress "
                "(fp16_compress_hook)."
            ),
            module=module.id,
            ranks=tuple(found),
            count=len(worst.passes),
            backward=int(worst.passes[0]),
            file=where.file,
            line=where.line,
            code=where.code,
            via=where.via,
        )


def overlap(lane: Lane) -> Overlap | None:
    """All-reduce time and its exposed part for each pass whose bucket times were all measured; None if none."""
    rows = lane.buckets
    if not len(rows):
        return None
    starts = facts.starts_of(rows["pass"])
    passes = rows["pass"][starts]
    whole = np.minimum.reduceat(np.minimum(rows["launch"], np.minimum(rows["done"], rows["ready"])), starts) > 0
    if not whole.any():
        return None
    launch = np.minimum.reduceat(rows["launch"], starts)[whole]
    done = np.maximum.reduceat(rows["done"], starts)[whole]
    ready = np.maximum.reduceat(rows["ready"], starts)[whole]
    total = np.maximum(done - launch, 0)
    return Overlap(passes[whole].astype(np.int64), total, np.clip(done - np.maximum(ready, launch), 0, total))
