"""What is worth a curve: each rank's numbers by micro-step and by optimizer step, for the writers of other tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ddpviz.export.columns import tuples
from ddpviz.timeline import model as m
from ddpviz.trace import records as r

_HAS_LOCAL_NORM, _HAS_NORM = int(r.PassFlag.HAS_LOCAL_NORM), int(r.PassFlag.HAS_NORM)
_HAS_LOSS, _HAS_GRAD = int(r.PassFlag.HAS_LOSS), int(r.StepFlag.HAS_GRAD)


class Point(NamedTuple):
    """Numbers of one micro-step (or step), by tag; not measured ones are left out."""

    number: int
    at_ns: int
    values: dict[str, float]


def of_rank(tl: m.Timeline, rank: int) -> Iterator[Point]:
    """One rank's points: a module's micro-steps in order, then its steps."""
    for module in tl.modules:
        if (lane := module.lanes.get(rank)) is None:
            continue
        name = f"{module.name}-{module.id}" if len(tl.modules) > 1 else module.name
        rows = tuples(lane.passes, "index flags begin end local_norm norm loss")
        for (index, flags, begin, end, local, norm, loss), sync in zip(rows, lane.sync.tolist(), strict=True):
            values = {f"{name}/all-reduced": float(sync == m.Sync.SYNCED), f"{name}/backward_ms": (end - begin) / 1e6}
            if flags & _HAS_LOCAL_NORM:
                values[f"{name}/local_norm"] = local
            if flags & _HAS_NORM:
                values[f"{name}/norm"] = norm
            if flags & _HAS_LOSS:
                values[f"{name}/loss"] = loss
            yield Point(index, end, values)
        for index, flags, end, norm in tuples(lane.steps, "index flags end grad_norm"):
            if flags & _HAS_GRAD:
                yield Point(index, end, {f"{name}/step_grad_norm": norm})
