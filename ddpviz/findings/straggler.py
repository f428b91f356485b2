"""straggler: one rank is always the last to arrive at the all-reduce.

Measured: when each rank launched the last bucket of each all-reduced pass, on the common clock. Lateness of a rank in a
pass: its arrival minus the median arrival of the others.

Fires, as information, when one rank is last in at least 80 % of at least 20 passes, and late by at least 1 ms and 5 %
of the time between all-reduces (medians).

Does not fire on few passes, small differences, or where arrivals were not measured. Across hosts the clocks are
aligned on the all-reduces' ends, so a constant lateness of a whole host below that precision does not show.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Lane, Module, Timeline

_PASSES, _SHARE, _LATE_NS, _PART = 20, 0.8, 1_000_000, 0.05


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        table = arrivals(module)
        if table is None or table[0].shape[1] < _PASSES:
            continue
        times, passes = table
        last = np.argmax(times, axis=0)
        counts = np.bincount(last, minlength=len(times))
        worst = int(np.argmax(counts))
        share = counts[worst] / times.shape[1]
        late = float(np.median(times[worst] - np.median(np.delete(times, worst, axis=0), axis=0)))
        between = float(np.median(np.diff(np.median(times, axis=0))))
        if share < _SHARE or late < _LATE_NS or late < _PART * between:
            continue
        rank = module.ranks[worst]
        row = module.lanes[rank].passes[passes[0]]
        where = tl.site(rank, int(row["backward_site"]))
        yield Finding(
            "straggler",
            Severity.INFO,
            _(
                "Rank {rank} was the last to arrive at {share:.0%} of {all_reduces}{of}, by {time} (median); the "
                "others wait for it, which is {part:.0%} of the time between two all-reduces.",
                rank=rank,
                share=share,
                all_reduces=words.plural(times.shape[1], "all-reduce"),
                of=words.of(tl, module),
                time=words.duration(late),
                part=late / between,
            ),
            _(
                "Look at what rank {rank} does more than the others: larger batches, data loading, logging or "
                "saving, a slower or shared device.",
                rank=rank,
            ),
            module=module.id,
            ranks=(rank,),
            count=int(counts[worst]),
            backward=int(passes[0]),
            file=where.file,
            line=where.line,
            code=where.code,
            via=where.via,
        )


def arrivals(module: Module) -> tuple[facts.Ints, facts.Ints] | None:
    """When each rank launched its last bucket, [rank, pass] in ns, and the passes; those that all ranks all-reduced."""
    if set(module.lanes) != set(module.ranks):
        return None
    found = [_last_launch(module.lanes[rank]) for rank in module.ranks]
    common = found[0][0]
    for passes, _rest in found[1:]:
        common = np.intersect1d(common, passes, assume_unique=True)
    if not len(common):
        return None
    return np.array([times[np.searchsorted(passes, common)] for passes, times in found]), common


def _last_launch(lane: Lane) -> tuple[facts.Ints, facts.Ints]:
    rows = lane.buckets[lane.buckets["launch"] != 0]
    if not len(rows):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    starts = facts.starts_of(rows["pass"])
    passes = rows["pass"][starts]
    return passes.astype(np.int64), np.maximum.reduceat(rows["launch"], starts)
