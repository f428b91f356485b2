"""Where a run stands, in one word and a few lines: starting, running, waiting, finished, failed. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ddpviz.dashboard.format import clock, duration, ranges
from ddpviz.dashboard.marks import M
from ddpviz.dashboard.state import Cursor
from ddpviz.export.words import last_event, rank_end, waiting_for
from ddpviz.findings import hang
from ddpviz.findings.hang import Hang
from ddpviz.language import _, ngettext
from ddpviz.phrases import which_ranks
from ddpviz.timeline.model import RankState, Timeline

PATIENCE = 2e9  # ns without progress before a rank that waits is said to wait
STARTING_HOPELESS = 20_000_000_000  # the same before the first pass: ranks start at different times
HOPELESS = 5_000_000_000  # ns after which those that wait are looked at together: who will not come, and why


class State(Enum):
    STARTING = "starting"  # no rank has a DDP module that ran
    RUNNING = "running"
    WAITING = "waiting"  # running, but nothing moves and some rank is blocked
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    LOST = "lost"  # the run cannot be followed


@dataclass(frozen=True, slots=True)
class Situation:
    state: State
    since: int = 0  # ns that it has lasted, where that says something
    waiting: tuple[int, ...] = ()  # ranks that are blocked
    missing: tuple[int, ...] = ()  # ranks that the blocked ones wait for
    hang: Hang | None = None  # nobody concerned gets on any more


def situation(tl: Timeline, now: int, running: bool, *, error: str = "") -> Situation:
    """What the run is in at `now` (ns on its clock)."""
    if error:
        return Situation(State.LOST)
    if not running:
        return Situation({"finished": State.FINISHED, "interrupted": State.INTERRUPTED}.get(tl.run.status, _end(tl)))
    going = [state for state in tl.ranks.values() if state.status in ("running", "waiting")]
    blocked = [state for state in going if stuck(state, now)]
    still = blocked and all(now - state.progress_ns > PATIENCE for state in going)
    dead = [state.rank for state in tl.ranks.values() if state.status in ("failed", "died")]
    begun = any(module.passes for module in tl.modules)
    if (still and begun) or (blocked and dead) or (still and hang.stuck(tl, now, STARTING_HOPELESS)):
        since = min(now - (state.stack.since if state.stack else now) for state in blocked)
        waiting = tuple(sorted(state.rank for state in blocked))
        found = hang.stuck(tl, now, HOPELESS)
        return Situation(State.WAITING, since, waiting, missing(tl, blocked, dead), found)
    if begun:
        return Situation(State.RUNNING)
    return Situation(State.STARTING)


def _end(tl: Timeline) -> State:
    """How a run ended that says nothing of its end itself: by its ranks."""
    statuses = {state.status for state in tl.ranks.values()}
    if tl.run.status in ("failed", "hung") or statuses & {"failed", "died"}:
        return State.FAILED
    return State.FINISHED if statuses == {"finished"} else State.INTERRUPTED


def stuck(state: RankState, now: int) -> bool:
    """Blocked in something that needs the others, long enough to be said."""
    stack = state.stack
    return stack is not None and stack.doing != "computing" and now - stack.since > PATIENCE


def missing(tl: Timeline, blocked: list[RankState], dead: list[int]) -> tuple[int, ...]:
    """Those that the blocked ranks wait for: ranks that ended, else those that issued the fewest collectives."""
    if dead:
        return tuple(sorted(dead))
    groups = {state.stack.group for state in blocked if state.stack is not None and state.stack.group >= 0}
    if len(groups) == 1:
        group = tl.groups.get(next(iter(groups)))
        counts = {k: tl.ranks[k].collectives.get(group.key, 0) for k in group.ranks if k in tl.ranks} if group else {}
        if counts and min(counts.values()) < max(counts.values()):
            return tuple(sorted(k for k, count in counts.items() if count == min(counts.values())))
    free = set(tl.ranks) - {state.rank for state in blocked}
    return tuple(sorted(free))


def chip(here: Situation, tl: Timeline, now: int) -> tuple[str, str]:
    """The run's state for the header: text and colour role."""
    code = tl.run.exit_code
    ended = _("  exit {code}", code=code) if code is not None else ""
    bad = _("HUNG") if tl.run.status == "hung" else _("FAILED")
    return {
        State.STARTING: (_("{glyph} STARTING  {clock}", glyph=M.WAITING.glyph, clock=clock(now)), "running"),
        State.RUNNING: (_("● LIVE  {clock}", clock=clock(now)), "synced"),
        State.WAITING: (_("{glyph} WAITING {time}", glyph=M.WAITING.glyph, time=duration(here.since)), "waiting"),
        State.FINISHED: (_("■ FINISHED{ended}", ended=ended), "synced"),
        State.FAILED: (f"{M.WRONG_STEP.glyph} {bad}{ended}", "wrong"),
        State.INTERRUPTED: (_("■ INTERRUPTED{ended}", ended=ended), "running"),
        State.LOST: (_("{glyph} CANNOT FOLLOW", glyph=M.WRONG_STEP.glyph), "wrong"),
    }[here.state]


def view_chip(cursor: Cursor, total: int, here: Situation, speed: str) -> tuple[str, str]:
    """Present or past, for the header. Empty while one looks at the present."""
    if cursor.playing:
        return _("▶ PAST  {speed}", speed=speed), "local"
    if not cursor.live and total and (here.state in (State.RUNNING, State.WAITING) or cursor.index < total - 1):
        newer = total - 1 - cursor.index
        return _("‖ PAST") + (_("  +{newer} newer", newer=newer) if newer > 0 else ""), "running"
    return "", "dim"


def hang_lines(tl: Timeline, here: Situation, now: int) -> list[tuple[str, str]]:
    """The waiting screen as (text, role) lines: who will not come and why, else what each rank is in."""
    if here.hang is not None:
        return [(here.hang.message, "waiting"), (f"→ {here.hang.advice}", "local")]
    who = _rank(here.missing)
    ended = all(tl.ranks[k].status in ("failed", "died", "finished") for k in here.missing if k in tl.ranks)
    why = (
        ngettext("{who} is gone", "{who} are gone", min(len(here.missing), 2), who=who)
        if ended and here.missing
        else ngettext("{who} has not come", "{who} have not come", min(len(here.missing), 2), who=who)
    )
    head = ngettext("{who} waits", "{who} wait", min(len(here.waiting), 2), who=_rank(here.waiting))
    lines = [(f"{head}; {why}" if here.missing else _("{head} for each other", head=head), "waiting")]
    for rank in [*here.waiting[:3], *here.missing[:3]]:
        state = tl.ranks.get(rank)
        if state is None:
            lines.append((_("rank {rank}   never heard of", rank=rank), "wrong"))
            continue
        doing = waiting_for(tl, state)
        since = _(" for {time}", time=duration(now - state.stack.since)) if doing and state.stack else ""
        text = (
            _("in {doing}{since}", doing=doing, since=since)
            if doing
            else rank_end(tl, rank)
            if state.exit or state.signal
            else _("busy elsewhere")
        )
        last = last_event(tl, rank)
        lines.append(
            (_("rank {rank}   {text}", rank=rank, text=text) + (_("; last: {last}", last=last) if last else ""), "text")
        )
    return lines


def _rank(numbers: tuple[int, ...]) -> str:
    if not numbers:
        return "nobody"
    return which_ranks(numbers, ranges(numbers))
