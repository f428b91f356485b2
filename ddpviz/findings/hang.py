"""Who waits for whom: decides from the timeline alone whether a job is stuck, and says who is missing. A pure function.

Used by `check` while a job runs, by the dashboard to say "waiting", and by the rule collective-hang afterwards.

Stuck means that nobody concerned gets anywhere: some rank has been blocked in a collective (or in setting the job up)
for `limit_ns`, and every rank that it needs, and that these need in turn, is gone, or blocked itself, or has not
answered, or idles. A rank whose main thread uses the CPU computes, however slow it is, and then nobody who depends on
it is stuck. A rank that is idle outside any collective may be reading from a disk or a network, so it gets four times
the limit.

To blame is the rank whose own count of collectives on that group is lowest; where the counts agree but the operation
at that count differs in kind or size, the odd one out, or the one with fewer passes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ddpviz.findings import standing, words
from ddpviz.language import _, ngettext
from ddpviz.timeline.model import RankState, Site, Timeline

PATIENCE = 4  # times the limit for a rank that is idle outside any collective


@dataclass(frozen=True, slots=True)
class Waiter:
    """A rank that is blocked, and in what."""

    rank: int
    doing: str  # "all-reduce", "barrier", "init_process_group", ...
    what: str  # in words, with bucket, layers and micro-step: "the all-reduce of bucket 0 (fc.weight) in micro-step 4"
    since_ns: int
    site: Site
    group: int
    count: int  # of the collective it is in, on that group; -1: not known
    kind: int
    numel: int
    module: int
    pass_index: int
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """A rank that the waiting ones need and that will not come."""

    rank: int
    state: str  # "waits" | "ended" | "silent" | "idle" | "computes" | "unknown"
    doing: str  # in words: "waits in a barrier (train.py:25)"
    last: str  # the last thing it did, in words
    since_ns: int
    site: Site
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hang:
    """Ranks that wait, and ranks that are missing. `mismatch`: all are there, but in different operations."""

    waiting: tuple[Waiter, ...]
    missing: tuple[Missing, ...]
    since_ns: int
    now_ns: int
    mismatch: bool

    @property
    def message(self) -> str:
        """What is the matter, in a few sentences."""
        first = self.waiting[0]
        group = [w for w in self.waiting if (w.what, w.site) == (first.what, first.site)]
        who = words.start(words.ranks([w.rank for w in group]))
        age = words.duration(max(0, self.now_ns - min(w.since_ns for w in group)))
        head = ngettext(
            "{who} has waited {age} in {what}{at}",
            "{who} have waited {age} in {what}{at}",
            min(len(group), 2),
            who=who,
            age=age,
            what=first.what,
            at=words.at(first.site),
        )
        gone = [m for m in self.missing if m.rank not in {w.rank for w in group}]
        if not gone:
            return _(
                "{head}. All its ranks are there, and it does not end: look at the network or the device.", head=head
            )
        names = words.ranks([m.rank for m in gone])
        parts = [_("{head} for {names}, which will not come.", head=head, names=names)]
        parts += [
            _("Rank {rank} {doing}; the last it did: {last}.", rank=m.rank, doing=m.doing, last=m.last)
            if m.last
            else _("Rank {rank} {doing}.", rank=m.rank, doing=m.doing)
            for m in gone[:3]
        ]
        others = [w for w in self.waiting if w not in group and w.rank not in {m.rank for m in gone}]
        parts += [
            _("Rank {rank} waits in {what}{at}.", rank=w.rank, what=w.what, at=words.at(w.site)) for w in others[:2]
        ]
        return " ".join(parts)

    @property
    def advice(self) -> str:
        """What to do about it."""
        states = {m.state for m in self.missing}
        if "ended" in states:
            return _(
                "Give every rank the same number of batches, or let all of them leave the loop together; for "
                "uneven data use `with model.join():`."
            )
        if self.mismatch or "waits" in states:
            return _(
                "All ranks have to issue the same collectives in the same order: look for one that only some ranks "
                "reach (if rank == 0, a skipped batch, loops of different length, a metric computed on one rank)."
            )
        if "silent" in states:
            return _(
                "Look for native code that holds the GIL after what that rank did last: it stops all Python threads."
            )
        if "unknown" in states:
            return _(
                "Look at what that rank's script waits for before it imports torch: a file, a lock, a download, a "
                "question to a user."
            )
        return _("Look at what that rank is doing at the line above, and why it does not get to the collective.")

    @property
    def site(self) -> Site:
        """Where to look first: the missing rank's line, else the waiting one's."""
        return next((m.site for m in self.missing if m.site.file), self.waiting[0].site)


def stuck(tl: Timeline, now_ns: int, limit_ns: int) -> Hang | None:
    """The hang that the ranks are in, or None while somebody concerned gets on.

    `now_ns` is on the timeline's clock. With `limit_ns` 0 everybody who waits now counts: the state as it is.
    """
    over = limit_ns <= 0
    waiting = {
        rank: state
        for rank, state in tl.ranks.items()
        if standing.waits(state, tl) and now_ns - standing.quiet_since(state) >= limit_ns
    }
    for rank in sorted(waiting, key=lambda k: (_order(waiting[k]), k)):
        needed = _needed(tl, waiting[rank])
        everyone = _concerned(tl, waiting, rank)
        if all(k in waiting or _hopeless(tl, k, now_ns, limit_ns, waiting[rank]) or over for k in everyone):
            if set(needed) <= set(waiting) and _same_operation(waiting, needed) and not over:
                since = max(standing.quiet_since(waiting[k]) for k in needed)
                if now_ns - since < PATIENCE * limit_ns:
                    continue  # all are in one collective: it may just be slow
            return _hang(tl, rank, waiting, needed, now_ns)
    return None


def _concerned(tl: Timeline, waiting: dict[int, RankState], rank: int) -> set[int]:
    """The ranks that a waiting rank needs, and those that these need in turn: one that computes may free them all."""
    found: set[int] = set()
    ask = [rank]
    while ask:
        for k in _needed(tl, waiting[ask.pop()]):
            if k not in found:
                found.add(k)
                ask += [k] if k in waiting else []
    return found


def waiters(tl: Timeline) -> list[Waiter]:
    """Every rank that is blocked right now, for a viewer."""
    return [_waiter(tl, rank, state) for rank, state in sorted(tl.ranks.items()) if standing.waits(state, tl)]


# --- one rank --------------------------------------------------------------------------------------------------------


def _order(state: RankState) -> int:
    """Waiting in DDP's own collectives first: that one trains. Then in another collective, then in setting up."""
    stack = state.stack
    if stack is None:
        return 3
    if stack.doing in ("forward broadcast", "bucket rebuild") or (
        stack.pass_index >= 0 and stack.doing == "all-reduce"
    ):
        return 0
    return 2 if stack.doing in standing.SETUP else 1


