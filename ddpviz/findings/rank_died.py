"""rank-died: a rank ended before the others: it raised, was killed, or left by os._exit.

Measured: each process's last record (exception, exit code), its absence, and the exit code or signal that the launcher
saw.

Fires for the rank that ended first and badly, and names ranks that only followed (ended by the launcher, or thrown out
of a collective because the first was gone). Also for one that ended well while others still needed it.

Does not fire when all ranks raised the same error (the script fails; that is no rank's own fault); when PyTorch's
error is explained by torch-refused; when ddpviz or the user ended the job; for one rank alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpviz.findings import facts, hang, standing, torch_refused, uneven_ranks, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import RankState, Site, Timeline

_SIGNALS = {2: "SIGINT", 6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


def check(tl: Timeline) -> Iterator[Finding]:
    if len(tl.ranks) < 2 or tl.run.status == "interrupted":
        return
    bad = [s for s in tl.ranks.values() if _ended_badly(tl, s)]
    if not bad:
        return
    own = [s for s in bad if not _victim(s)]
    if not own:
        yield from _left_early(tl, bad)
        return
    first = min(own, key=lambda s: s.exit.at if s.exit is not None else s.last_ns)
    if torch_refused.explained(tl, first) or _all_alike(tl, own):
        return
    others = [s.rank for s in tl.ranks.values() if s.rank != first.rank]
    site = tl.site(first.rank, first.exit.site) if first.exit is not None and first.exit.site else Site()
    error = first.exit.error.strip() if first.exit is not None else ""
    last = standing.last_event(tl, first.rank)
    how = _how(first)
    line = f": {error.splitlines()[0]}" if error else ""
    known = _("The last that was recorded of it") if first.exit is None else _("The last it did")
    waits = [w for w in hang.waiters(tl) if w.rank != first.rank]
    tail = (
        _(
            " {ranks} waited for it in {what}.",
            ranks=words.start(words.ranks([w.rank for w in waits])),
            what=waits[0].what,
        )
        if waits
        else ""
    )
    thrown = [s.rank for s in bad if _victim(s) and s.rank != first.rank and s.exit is not None and s.exit.error]
    if thrown and not waits:
        tail = _(" {ranks} then failed because the connection to it was gone.", ranks=words.start(words.ranks(thrown)))
    yield Finding(
        "rank-died",
        Severity.ERROR,
        _(
            "Rank {rank} ended before {others}, {how}{line}{at}.",
            rank=first.rank,
            others=words.ranks(others),
            how=how,
            line=line,
            at=words.at(site),
        )
        + (
            f" {known}: {last}."
            if last
            else _(" What it did last was not recorded: it was too fast.")
            if first.exit is None and tl.modules
            else _(" It had not wrapped a model yet.")
        )
        + tail,
        _advice(first, error),
        ranks=(first.rank,),
        file=site.file,
        line=site.line,
        code=site.code,
        via=site.via,
        backward=_last_pass(tl, first.rank),
    )


def _left_early(tl: Timeline, thrown: list[RankState]) -> Iterator[Finding]:
    """Every rank that failed lost its connection to one that had come to the end of its script, and all was well there.
    Where the numbers of passes tell it, uneven-ranks does."""
    lost = [s for s in thrown if standing.thrown_out(s) and s.exit is not None]
    gone = [s for s in tl.ranks.values() if standing.finished(s) and s.exit is not None]
    if not lost or not gone or any(uneven_ranks.drifted(tl, module) for module in facts.shared(tl)):
        return
    first = min(gone, key=lambda s: s.exit.at if s.exit is not None else 0)
    waits = lost[0]
    site = tl.site(waits.rank, waits.exit.site) if waits.exit is not None else Site()
    last = standing.last_event(tl, first.rank)
    yield Finding(
        "rank-died",
        Severity.ERROR,
        _(
            "Rank {rank} came to the end of its script (exit code 0) while others still needed it: {ranks} failed{at} "
            "because the connection to it was gone.",
            rank=first.rank,
            ranks=words.ranks([s.rank for s in lost]),
            at=words.at(site),
        )
        + (_(" The last rank {rank} did: {last}.", rank=first.rank, last=last) if last else ""),
        _(
            "Let all ranks leave together: a dist.barrier() before the end, and no sys.exit(), return or break "
            "that only some ranks reach."
        ),
        ranks=(first.rank,),
        file=site.file,
        line=site.line,
        code=site.code,
        via=site.via,
        backward=_last_pass(tl, first.rank),
    )


def _ended_badly(tl: Timeline, state: RankState) -> bool:
    if tl.run.status == "hung":  # the job was ended by us: only what came before counts
        return (
            state.exit is not None
            and state.exit.reason in ("exception", "os._exit")
            and bool(state.exit.code or state.exit.error)
        )
    if standing.finished(state):
        return False  # it had said its last word; a crash of the interpreter's own clean-up is no death
    return state.status in ("failed", "died")


def _victim(state: RankState) -> bool:
    """Ended because another had: by the launcher's SIGTERM, or thrown out of a collective."""
    return (
        standing.thrown_out(state)
        or state.signal == 15
        or (state.exit is not None and state.exit.reason == "signal" and state.exit.code in (None, 15, -15, 143))
    )


def _all_alike(tl: Timeline, own: list[RankState]) -> bool:
    """Whether every rank ended with the same error, or was about to when the launcher ended it."""
    if len(own) < 2:
        return False
    errors = {
        # numbers apart: a rank or a device in the text does not make it another error
        re.sub(r"\d+", "#", s.exit.error.splitlines()[0])
        if s.exit is not None and s.exit.error
        else f"{s.signal}/{s.exit_code}"
        for s in own
    }
    rest = [s for s in tl.ranks.values() if s not in own]
    return len(errors) == 1 and all(_victim(s) or s.status != "finished" for s in rest)


def _how(state: RankState) -> str:
    if state.exit is not None and state.exit.reason == "exception":
        return _("by an exception")
    if state.exit is not None and state.exit.reason == "os._exit":
        return _("by os._exit({code})", code=state.exit.code if state.exit.code is not None else "")
    if state.signal is not None:
        name = _SIGNALS.get(state.signal, "")
        return _("killed by signal {signal}", signal=state.signal) + (f" ({name})" if name else "")
    return _("with {ending}", ending=standing.ending(state))


def _advice(state: RankState, error: str) -> str:
    if state.signal == 9:
        return _(
            "SIGKILL with no traceback is most often the system running out of memory: look at `dmesg` or the "
            "scheduler's log, and lower the batch size or the number of DataLoader workers."
        )
    if state.signal in (6, 7, 11):
        return _(
            "Native code crashed: run that rank with PYTHONFAULTHANDLER=1 to see the Python line; SIGBUS is "
            "often a full /dev/shm."
        )
    if error:
        return _("Mend that error; the other ranks only wait for this one. Its traceback is in the rank's log.")
    return _("Look at the end of rank {rank}'s log.", rank=state.rank)


def _last_pass(tl: Timeline, rank: int) -> int | None:
    found = [len(m.lanes[rank].passes) - 1 for m in tl.modules if rank in m.lanes and len(m.lanes[rank].passes)]
    return found[0] if found else None
