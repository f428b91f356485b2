"""Where in the script each rank is at a time, and which lines made a pass. Pure; nothing is guessed.

A rank is *in* a line while a forward, a backward, a step or a collective that this line called runs, or while it is
blocked there. In between it runs other lines that nobody records, and the line that it was in last stands for it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from ddpviz.dashboard.marks import OF_GRADIENTS, OF_SYNC, M
from ddpviz.dashboard.moments import between, newest
from ddpviz.language import _
from ddpviz.timeline.model import Gradients, Lane, Module, Site, Sync, Timeline
from ddpviz.trace.records import CollectiveKind

_KINDS = {int(kind): kind.name.lower().replace("_", "-") for kind in CollectiveKind if kind}
LOOK_BACK = 8  # collectives looked at for one with a line of the user's


@dataclass(frozen=True, slots=True)
class Place:
    """What one rank is in, or was in last."""

    rank: int
    site: Site
    doing: str  # "forward" | "backward" | "step" | "zero_grad" | what it is blocked in | "raised here"
    inside: bool  # still in it
    role: str  # colour role
    begin: int = 0


@dataclass(frozen=True, slots=True)
class Use:
    """What a line is to the pass looked at: `backward ░ local`."""

    doing: str
    mark: M | None = None


def places(tl: Timeline, time: int, *, present: bool) -> list[Place]:
    """Each rank's place at `time`, by rank; ranks of which no line is known are left out."""
    found = (place(tl, rank, time, present=present) for rank in sorted(tl.ranks))
    return [its for its in found if its is not None]


def place(tl: Timeline, rank: int, time: int, *, present: bool) -> Place | None:
    state = tl.ranks[rank]
    ended = state.exit
    if ended is not None and ended.site and ended.error and time >= ended.at:
        return Place(rank, tl.site(rank, ended.site), _("raised here"), False, "wrong", ended.at)
    if present and state.stack is not None and state.stack.site and state.stack.doing != "computing":
        return Place(
            rank, tl.site(rank, state.stack.site), _("waits: {doing}", doing=state.stack.doing), True, "waiting", time
        )
    known = [
        its
        for module in tl.modules
        if (lane := module.lanes.get(rank)) is not None
        for its in _of_lane(tl, rank, lane, time)
    ]
    for group in tl.groups.values():
        rows = group.collectives.get(rank)
        if rows is not None and len(rows):
            at = bisect_right(rows["begin"], time)
            row = next((r for r in rows[max(at - LOOK_BACK, 0) : at][::-1] if r["site"]), None)
            if row is not None:
                kind = _KINDS.get(int(row["kind"]), "collective")
                known.append(_place(tl, rank, kind, row["begin"], row["end"], row["site"], time, "running"))
    known = [its for its in known if its.site.file]
    return max(known, key=lambda its: (its.inside, its.begin), default=None)


def _place(tl: Timeline, rank: int, doing: str, begin: Any, end: Any, site: Any, time: int, role: str) -> Place:
    return Place(rank, tl.site(rank, int(site)), doing, int(begin) <= time < int(end), role, int(begin))


def _of_lane(tl: Timeline, rank: int, lane: Lane, time: int) -> list[Place]:
    """The newest of each kind that had begun."""
    found = []
    at = newest(lane, time)
    for index in (at + 1, at):  # the next pass's forward may have begun already
        if 0 <= index < len(lane.passes):
            row = lane.passes[index]
            if 0 < row["forward"] <= time:
                found.append(
                    _place(tl, rank, "forward", row["forward"], row["forward_end"], row["forward_site"], time, "text")
                )
                break
    if at >= 0:
        row = lane.passes[at]
        mark = OF_SYNC[Sync(int(lane.sync[at]))]
        found.append(_place(tl, rank, "backward", row["begin"], row["end"], row["backward_site"], time, mark.role))
    behind = bisect_right(lane.steps["begin"], time) - 1
    if behind >= 0:
        step = lane.steps[behind]
        mark = OF_GRADIENTS[Gradients(int(lane.gradients[behind]))] if behind < len(lane.gradients) else M.STEP
        found.append(_place(tl, rank, "step", step["begin"], step["end"], step["site"], time, mark.role))
    behind = bisect_right(lane.clears["at"], time) - 1
    if behind >= 0:
        clear = lane.clears[behind]
        found.append(_place(tl, rank, "zero_grad", clear["at"], clear["at"], clear["site"], time, "dim"))
    return found


def made_by(tl: Timeline, module: Module, index: int, rank: int | None) -> dict[tuple[str, int], list[Use]]:
    """(file, line) -> what it was to pass `index`: its forward, its backward, the step and the clearing behind it."""
    used: dict[tuple[str, int], list[Use]] = {}

    def say(who: int, site: Any, use: Use) -> None:
        where = tl.site(who, int(site))
        if where.file and use not in used.setdefault((where.file, where.line), []):
            used[where.file, where.line].append(use)

    ranks = [rank] if rank in module.lanes else list(module.lanes)[:64]
    for who in ranks:
        lane = module.lanes[who]
        if not 0 <= index < len(lane.passes):
            continue
        row = lane.passes[index]
        say(who, row["forward_site"], Use("forward"))
        say(who, row["backward_site"], Use("backward", OF_SYNC[Sync(int(lane.sync[index]))]))
        lo, hi = between(lane.steps["after"], index, index + 1)
        for k in range(lo, min(hi, len(lane.gradients))):
            say(who, lane.steps["site"][k], Use("step", OF_GRADIENTS[Gradients(int(lane.gradients[k]))]))
        lo, hi = between(lane.clears["after"], index, index + 1)
        for k in range(lo, hi):
            say(who, lane.clears["site"][k], Use("zero_grad"))
    return used


def recorded(tl: Timeline, file: str) -> dict[int, str]:
    """The lines of a file that the run has recorded, as they stood then."""
    return {site.line: site.code for site in tl.sites.values() if site.file == file and site.code}