def _needed(tl: Timeline, state: RankState) -> tuple[int, ...]:
    """The ranks that have to come to what this one waits in."""
    stack = state.stack
    if stack is not None and stack.group in tl.groups:
        return tl.groups[stack.group].ranks
    if stack is not None and 0 <= stack.module < len(tl.modules):
        return tl.modules[stack.module].ranks
    return tuple(range(tl.run.world_size)) or tuple(sorted(tl.ranks))


def _hopeless(tl: Timeline, rank: int, now: int, limit: int, waiter: RankState) -> bool:
    """Whether a rank that does not wait itself will not come either."""
    state = tl.ranks.get(rank)
    if state is None:  # never heard of: it may be importing torch
        return now - standing.quiet_since(waiter) >= PATIENCE * limit
    if not standing.alive(state, tl):
        return True
    if standing.waits(state, tl):
        return False  # blocked, but not for long enough yet
    if standing.silent(state, now, limit):
        return True
    if state.cpu_ns < 0:  # its CPU time is not known: give it the benefit of the doubt
        return False
    return now - max(state.progress_ns, state.busy_ns) >= PATIENCE * limit


def _same_operation(waiting: dict[int, RankState], needed: tuple[int, ...]) -> bool:
    return len({_operation(waiting[k]) for k in needed}) == 1


def _operation(state: RankState) -> tuple[object, ...]:
    stack = state.stack
    if stack is None:
        return ()
    return (stack.group, stack.count, stack.kind, stack.numel) if stack.count >= 0 else (stack.group, stack.doing)


# --- who is to blame -------------------------------------------------------------------------------------------------


