"""Which micro-steps met in an all-reduce: the k-th collective of a group meets the k-th on every other rank."""

from __future__ import annotations

import numpy as np

from ddpviz.timeline.model import Module
from ddpviz.trace import records as r


def met(module: Module, rank: int, index: int) -> dict[int, int | None]:
    """For each other rank, the pass whose first all-reduce met that of pass `index` of `rank`; None where none did.

    Empty if the pass sent nothing. While the ranks are in step every answer is `index` itself.
    """
    lane = module.lanes.get(rank)
    if lane is None or not 0 <= index < len(lane.counts) or lane.counts[index] == r.NO_INDEX:
        return {}
    count = lane.counts[index]
    out: dict[int, int | None] = {}
    for other in module.ranks:
        if other != rank:
            counts = module.lanes[other].counts if other in module.lanes else np.zeros(0, np.uint32)
            at = np.flatnonzero(counts == count)
            out[other] = int(at[0]) if len(at) else None
    return out
