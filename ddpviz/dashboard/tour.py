"""The story of a run in stops, for somebody who tells it: what a class has to see, in order. Pure.

A window whose pattern is new (which passes stayed local, which were all-reduced, what the step used) is told stop by
stop; one like those before is passed over. Where a finding points to there is a stop always.
"""

from __future__ import annotations

from dataclasses import replace

from ddpviz.dashboard import playback as play
from ddpviz.dashboard.moments import between, gather
from ddpviz.dashboard.state import Cursor, longest, module_of
from ddpviz.findings.model import Finding
from ddpviz.timeline.model import Module, Timeline

MOST_WINDOWS = 20_000  # looked at; of a longer run the rest has stops where findings are
MOST_BUCKETS = 3  # told one by one; of more, the first and the last


def stops(tl: Timeline, module: Module, findings: list[Finding]) -> list[tuple[int, int]]:
    """(time, pass) of each stop, in order of time."""
    lane = longest(module)
    if lane is None or not len(lane.passes):
        return []
    found: set[tuple[int, int]] = set()
    seen: set[object] = set()
    windows = lane.passes["window"].tolist()
    start, told = 0, 0
    while start < len(windows) and told < MOST_WINDOWS:
        stop = start
        while stop < len(windows) and windows[stop] == windows[start]:
            stop += 1
        lo, hi = between(lane.steps["after"], start, stop)
        pattern = (module.verdicts[start:stop].tobytes(), lane.gradients[lo:hi].tobytes())
        if pattern not in seen:
            seen.add(pattern)
            for index in range(start, stop):
                found |= _of_pass(module, index)
        start, told = stop, told + 1
    for finding in findings:
        if finding.backward is not None and finding.module in (module.id, None) and finding.backward < module.passes:
            found |= _of_pass(module, finding.backward)
    last = module.passes - 1
    found.add((play.closing(tl, Cursor(module=tl.modules.index(module))).time, last))
    return sorted(found)


def _of_pass(module: Module, index: int) -> set[tuple[int, int]]:
    """Its all-reduces one by one, its end, the step behind it, and the clearing."""
    made = gather(module, index)
    if made is None:
        return set()
    times = [made.rest]
    wire = made.wire
    if wire is not None:
        rows = made.buckets[(made.buckets["launch"] > 0) & (made.buckets["done"] > made.buckets["launch"])]
        ids = sorted(set(rows["index"].tolist()))
        for bucket in ids if len(ids) <= MOST_BUCKETS else (ids[0], ids[-1]):
            its = rows[rows["index"] == bucket]
            times.append(int(its["launch"].max() + its["done"].max()) // 2)
    stepped = int(made.stepped.max())
    if stepped:
        times.append(max(stepped, made.rest + 1))
    if made.used is not None and made.used > times[-1]:
        times.append(made.used + 1)
    return {(time, index) for time in times}


def onward(tl: Timeline, cursor: Cursor, findings: list[Finding], by: int, *, motion: bool) -> Cursor | None:
    """To the stop before or after; None if there is none. With motion the way there is played; again cuts it."""
    module = module_of(tl, cursor)
    if module is None:
        return None
    all_stops = stops(tl, module, findings)
    if by < 0:
        target = next((stop for stop in reversed(all_stops) if stop[0] < cursor.time), None)
        return None if target is None else _at(cursor, target)
    if cursor.until:
        return _at(cursor, next((stop for stop in all_stops if stop[0] >= cursor.until), (cursor.until, cursor.index)))
    target = next((stop for stop in all_stops if stop[0] > cursor.time), None)
    if target is None:
        return None
    if not motion or target[1] > cursor.index + 1:
        return _at(cursor, target)
    return replace(cursor, live=False, playing=True, until=target[0], speed=0.0)


def _at(cursor: Cursor, stop: tuple[int, int]) -> Cursor:
    return replace(cursor, live=False, playing=False, until=0, time=stop[0], index=stop[1])
