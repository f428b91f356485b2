"""rank-died: a rank ended before the others: it raised, was killed, or left by os._exit.

Measured: each process's last record (exception, exit code), its absence, and the exit code or signal that the launcher
saw.

Fires for the rank that ended first and badly, and names ranks that only followed (ended by the launcher, or thrown out
of a collective because the first was gone).

Does not fire when all ranks raised the same error (the script fails; that is no rank's own fault); when PyTorch's
error is explained by torch-refused; when ddpviz or the user ended the job; for one rank alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpviz.findings import hang, standing, torch_refused, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.timeline.model import RankState, Site, Timeline

# gloo 2.13.0 and 2.14.1, when the other end of a connection is gone
PEER_GONE = re.compile(r"Connection closed by peer|Connection reset by peer|Broken pipe")
_SIGNALS = {2: "SIGINT", 6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}


def check(tl: Timeline) -> Iterator[Finding]:
    if len(tl.ranks) < 2 or tl.run.status == "interrupted":
        return
    bad = [s for s in tl.ranks.values() if _ended_badly(tl, s)]
    if not bad:
        return
    own = [s for s in bad if not _victim(s)]
    if not own:
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
    waits = [w for w in hang.waiters(tl) if w.rank != first.rank]
    tail = f" {words.start(words.ranks([w.rank for w in waits]))} waited for it in {waits[0].what}." if waits else ""
    thrown = [s.rank for s in bad if _victim(s) and s.rank != first.rank and s.exit is not None and s.exit.error]
    if thrown and not waits:
        tail = f" {words.start(words.ranks(thrown))} then failed because the connection to it was gone."
    yield Finding(
        "rank-died",
        Severity.ERROR,
        f"Rank {first.rank} ended before {words.ranks(others)}, {how}{line}{words.at(site)}."
        + (f" The last it did: {last}." if last else " It had not wrapped a model yet.")
        + tail,
        _advice(first, error),
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
    if state.exit is not None and state.exit.reason in ("finished", "detached") and not state.exit.code:
        return False  # it had said its last word; a crash of the interpreter's own clean-up is no death
    return state.status in ("failed", "died")


def _victim(state: RankState) -> bool:
    """Ended because another had: by the launcher's SIGTERM, or thrown out of a collective."""
    if state.exit is not None and PEER_GONE.search(state.exit.error):
        return True
    return state.signal == 15 or (
        state.exit is not None and state.exit.reason == "signal" and state.exit.code in (None, 15, -15, 143)
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
        return "by an exception"
    if state.exit is not None and state.exit.reason == "os._exit":
        return f"by os._exit({state.exit.code if state.exit.code is not None else ''})"
    if state.signal is not None:
        name = _SIGNALS.get(state.signal, "")
        return f"killed by signal {state.signal}" + (f" ({name})" if name else "")
    return f"with {standing.ending(state)}"


def _advice(state: RankState, error: str) -> str:
    if state.signal == 9:
        return (
            "SIGKILL with no traceback is most often the system running out of memory: look at `dmesg` or the "
            "scheduler's log, and lower the batch size or the number of DataLoader workers."
        )
    if state.signal in (6, 7, 11):
        return (
            "Native code crashed: run that rank with PYTHONFAULTHANDLER=1 to see the Python line; SIGBUS is often a "
            "full /dev/shm."
        )
    if error:
        return "Mend that error; the other ranks only wait for this one. Its traceback is in the rank's log."
    return f"Look at the end of rank {state.rank}'s log."


def _last_pass(tl: Timeline, rank: int) -> int | None:
    found = [len(m.lanes[rank].passes) - 1 for m in tl.modules if rank in m.lanes and len(m.lanes[rank].passes)]
    return found[0] if found else None
