"""clipped-before-sync: gradients are clipped on each rank before they are averaged.

Measured: each call of clip_grad_norm_ or clip_grad_value_ on the module's gradients, the total norm that it returned,
and whether these gradients had been all-reduced by then.

Fires when a clip took effect on gradients that were still local and were averaged later, by the last pass of the window
or by hand: it acts on partial sums of one rank, and the averaged gradient is another than the clipped average.

Does not fire when the norm was within the limit, so that nothing was changed; for an infinite limit (clip_grad_norm_ as
a way to read the norm); after the averaging; where the step used local gradients anyway (unsynced-step); with one rank.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Gradients, Lane, Module, Sync, Timeline
from ddpviz.trace import records as r


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        found = {lane.rank: _early(tl, module, lane) for lane in facts.lanes(module)}
        ranks = tuple(rank for rank, clips in found.items() if clips)
        if not ranks:
            continue
        lane, clips = module.lanes[ranks[0]], found[ranks[0]]
        first = clips[0]
        where = tl.site(lane.rank, first.site)
        norm = _(" from norm {norm:.3g}", norm=first.norm) if first.norm is not None else ""
        indices = sorted({c.after for c in clips})
        yield Finding(
            "clipped-before-sync",
            Severity.WARNING,
            _(
                "Gradients{of} were clipped to {limit:g}{norm} after micro-step {after} on rank {rank}{at}, before "
                "any all-reduce: the clip acts on this rank's partial sum, not on the averaged gradient. It did so "
                "after {micro_steps}.",
                of=words.of(tl, module),
                limit=first.limit,
                norm=norm,
                after=first.after,
                rank=lane.rank,
                at=words.at(where),
                micro_steps=words.plural(len(indices), "micro-step"),
            ),
            _("Clip once a window, after the backward that synchronises and right before optimizer.step()."),
            module=module.id,
            ranks=ranks,
            count=len(indices),
            backward=first.after,
            file=where.file,
            line=where.line,
            code=where.code,
            via=where.via,
            backwards=tuple(indices),
        )


def _early(tl: Timeline, module: Module, lane: Lane) -> list[r.Clip]:
    """Clips that changed gradients which were local then and averaged later."""
    clips = [
        c
        for c in lane.clips
        if 0 <= c.after < len(lane.passes)
        and np.isfinite(c.limit)
        and (c.norm is None or c.norm > c.limit)
        and lane.sync[c.after] == int(Sync.LOCAL)
    ]
    if not clips:
        return []
    stretch, step = facts.segments(lane)
    last = np.searchsorted(stretch, np.arange(stretch[-1] + 1), "right") - 1  # last pass of each stretch
    found = []
    for clip in clips:
        end = int(last[stretch[clip.after]])
        used = int(step[clip.after])
        if used < 0:
            continue
        later = bool((lane.sync[clip.after + 1 : end + 1] == int(Sync.SYNCED)).any())
        averaged = lane.gradients[used] == int(Gradients.SYNCED)
        if later or (averaged and _by_hand_after(tl, module, lane, clip, used)):
            found.append(clip)
    return found


def _by_hand_after(tl: Timeline, module: Module, lane: Lane, clip: r.Clip, used: int) -> bool:
    """Whether the averaging by hand before the step came wholly after the clip."""
    group = tl.groups.get(module.group)
    rows = group.collectives.get(lane.rank) if group is not None else None
    if rows is None or not len(rows):
        return False
    since = int(lane.passes[int(lane.steps[used]["after"])]["end"])
    outside = (rows["flags"] & int(r.CollectiveFlag.IN_PASS | r.CollectiveFlag.IN_FORWARD)) == 0
    begin = rows["begin"][outside & (rows["begin"] >= since) & (rows["begin"] <= int(lane.steps[used]["begin"]))]
    return len(begin) > 0 and bool((begin >= clip.at).all())
