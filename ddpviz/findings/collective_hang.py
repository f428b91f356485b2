"""collective-hang: ranks wait in a collective for one that will not come.

Measured: what each rank is blocked in (its own Python stack, taken by the probe without stopping it), each rank's own
count of collectives per group, and when it last got on.

Fires when the job was ended because it hung: names who waits in which bucket's all-reduce, barrier or constructor, who
is missing, what that one did last and is doing now. `hang.stuck` decides while the job runs.

Fires too when no rank waits for another, and none has got on, used the CPU or printed anything for four times the
limit: all sleep, read, or have not even imported torch.

Does not fire while a job runs, however long a rank waits: the viewer shows waiting ranks, and `check` sets the limit.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpviz.findings import hang
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Site, Timeline


def check(tl: Timeline) -> Iterator[Finding]:
    if tl.run.status != "hung":
        return
    found = hang.stuck(tl, tl.now_ns, 0)
    if found is None:
        yield _nobody_waits(tl)
        return
    yield finding(found)


def _nobody_waits(tl: Timeline) -> Finding:
    """No rank is in a collective, none computes, and nothing happens: all read, sleep, or have not begun."""
    ranks = sorted({*range(tl.run.world_size), *tl.ranks})
    found = [hang.missing(tl, rank, tl.now_ns) for rank in ranks]
    parts = [
        _("Rank {rank} {doing}; the last it did: {last}.", rank=m.rank, doing=m.doing, last=m.last)
        if m.last
        else _("Rank {rank} {doing}.", rank=m.rank, doing=m.doing)
        for m in found[:4]
    ]
    started = any(m.state != "unknown" for m in found)
    where = next((m.site for m in found if m.site.file), Site())
    return Finding(
        "collective-hang",
        Severity.ERROR,
        " ".join(
            [_("No rank gets on, uses the CPU or says anything, and none waits for another in a collective."), *parts]
        ),
        _("Look at what they wait for there: a file, a lock, a download, a queue, a question to a user.")
        if started
        else _(
            "Look at what the script waits for before it imports torch: a file, a lock, a download, a question "
            "to a user."
        ),
        ranks=tuple(ranks),
        file=where.file,
        line=where.line,
        code=where.code,
        via=where.via,
    )


def finding(found: hang.Hang) -> Finding:
    """A hang as a finding."""
    first, where = found.waiting[0], found.site
    return Finding(
        "collective-hang",
        Severity.ERROR,
        found.message,
        found.advice,
        module=first.module if first.module >= 0 else None,
        ranks=tuple(m.rank for m in found.missing) or tuple(w.rank for w in found.waiting),
        backward=first.pass_index if first.pass_index >= 0 else None,
        file=where.file,
        line=where.line,
        code=where.code,
        via=where.via,
        backwards=(first.pass_index,) if first.pass_index >= 0 else (),
    )
