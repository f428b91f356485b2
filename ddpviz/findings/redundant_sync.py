"""redundant-sync: several all-reduced micro-steps feed one step, where one all-reduce would do.

Measured: the passes between two steps whose collectives were really issued, and the bytes these carried.

Fires when a step used more than one all-reduced pass of one window: all but the last could have run under no_sync()
with the same result. The bytes are what those passes handed to collectives on one rank.

Does not fire with one rank; for windows that reached no step (evaluation, a pass through a frozen critic); for steps
that GradScaler skipped it counts as for any step.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Lane, Module, Sync, Timeline
from ddpviz.trace.records import PassFlag


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        found = {lane.rank: _redundant(lane) for lane in facts.lanes(module)}
        ranks = tuple(rank for rank, (wasted, _windows, _all) in found.items() if len(wasted))
        if not ranks:
            continue
        lane = module.lanes[ranks[0]]
        wasted, stretches, sent = found[ranks[0]]
        first = int(wasted[0])
        where = tl.site(lane.rank, int(lane.passes[first]["backward_site"]))
        saved = _bytes(module, lane, wasted)
        of = words.of(tl, module)
        window = [int(i) for i in sent]
        split = facts.has(lane.passes[wasted], PassFlag.FLAGS_KNOWN | PassFlag.NO_SYNC_BACKWARD)
        split &= ~np.isin(
            wasted - 1, [u.after for u in lane.unanswered]
        )  # another forward armed it: no-sync-split says
        message = _(
            "{micro_steps}{of}{at} fed one step and were each all-reduced; only the last has to be, since it "
            "carries the sum. {all_reduced_micro_steps} in {windows} could have stayed local, which saves "
            "{size} on each rank.",
            micro_steps=words.start(words.numbered("micro-step", window)),
            of=of,
            at=words.at(where),
            all_reduced_micro_steps=words.plural(len(wasted), "all-reduced micro-step"),
            windows=words.plural(stretches, "window"),
            size=words.size(saved),
        )
        if split.any():
            advice = _(
                "no_sync() is around the backward alone here and has no effect: put the forward inside the context "
                "too, for all micro-steps but the last before the step."
            )
        else:
            advice = _(
                "Run forward and backward inside `with model.no_sync():` for all micro-steps but the last before "
                "the step."
            )
        yield Finding(
            "redundant-sync",
            Severity.WARNING,
            message,
            advice,
            module=module.id,
            ranks=ranks,
            count=stretches,
            backward=first,
            step=_step(lane, first),
            file=where.file,
            line=where.line,
            code=where.code,
            via=where.via,
            backwards=tuple(wasted.tolist()),
        )


def _redundant(lane: Lane) -> tuple[facts.Ints, int, facts.Ints]:
    """Passes whose all-reduce was not needed, in how many windows, and all synchronised passes of the first."""
    stretch, step = facts.segments(lane)
    none = np.zeros(0, np.int64)
    if not len(stretch):
        return none, 0, none
    sent = (lane.sync[: len(stretch)] == int(Sync.SYNCED)) & (step != -1)
    total = np.bincount(stretch, weights=sent)
    many = sent & (total[stretch] > 1)
    if not many.any():
        return none, 0, none
    rank_in = np.cumsum(sent) - np.concatenate([[0], np.cumsum(total)])[stretch]  # 1 for the first sent of a stretch
    wasted = np.flatnonzero(many & (rank_in < total[stretch]))
    first = np.flatnonzero(many & (stretch == stretch[wasted[0]]))
    return wasted, int((total > 1).sum()), first


def _bytes(module: Module, lane: Lane, wasted: facts.Ints) -> int:
    """Bytes that these passes handed to collectives; by the size of the parameters where no bucket row tells."""
    if len(lane.buckets):
        mask = np.zeros(len(lane.passes), bool)
        mask[wasted] = True
        rows = lane.buckets[lane.buckets["pass"] < len(mask)]
        moved = int(rows["wire_bytes"][mask[rows["pass"]]].astype(np.int64).sum())
        if moved:
            return moved
    return len(wasted) * module.numel * module.itemsize


def _step(lane: Lane, index: int) -> int | None:
    at = int(np.searchsorted(lane.steps["after"], index))
    return int(lane.steps[at]["index"]) if at < len(lane.steps) else None
