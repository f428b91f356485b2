"""Moving through time: where passes and events lie, and what keys and the clock do to a cursor. Pure functions.

A backward pass takes milliseconds and a person needs a second. So beside real time there is *story time*, in which
every pass of a module takes one unit: `story` and `moment` turn one into the other. Inside a unit the recorded order
and the relative times are kept; only the four stretches of a pass (backward, all-reduce, step, waiting for the next
one) get a width that can be seen.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

import numpy as np

from ddpviz.dashboard.moments import NEVER, gather, newest
from ddpviz.dashboard.state import ONE_PASS_A_SECOND, SPEEDS, Cursor, longest, module_of
from ddpviz.findings.model import Finding
from ddpviz.language import _
from ddpviz.timeline.model import Module, Timeline

# Widths of the stretches of a pass in story time, and of the rest once its gradients were used.
_ALL_REDUCED = (0.30, 0.34, 0.04)  # until the first all-reduce starts, until the last has ended, until the call returns
_LOCAL = 0.45
_STEPPED = 0.20
CATCH_UP = 0.35  # seconds that the animation may lag behind the live end


def last_moment(module: Module) -> int:
    """The newest thing known about the module."""
    made = gather(module, max((len(lane.sync) for lane in module.lanes.values()), default=0) - 1)
    return 0 if made is None else max(made.rest, made.used or 0)


def pass_at(module: Module, time: int) -> int:
    """The newest pass that had begun on some rank by `time`; -1 before the first."""
    return max((newest(lane, time) for lane in module.lanes.values()), default=-1)


def _knots(module: Module, index: int) -> tuple[list[float], list[float]]:
    """Times (ns, rising) and story positions of the corners of one pass."""
    made = gather(module, index)
    if made is None:
        return [0.0, 1.0], [float(index), index + 1.0]
    begin, end, wire, used = made.begin, made.end, made.wire, made.used
    times, places = [begin], [0.0]
    if wire is not None and begin < wire[0]:
        times += [wire[0], wire[1], max(end, wire[1])]
        places += [sum(_ALL_REDUCED[: i + 1]) for i in range(3)]
    else:
        times.append(end)
        places.append(_LOCAL)
    if used is not None and used > times[-1]:
        times.append(used)
        places.append(places[-1] + _STEPPED)
    following = gather(module, index + 1)
    if following is not None and following.begin > times[-1]:
        times.append(following.begin)
        places.append(1.0)
    rising = np.maximum.accumulate(times)
    keep = [0, *(i for i in range(1, len(times)) if rising[i] > rising[i - 1])]
    return [float(rising[i]) for i in keep], [index + places[i] for i in keep]


def story(module: Module, time: int) -> float:
    """Where `time` lies in story time: pass 3 is the stretch from 3.0 to 4.0."""
    index = pass_at(module, time)
    if index < 0:
        return 0.0
    times, places = _knots(module, index)
    return float(np.interp(time, times, places))


def moment(module: Module, position: float) -> int:
    """The time, in ns, of a position in story time. Beyond the end: the last thing known."""
    if module.passes == 0:
        return 0
    index = min(max(int(position), 0), module.passes - 1)
    times, places = _knots(module, index)
    return int(np.interp(position, places, times))


def events(module: Module, index: int) -> list[int]:
    """Every recorded moment of a pass on any rank, in order: begin, bucket ready, launch, done, end, step, clear."""
    made = gather(module, index)
    if made is None:
        return []
    found: set[int] = set()
    for column in (made.rows["begin"], made.rows["end"], made.stepped, made.cleared):
        found.update(column.tolist())
    for at in ("ready", "launch", "done"):
        found.update(made.buckets[at].tolist())
    return sorted(found - {0, NEVER})


# --- moves -----------------------------------------------------------------------------------------------------------


def rest(module: Module, index: int) -> int:
    """The moment at which a paused cursor shows a pass: when its last rank returned from backward."""
    made = gather(module, index)
    return last_moment(module) if made is None else made.rest


def opening(tl: Timeline, cursor: Cursor) -> Cursor:
    """Where a story begins: the first pass, before anything is averaged."""
    return goto(tl, cursor, 0)


def closing(tl: Timeline, cursor: Cursor) -> Cursor:
    """What a run that is over shows first: its last pass, and if a wrong step followed, the moment of that step."""
    cursor = goto(tl, cursor, 1 << 40)
    module = module_of(tl, cursor)
    made = gather(module, cursor.index) if module is not None else None
    if made is not None and made.wrong.any():
        return replace(cursor, time=max(made.rest + 1, int(made.stepped.max())))
    return cursor


def goto(tl: Timeline, cursor: Cursor, index: int, *, module: int | None = None, rank: int | None = None) -> Cursor:
    """Stand still on a pass, in the past."""
    cursor = replace(cursor, module=cursor.module if module is None else module, live=False, playing=False, until=0)
    shown = module_of(tl, cursor)
    if shown is None or shown.passes == 0:
        return replace(cursor, index=-1)
    index = min(max(index, 0), shown.passes - 1)
    return replace(cursor, index=index, time=rest(shown, index), rank=cursor.rank if rank is None else rank)


def step(tl: Timeline, cursor: Cursor, by: int) -> Cursor:
    """By micro-steps."""
    return goto(tl, cursor, max(cursor.index, 0) + by)


def step_window(tl: Timeline, cursor: Cursor, by: int) -> Cursor:
    """To the last pass of the window before or after: where its all-reduce and its step are."""
    module = module_of(tl, cursor)
    lane = longest(module)
    if lane is None or not len(lane.passes):
        return cursor
    windows = lane.passes["window"]
    here = int(windows[min(max(cursor.index, 0), len(windows) - 1)])
    last = bisect_right(windows, max(here + by, 0)) - 1
    return goto(tl, cursor, last)


def step_event(tl: Timeline, cursor: Cursor, by: int) -> Cursor:
    """To the recorded moment before or after: a bucket ready, its all-reduce started or done, a step, a clear."""
    module = module_of(tl, cursor)
    if module is None or module.passes == 0:
        return cursor
    index = max(cursor.index, 0)
    near = [t for i in (index - 1, index, index + 1) for t in events(module, i)]
    if by > 0:
        time = min((t for t in near if t > cursor.time), default=cursor.time)
    else:
        time = max((t for t in near if t < cursor.time), default=cursor.time)
    return replace(cursor, live=False, playing=False, until=0, time=time, index=max(pass_at(module, time), 0))


def marked(tl: Timeline, cursor: Cursor, findings: list[Finding]) -> list[int]:
    """The passes that `{` and `}` stop at: those of findings; without any, those that a step followed."""
    places: set[int] = set()
    for finding in findings:
        if finding.module in (None, cursor.module):
            places.update(finding.backwards or (() if finding.backward is None else (finding.backward,)))
    if not places:
        lane = longest(module_of(tl, cursor))
        places = set() if lane is None else set(lane.steps["after"].tolist())
    return sorted(p for p in places if p >= 0)


def step_marked(tl: Timeline, cursor: Cursor, findings: list[Finding], by: int) -> Cursor | None:
    """To the marked pass before or after; None if there is none on that side."""
    places = marked(tl, cursor, findings)
    if by > 0:
        target = next((p for p in places if p > cursor.index), None)
    else:
        target = next((p for p in reversed(places) if p < cursor.index), None)
    return None if target is None else goto(tl, cursor, target)


def goto_step(tl: Timeline, cursor: Cursor, number: int) -> Cursor | None:
    """To the pass before optimizer step `number`; None if there is no such step of this module."""
    for part in tl.steps[number].parts if 0 <= number < len(tl.steps) else ():
        after = [a for a in part.after if a is not None and a >= 0]
        if after:
            module = next((i for i, m in enumerate(tl.modules) if m.id == part.module), cursor.module)
            return goto(tl, cursor, max(after), module=module)
    return None


def follow(tl: Timeline, cursor: Cursor) -> Cursor:
    """Back to the newest pass, and stay there."""
    return settle(tl, replace(cursor, live=True, playing=False, until=0), motion=False)


def toggle(tl: Timeline, cursor: Cursor) -> Cursor:
    """Space: live or playing stops; standing plays on, from the start if it stands at the end."""
    if cursor.live or cursor.playing:
        return replace(cursor, live=False, playing=False, until=0)
    module = module_of(tl, cursor)
    if module is not None and cursor.time >= last_moment(module):
        first = gather(module, 0)
        return replace(cursor, playing=True, index=0, time=first.begin if first else 0)
    return replace(cursor, playing=True)


def change_speed(cursor: Cursor, by: int) -> Cursor:
    """Slower or faster in factors of real time; from one pass a second, slower is x0.1 and faster x1."""
    if cursor.speed == ONE_PASS_A_SECOND:
        return replace(cursor, speed=1.0 if by > 0 else 0.1)
    place = min(range(len(SPEEDS)), key=lambda i: abs(SPEEDS[i] - cursor.speed))
    return replace(cursor, speed=SPEEDS[min(max(place + by, 0), len(SPEEDS) - 1)])


def speed_text(cursor: Cursor) -> str:
    return _("1 pass/s") if cursor.speed == ONE_PASS_A_SECOND else f"×{cursor.speed:g}"


# --- the clock -------------------------------------------------------------------------------------------------------


def settle(tl: Timeline, cursor: Cursor, *, motion: bool) -> Cursor:
    """Bring a cursor in line with a timeline that grew: follow the live end, never stand outside."""
    if not tl.modules:
        return cursor
    cursor = cursor if cursor.module < len(tl.modules) else replace(cursor, module=0)
    module = tl.modules[cursor.module]
    if module.passes == 0:
        return replace(cursor, index=-1)
    if cursor.live:
        time = cursor.time if motion and cursor.time else last_moment(module)
        return replace(cursor, index=module.passes - 1, time=time)
    index = min(max(cursor.index, 0), module.passes - 1)
    if index != cursor.index or cursor.time == 0:
        return replace(cursor, index=index, time=rest(module, index))
    return cursor


def advance(tl: Timeline, cursor: Cursor, seconds: float, *, running: bool) -> Cursor:
    """The cursor after `seconds` of the viewer's time; the same object if nothing moves.

    Playing moves through the past at the cursor's speed, and turns live where it meets the end of a running job. Live,
    the drawn moment runs after the newest one, faster the further it is behind.
    """
    module = module_of(tl, cursor)
    if module is None or module.passes == 0 or not (cursor.live or cursor.playing):
        return cursor
    end = last_moment(module)
    if cursor.time >= end:
        if not cursor.playing:
            return cursor if cursor.time == end else replace(cursor, time=end)
        return replace(cursor, playing=False, until=0, live=running, index=module.passes - 1, time=end)
    if cursor.live:
        here, there = story(module, cursor.time), story(module, end)
        pace = max(1.0, (there - here) / CATCH_UP)
        return replace(cursor, time=min(max(moment(module, here + seconds * pace), cursor.time + 1), end))
    if cursor.speed == ONE_PASS_A_SECOND:
        time = moment(module, story(module, cursor.time) + seconds)
    else:
        time = cursor.time + round(seconds * 1e9 * cursor.speed)
    time = min(max(time, cursor.time + 1), end)
    if cursor.until and time >= cursor.until:
        time = cursor.until
        return replace(cursor, playing=False, until=0, time=time, index=max(pass_at(module, time - 1), 0))
    return replace(cursor, time=time, index=max(pass_at(module, time), 0))
