"""Runs a job to its end without a screen and says what happened: the engine of `check` and of the API for tests."""

from __future__ import annotations

import time
from collections.abc import Callable

from ddpviz.findings import find
from ddpviz.findings.hang import PATIENCE, stuck
from ddpviz.headless.follow import Ended, Follower, ending_signals
from ddpviz.headless.outcome import Outcome
from ddpviz.headless.pulse import Pulse
from ddpviz.launch import Job
from ddpviz.timeline.model import Timeline

_POLL = 0.1  # seconds between two looks at the trace
_LOOK = 0.5  # seconds between two looks for a hang


def measure(job: Job, *, hang_after: float | None, watch: Callable[[Timeline], None] | None = None) -> Outcome:
    """Start the job, follow it to its end (or end it, where it hangs or ddpviz is told to end), and judge it.

    `hang_after` is in seconds, None for never. A signal that ends ddpviz ends the whole process tree first and
    stands in the outcome. Whatever happens, no process of the job is left when this returns or raises.
    """
    with ending_signals():
        try:
            job.start()
            follower = Follower(job.run_dir)
            hung = _follow(job, follower, hang_after, watch)
        except Ended as ended:
            job.stop()
            job.finish()
            return _judge(Follower(job.run_dir), ended.signum)
        except BaseException:
            job.stop()
            raise
        if not hung:
            job.finish()
            return _judge(follower)
        # What the ranks say while they are being ended is not what happened: judge before.
        follower.timeline.run.status = "hung"
        outcome = _judge(follower)
        job.stop("hung")
        outcome.timeline.run.exit_code = job.finish()
        return outcome


def _judge(follower: Follower, signum: int | None = None) -> Outcome:
    hung = follower.timeline.run.status == "hung"
    if not hung:
        follower.poll()
    tl = follower.timeline
    tl.run.notes.extend(problem for problem in follower.reader.problems if problem not in tl.run.notes)
    return Outcome(tl, find(tl), follower.reader.run_dir, follower.logs, signum)


def _follow(job: Job, follower: Follower, hang_after: float | None, watch: Callable[[Timeline], None] | None) -> bool:
    """Follow the job to its end; True if it hangs instead."""
    looked = 0.0
    pulse = Pulse(job.work, follower.logs.size)
    while job.poll() is None:
        if follower.poll() and watch is not None:
            watch(follower.timeline)
        if hang_after is not None and time.monotonic() - looked >= _LOOK:
            looked = time.monotonic()
            if _hangs(follower, pulse, hang_after):
                return True
        time.sleep(_POLL)
    return False


def _hangs(follower: Follower, pulse: Pulse, limit: float) -> bool:
    """Whether the job is stuck: by what its ranks say, and where they say nothing, by its processes' CPU time.

    A rank that is idle, or was never heard of, may be served by processes that compute: a DataLoader's workers, an
    import of torch. And before torch is imported nobody says anything.
    """
    tl, now = follower.timeline, time.monotonic()
    quiet = (follower.now_ns() - max((s.progress_ns for s in tl.ranks.values()), default=0)) / 1e9
    if quiet < limit:
        pulse.reset()
    else:
        pulse.look(now)
        if pulse.still_for(now) >= (PATIENCE - 1) * limit:
            return True
    found = stuck(tl, follower.now_ns(), int(limit * 1e9))
    if found is None:
        return False
    if all(m.state not in ("idle", "unknown") for m in found.missing):
        return True
    waiting = {tl.ranks[w.rank].pid for w in found.waiting}
    return quiet >= limit and pulse.still_for(now, without=waiting) >= limit
