"""What a lesson showed, in numbers of the run itself: each a pure function of the timeline to one sentence.

An empty string means that this run did not measure it; nothing is said then.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddpviz.export import words
from ddpviz.language import _
from ddpviz.timeline import model as m
from ddpviz.timeline.timing import arrivals
from ddpviz.timeline.trends import traffic
from ddpviz.trace import records as r

_BOTH = int(r.PassFlag.HAS_LOCAL_NORM | r.PassFlag.HAS_NORM)


def _lanes(tl: m.Timeline) -> Iterator[tuple[m.Module, m.Lane]]:
    for module in tl.modules:
        yield from ((module, lane) for lane in module.lanes.values())


def first_lane(tl: m.Timeline) -> tuple[m.Module, m.Lane] | None:
    """The first module and the lane of its first rank, if that ran any pass."""
    return next(((module, lane) for module, lane in _lanes(tl) if len(lane.passes)), None)


def sent(tl: m.Timeline) -> str:
    """Passes that stayed local, and what that saved."""
    known = first_lane(tl)
    if known is None:
        return ""
    module, lane = known
    local = int(np.count_nonzero(lane.sync == m.Sync.LOCAL))
    gone, saved = traffic(module)
    if not local:
        return _(
            "All {passes} micro-steps were all-reduced; a rank sent {sent} of gradients, {each} each time.",
            passes=len(lane.passes),
            sent=words.size(gone),
            each=words.size(gone / len(lane.passes)),
        )
    return _(
        "{local} of {passes} micro-steps stayed local: a rank sent {sent} of gradients; had each been all-reduced, it "
        "would have been {without}.",
        local=local,
        passes=len(lane.passes),
        sent=words.size(gone),
        without=words.size(gone + saved),
    )


def step_cost(tl: m.Timeline) -> str:
    """Time and bytes of one optimizer step."""
    ends = np.array([step.end for step in tl.steps], np.float64)
    if len(ends) < 3:
        return ""
    total = sum(traffic(module)[0] for module in tl.modules)
    return _(
        "One optimizer step took {time} (median of {count}) and sent {sent} a rank.",
        time=words.duration(float(np.median(np.diff(ends)))),
        count=words.plural(len(ends) - 1, "step"),
        sent=words.size(total / len(ends)),
    )


def met(tl: m.Timeline) -> str:
    """The norms that the ranks brought to the last measured all-reduce, and the mean's."""
    for module in tl.modules:
        lanes = [module.lanes[k] for k in module.ranks if k in module.lanes]
        for index in range(module.passes - 1, -1, -1):
            rows = [lane.passes[index] for lane in lanes if index < len(lane.passes)]
            known = len(rows) == len(lanes) and all(int(row["flags"]) & _BOTH == _BOTH for row in rows)
            if module.verdicts[index] == m.Sync.SYNCED and known and len(rows) > 1:
                brought = _(" and ").join(words.number(float(row["local_norm"])) for row in rows[:4])
                return _(
                    "To the all-reduce of micro-step {index} the ranks brought gradients of norm {brought}; all left "
                    "with their mean, norm {mean}.",
                    index=index,
                    brought=brought,
                    mean=words.number(float(rows[0]["norm"])),
                )
    return ""


def levels(tl: m.Timeline) -> str:
    """How the accumulated norms stood, rank by rank, when the first step took them."""
    known = first_lane(tl)
    if known is None or not len(known[1].steps):
        return ""
    module, lane = known
    index = int(lane.steps[0]["after"])
    values = words.norms_of(module, index, "norm", r.PassFlag.HAS_NORM)
    local = words.norms_of(module, index, "local_norm", r.PassFlag.HAS_LOCAL_NORM)
    shown = [a if a is not None else b for a, b in zip(values, local, strict=True)]
    if len(shown) < 2 or any(value is None for value in shown):
        return ""
    pairs = zip(module.ranks[:4], shown, strict=False)
    listed = ", ".join(_("rank {rank} {value}", rank=k, value=words.number(v)) for k, v in pairs)
    same = len({f"{v:.17g}" for v in shown}) == 1
    if same:
        return _("When the first step took them, the gradients had norm {listed}: equal.", listed=listed)
    return _("When the first step took them, the gradients had norm {listed}: not equal.", listed=listed)


def replicas(tl: m.Timeline) -> str:
    """Whether the ranks still have one model."""
    if not len(tl.steps):
        return ""
    apart = next((step for step in tl.steps if step.replicas is m.Replicas.DIVERGED), None)
    if apart is not None:
        where = words.place(apart.site)
        return _(
            "Since step {index}{where} the ranks hold different models; PyTorch said nothing.",
            index=apart.index,
            where=where,
        )
    equal = sum(step.replicas is m.Replicas.EQUAL for step in tl.steps)
    if not equal:
        return ""
    return _(
        "The replicas were compared after {equal} and equal each time, bit for bit.", equal=words.plural(equal, "step")
    )


def used(tl: m.Timeline) -> str:
    """What kind of gradients the steps used."""
    if not len(tl.steps):
        return ""
    kinds = [step.gradients for step in tl.steps]
    count = len(kinds)
    if local := sum(kind is m.Gradients.LOCAL for kind in kinds):
        return _(
            "{local} of {count} used gradients that were never averaged.",
            local=local,
            count=words.plural(count, "step"),
        )
    if stale := sum(kind is m.Gradients.STALE for kind in kinds):
        return _(
            "{stale} of {count} used gradients that were averaged too early: what was added after the all-reduce "
            "stayed on each rank.",
            stale=stale,
            count=words.plural(count, "step"),
        )
    good = sum(kind is m.Gradients.SYNCED for kind in kinds)
    return _("{good} of {count} used the mean of all ranks' gradients.", good=good, count=words.plural(count, "step"))


def window_sizes(tl: m.Timeline) -> str:
    """How many micro-steps each step used, and how many were left over."""
    known = first_lane(tl)
    if known is None or not len(known[1].steps):
        return ""
    lane = known[1]
    ends = lane.steps["after"].astype(np.int64)
    sizes = np.diff(ends, prepend=-1).tolist()
    listed = ", ".join(str(n) for n in sizes[:12]) + (", …" if len(sizes) > 12 else "")
    left = len(lane.passes) - 1 - int(ends[-1])
    if not left:
        return _("The steps used {listed} micro-steps; none was left over.", listed=listed)
    return _(
        "The steps used {listed} micro-steps, and the last {left} of the run reached no step at all.",
        listed=listed,
        left=left,
    )


def late(tl: m.Timeline) -> str:
    """Who comes last to the all-reduces."""
    known = first_lane(tl)
    if known is None or len(known[0].ranks) < 2:
        return ""
    came = arrivals(known[0])
    if not len(came.passes):
        return ""
    counts = {rank: int(np.count_nonzero(came.last == rank)) for rank in came.ranks}
    rank = max(counts, key=lambda k: counts[k])
    by = came.median_late(rank) or 0.0
    return _(
        "Rank {rank} came last to {counts} of {came}, {by} after the first in the median.",
        rank=rank,
        counts=counts[rank],
        came=words.plural(len(came.passes), "all-reduce"),
        by=words.duration(by),
    )
