"""no-sync-split: what the block looks like and what happened disagree, because no_sync() is around one half only.

Measured: whether a pass was all-reduced, and beside it what `require_backward_grad_sync` said at the forward and when
the backward began. The forward decides; the flag at the backward means nothing.

Fires when
- the backward alone ran inside no_sync() and was all-reduced all the same: the context has no effect;
- forward and backward ran inside it, and the pass was all-reduced, because another forward outside had armed the
  reducer;
- the forward alone ran inside it, so that the pass stayed local, and the step used gradients never averaged.

Does not fire where the forward alone is inside and the step is right (all forwards first, then the reducer armed by
hand or gradients averaged by hand), nor where the flags could not be read.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import N_, NN_, _, ngettext
from ddpviz.timeline.model import Gradients, Lane, Sync, Timeline
from ddpviz.trace.records import PassFlag

_TEXT = {
    "backward": (
        NN_(
            "{which}{of}{at} ran its backward inside no_sync() and its forward outside, and was all-reduced: the "
            "forward decides, so the context has no effect here.",
            "{which}{of}{at} ran their backward inside no_sync() and their forward outside, and were all-reduced: the "
            "forward decides, so the context has no effect here.",
        ),
        N_("Put the forward into the same `with model.no_sync():` block as its backward."),
    ),
    "armed": (
        NN_(
            "{which}{of}{at} ran inside no_sync() and was all-reduced all the same: a forward outside the context came "
            "before and armed the reducer, which stays armed until the next backward.",
            "{which}{of}{at} ran inside no_sync() and were all-reduced all the same: a forward outside the context "
            "came before and armed the reducer, which stays armed until the next backward.",
        ),
        N_(
            "Run forwards that are not trained on (metrics, validation) under torch.no_grad(), or inside no_sync() too."
        ),
    ),
    "forward": (
        NN_(
            "{which}{of}{at} ran its forward inside no_sync() and its backward outside, and stayed local: the forward "
            "decides, so leaving the context for the backward changes nothing.",
            "{which}{of}{at} ran their forward inside no_sync() and their backward outside, and stayed local: the "
            "forward decides, so leaving the context for the backward changes nothing.",
        ),
        N_("Leave no_sync() for the forward of the micro-step that should synchronise, not for its backward alone."),
    ),
}


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        found = {lane.rank: _split(lane) for lane in facts.lanes(module)}
        for kind, (text, advice) in _TEXT.items():
            ranks = tuple(rank for rank in found if len(found[rank][kind]))
            if not ranks:
                continue
            lane, indices = module.lanes[ranks[0]], found[ranks[0]][kind]
            where = tl.site(lane.rank, int(lane.passes[indices[0]]["backward_site"]))
            yield Finding(
                "no-sync-split",
                Severity.WARNING,
                ngettext(
                    *text,
                    min(len(indices), 2),
                    which=words.start(words.numbered("micro-step", indices)),
                    of=words.of(tl, module),
                    at=words.at(where),
                ),
                _(advice),
                module=module.id,
                ranks=ranks,
                count=len(indices),
                backward=int(indices[0]),
                file=where.file,
                line=where.line,
                code=where.code,
                via=where.via,
                backwards=tuple(indices.tolist()),
            )


def _split(lane: Lane) -> dict[str, facts.Ints]:
    flags = lane.passes["flags"]
    known = facts.has(lane.passes, PassFlag.FLAGS_KNOWN | PassFlag.FORWARD_SEEN)
    forward = (flags & int(PassFlag.NO_SYNC_FORWARD)) != 0
    backward = (flags & int(PassFlag.NO_SYNC_BACKWARD)) != 0
    synced, local = lane.sync == int(Sync.SYNCED), lane.sync == int(Sync.LOCAL)
    _rest, step = facts.segments(lane)
    harmed = step >= 0
    if len(lane.gradients):
        wrong = np.isin(lane.gradients, [int(Gradients.LOCAL), int(Gradients.STALE)])
        harmed &= wrong[np.maximum(step, 0)]
    # another forward with gradients came first: it armed the reducer, and its flag is the one recorded
    other = np.isin(np.arange(len(flags)) - 1, [u.after for u in lane.unanswered])
    return {
        "backward": np.flatnonzero(known & ~forward & backward & synced & ~other),
        "armed": np.flatnonzero(known & backward & synced & (forward | other)),
        "forward": np.flatnonzero(known & forward & ~backward & local & harmed),
    }
