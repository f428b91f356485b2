"""carried-window: an accumulation window swallows micro-steps left over from before, such as an epoch's short tail.

Measured: the number of passes in each window that reached a step, and the passes left over at the end.

Fires when the first window has m passes, every other has m or m + r, at least one has m + r, and the finished job ends
with exactly r passes that no step used (0 < r < m). That is the trace of a counter that starts anew each epoch over a
loader whose length is no multiple of m: the tail is not stepped, and the next epoch's first window carries it.

Does not fire for windows that grow by a schedule, for a last window that is meant to take the rest (nothing is left
over then), for a counter that runs on across epochs, for windows cleared at the epoch's start (lost-micro-steps), or
while the job runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _, ngettext
from ddpviz.timeline.model import Lane, Timeline


def check(tl: Timeline) -> Iterator[Finding]:
    if tl.run.status != "finished":
        return
    for module in tl.modules:
        found = {lane.rank: _carried(lane) for lane in facts.lanes(module)}
        ranks = tuple(rank for rank, carried in found.items() if carried is not None)
        if not ranks:
            continue
        lane = module.lanes[ranks[0]]
        carried = found[ranks[0]]
        if carried is None:
            continue
        starts, usual, extra = carried
        first = int(starts[0])
        where = tl.site(lane.rank, int(lane.passes[first]["backward_site"]))
        yield Finding(
            "carried-window",
            Severity.WARNING,
            _(
                "The window{of} that begins at micro-step {first}{at} holds {held} micro-steps instead of "
                "{usual}: {micro_steps} left over from before, and never stepped, went into it. {windows}{left}",
                of=words.of(tl, module),
                first=first,
                at=words.at(where),
                held=usual + extra,
                usual=usual,
                micro_steps=words.plural(extra, "micro-step"),
                windows=ngettext("{n:,} window is like that, ", "{n:,} windows are like that, ", len(starts)),
                left=ngettext(
                    "and {n:,} micro-step was left over at the end.",
                    "and {n:,} micro-steps were left over at the end.",
                    extra,
                ),
            ),
            _(
                "Close the short window at the end of an epoch: synchronise and step on its last micro-step too, "
                "`if (i + 1) % accumulation == 0 or i + 1 == len(loader)`; or zero the gradients when an epoch "
                "starts."
            ),
            module=module.id,
            ranks=ranks,
            count=len(starts),
            backward=first,
            file=where.file,
            line=where.line,
            code=where.code,
            via=where.via,
            backwards=tuple(starts.tolist()),
        )


def _carried(lane: Lane) -> tuple[facts.Ints, int, int] | None:
    """First passes of the windows that carry leftovers, the usual size, and the number left over."""
    stretch, step = facts.segments(lane)
    if not len(stretch):
        return None
    sizes = np.bincount(stretch)
    starts = np.searchsorted(stretch, np.arange(len(sizes)))
    closed = step[starts] != -1
    if closed[-1] or not closed[:-1].all() or len(sizes) < 3:
        return None
    usual, extra = int(sizes[0]), int(sizes[-1])
    larger = sizes[:-1] == usual + extra
    if not 0 < extra < usual or not larger.any() or not (larger | (sizes[:-1] == usual)).all():
        return None
    windows = lane.passes["window"][starts]
    if len(np.unique(windows)) < len(windows):  # gradients are not cleared at each step: windows mean something else
        return None
    return starts[:-1][larger], usual, extra
