"""collective-hang: ranks wait in a collective for one that will not come.

Measured: what each rank is blocked in (its own Python stack, taken by the probe without stopping it), each rank's own
count of collectives per group, and when it last got on.

Fires when the job was ended because it hung: names who waits in which bucket's all-reduce, barrier or constructor, who
is missing, what that one did last and is doing now. `hang.stuck` decides while the job runs.

Does not fire while a job runs, however long a rank waits: the viewer shows waiting ranks, and `check` sets the limit.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpviz.findings import hang, standing
from ddpviz.findings.model import Finding, Severity
from ddpviz.timeline.model import Timeline


def check(tl: Timeline) -> Iterator[Finding]:
    if tl.run.status != "hung":
        return
    found = hang.stuck(tl, tl.now_ns, 0)
    if found is None:
        quiet = [s for s in tl.ranks.values() if s.last_ns]
        last = [f"rank {s.rank}: {text}" for s in quiet[:4] if (text := standing.last_event(tl, s.rank))]
        yield Finding(
            "collective-hang",
            Severity.ERROR,
            "The job made no progress any more, and no rank is known to wait in a collective."
            + (f" What they did last: {'; '.join(last)}." if last else ""),
            "Look at what each rank is doing with a debugger or `py-spy dump`.",
        )
        return
    yield finding(found)


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