def _hang(tl: Timeline, rank: int, waiting: dict[int, RankState], needed: tuple[int, ...], now: int) -> Hang:
    leader = waiting[rank]
    here = leader.stack
    key = here.group if here is not None else -1
    counts: dict[int, int] = {}
    for k in needed:
        state = tl.ranks.get(k)
        stack = state.stack if k in waiting and state is not None else None
        if stack is not None and stack.group == key and stack.count >= 0:
            counts[k] = stack.count
        elif state is not None and key in state.collectives:
            counts[k] = state.collectives[key]
    absent = [k for k in needed if k not in waiting]
    mismatch = False
    if not absent and counts and len(set(counts.values())) > 1:
        absent = [k for k in needed if counts.get(k, -1) == min(counts.values())]
    elif not absent:
        kinds = Counter(_operation(waiting[k])[-2:] for k in needed)
        doing = Counter(waiting[k].stack.doing for k in needed if waiting[k].stack is not None)  # type: ignore[union-attr]
        if len(kinds) > 1 or len(doing) > 1:
            mismatch = True
            mine = _operation(leader)[-2:] if len(kinds) > 1 else (here.doing if here else "")
            odd = [
                k
                for k in needed
                if (_operation(waiting[k])[-2:] if len(kinds) > 1 else getattr(waiting[k].stack, "doing", "")) != mine
            ]
            fewest = [k for k in odd if _passes(tl, k) <= _passes(tl, rank)]
            absent = fewest or odd
    else:
        least = min((counts.get(k, 0) for k in absent), default=0)
        ahead = counts.get(rank, least)
        lower = [k for k in waiting if k != rank and k in needed and counts.get(k, least) < min(least, ahead)]
        absent = lower or absent
    ordered = [rank, *(k for k in sorted(waiting) if k != rank and k not in absent)]
    blocked = tuple(_waiter(tl, k, waiting[k]) for k in ordered if k not in absent or k == rank)
    absentees = tuple(missing(tl, k, now) for k in absent if k != rank)
    since = min(w.since_ns for w in blocked)
    return Hang(blocked, absentees, since, now, mismatch)


def _passes(tl: Timeline, rank: int) -> int:
    return sum(len(m.lanes[rank].passes) for m in tl.modules if rank in m.lanes) + _in_pass(tl.ranks.get(rank))


def _in_pass(state: RankState | None) -> int:
    return int(state is not None and state.stack is not None and state.stack.pass_index >= 0)


def _waiter(tl: Timeline, rank: int, state: RankState) -> Waiter:
    stack = state.stack
    assert stack is not None
    return Waiter(
        rank,
        stack.doing,
        standing.operation(tl, stack),
        standing.quiet_since(state),
        tl.site(rank, stack.site),
        stack.group,
        stack.count,
        stack.kind,
        stack.numel,
        stack.module,
        stack.pass_index,
        tuple(stack.frames),
    )


def missing(tl: Timeline, rank: int, now: int) -> Missing:
    """Where a rank that does not come stands."""
    state = tl.ranks.get(rank)
    if state is None:
        return Missing(
            rank, "unknown", _("has not said anything yet: it did not get as far as importing torch"), "", 0, Site(), ()
        )
    stack = state.stack
    site = tl.site(rank, stack.site) if stack is not None else Site()
    frames = tuple(stack.frames) if stack is not None else ()
    last = standing.last_event(tl, rank)
    age = words.duration(max(0, now - standing.quiet_since(state)))
    if not standing.alive(state, tl):
        if state.exit is not None and state.exit.reason in ("finished", "detached") and not state.exit.code:
            doing = _("has finished its script")
        elif state.exit is not None and state.exit.error:
            doing = _("has ended with {error}", error=state.exit.error.splitlines()[0])
        else:
            doing = _("has ended ({ending})", ending=standing.ending(state))
        return Missing(rank, "ended", doing, last, state.exit.at if state.exit else state.last_ns, site, frames)
    if standing.waits(state, tl) and stack is not None:
        return Missing(
            rank,
            "waits",
            _(
                "has waited in {operation}{at} for {age}",
                operation=standing.operation(tl, stack),
                at=words.at(site),
                age=age,
            ),
            last,
            standing.quiet_since(state),
            site,
            frames,
        )
    if standing.silent(state, now, 0):
        where = f"{words.at(site)}" if site.file else ""
        quiet = words.duration(max(0, now - state.beat_ns))
        return Missing(
            rank,
            "silent",
            _("has an interpreter that has not answered for {quiet}{where}", quiet=quiet, where=where),
            last,
            state.beat_ns,
            site,
            frames,
        )
    busy = state.cpu_ns >= 0 and state.busy_ns >= state.beat_ns > 0
    if busy:
        return Missing(rank, "computes", _("computes{at}", at=words.at(site)), last, state.progress_ns, site, frames)
    where = words.at(site) or (f" ({frames[0]})" if frames else "")
    return Missing(
        rank,
        "idle",
        _("has been idle outside any collective{where} for {age}", where=where, age=age),
        last,
        state.progress_ns,
        site,
        frames,
    )
