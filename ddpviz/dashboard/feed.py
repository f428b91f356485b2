"""Follows a run in a thread and hands over frozen snapshots; the screen's timer pulls the newest one.

The thread alone reads the trace, folds it and runs the rules. What it hands over is a copy of the timeline's frame (the
long columns are shared and only ever grow), so the screen never looks at a timeline while it is being written.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpviz import language
from ddpviz.dashboard.figures import figures
from ddpviz.dashboard.state import Cursor
from ddpviz.findings import find
from ddpviz.findings.model import Finding
from ddpviz.launch.outcome import tail
from ddpviz.timeline.fold import Fold
from ddpviz.timeline.model import Timeline
from ddpviz.trace.reader import Batch, RunError, RunReader
from ddpviz.trace.rundir import live_status
from ddpviz.trace.text import clean

if TYPE_CHECKING:
    from ddpviz.launch import Job


def frames_a_second() -> int:
    """How often the screen may change: 22, or what DDPVIZ_FPS says (viewers of a class need less)."""
    text = os.environ.get("DDPVIZ_FPS", "")
    return min(max(int(text), 1), 60) if text.isdecimal() else 22


# seconds between looks: data flows, the run is live, nothing more will come
QUICK, CALM, IDLE = max(0.03, 1 / frames_a_second() - 0.02), max(0.1, 1 / frames_a_second()), 0.5
SLICE, MOST = 1 << 20, 4 << 20  # bytes folded before the first snapshot of a long recording, and at once later
READING = 0.2  # seconds between two snapshots while a long recording is read
SHARE = 6  # folding what is live takes one part in so many of the thread's time, however many files there are
RULES_SHARE = 16  # the rules may take one part in this many of the thread's time
RULES_AT_LEAST = 0.4  # seconds between two looks of the rules


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment of a run, safe to read on the screen's thread."""

    tl: Timeline
    findings: list[Finding]
    info: dict[str, Any]
    now: int  # ns on the run's clock: the present while it runs, else the last thing heard
    running: bool
    complete: bool  # everything written so far has been read
    judged: bool = True  # the rules have looked at it
    exit_code: int | None = None  # of a job that this viewer started
    problems: tuple[str, ...] = ()
    last_words: dict[int, list[str]] = field(default_factory=dict)  # end of the output of ranks that failed silently
    error: str = ""  # the run cannot be followed, in one line
    serial: int = 0


def freeze(tl: Timeline) -> Timeline:
    """A copy that stays as it is while the fold goes on: the frame is copied, the columns are shared."""
    return replace(
        tl,
        run=replace(tl.run, notes=list(tl.run.notes)),
        ranks={
            rank: replace(
                state, refused=list(state.refused), joined=dict(state.joined), collectives=dict(state.collectives)
            )
            for rank, state in tl.ranks.items()
        },
        groups={key: replace(group, collectives=dict(group.collectives)) for key, group in tl.groups.items()},
        modules=[
            replace(
                module,
                params=list(module.params),
                layouts=list(module.layouts),
                lanes={
                    rank: replace(
                        lane, clips=list(lane.clips), replicas=list(lane.replicas), unanswered=list(lane.unanswered)
                    )
                    for rank, lane in module.lanes.items()
                },
            )
            for module in tl.modules
        ],
        unmanaged={rank: list(found) for rank, found in tl.unmanaged.items()},
        learning={rank: list(rates) for rank, rates in tl.learning.items()},
        optimizers=dict(tl.optimizers),
        sites=dict(tl.sites),
    )


@dataclass
class Feed:
    """`start()`, `latest` whenever wanted, `stop()`. With a job, starts it and sees it to its end."""

    run_dir: Path
    job: Job | None = None
    latest: Snapshot | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name="ddpviz-feed", daemon=True)
        self._fold = Fold()
        self._findings: list[Finding] = []
        self._ruled_version = -1
        self._ruled_in = ""  # the language of the findings
        self._rule_again = 0.0
        self._info: dict[str, Any] = {}
        self._code: int | None = None
        self._trends: dict[int, str] = {}
        self.lock = threading.RLock()  # held while the fold writes; the screen holds it while it reads

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the following; the job, if any, is the caller's to end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def present(self) -> int:
        """Now, in ns on the run's clock; the last thing heard once the run is over."""
        snap = self.latest
        return 0 if snap is None else present(snap.info, snap.tl, running=snap.running)

    def trends(self, cursor: Cursor) -> str:
        """Figures of the module looked at, as they stood when the rules last ran."""
        return self._trends.get(cursor.module, "")

    def _guarded(self) -> None:
        try:
            self._follow()
        except Exception as error:  # whatever it is, the screen says so instead of standing still
            ours = isinstance(error, RunError) or type(error).__name__ == "JobError"  # those speak for themselves
            self._hand_over(complete=True, error=str(error) if ours else f"{type(error).__name__}: {error}")

    def _follow(self) -> None:
        if self.job is not None:
            self.job.start()
        reader = RunReader(self.run_dir)
        told, look_again = False, 0.0
        size = SLICE
        while not self._stop.is_set():
            begun, busy = time.monotonic(), time.thread_time()
            code = self.job.poll() if self.job is not None else None
            batches = reader.read(size)
            caught_up = _bytes(batches) < size // 2
            size = SLICE if caught_up else min(size * 2, MOST)
            info = reader.info()
            changed = info != self._info or not told
            if changed:
                self._info = info
                with self.lock:
                    self._fold.run(info)
            with self.lock:
                changed = self._fold.feed(batches) or changed
            if code is not None and not batches and self._code is None and self.job is not None:
                self._code = self.job.finish()
                continue
            whole = not batches or (caught_up and self._running())
            if changed and not whole and begun < look_again:
                continue
            if changed or (whole and self.latest is not None and not self.latest.complete):
                told, look_again = True, begun + READING
                self._hand_over(complete=whole, problems=tuple(reader.problems))
            unjudged = self._ruled_version < 0
            if self._rule(force=whole) or (unjudged and self._ruled_version >= 0):  # after the picture
                self._hand_over(complete=whole, problems=tuple(reader.problems))
            spent = time.thread_time() - busy
            if not batches:
                self._stop.wait(QUICK if changed else CALM if self._running() else IDLE)
            elif caught_up and self._running():
                self._stop.wait(min(max(QUICK, spent * (SHARE - 1)), CALM * 2))

    def _rule(self, *, force: bool) -> bool:
        """Run the rules if there is something new and their turn has come; True if they said something else."""
        version, now = self._fold.timeline.version, time.monotonic()
        if not force and not self._running():
            return False  # a recording is read first, and judged once
        known = version == self._ruled_version and language.current() == self._ruled_in
        if known or (now < self._rule_again and not (force and self._over())):
            return False
        self._ruled_in = language.current()
        found = find(self._fold.timeline)
        self._trends = {module.id: figures(module) for module in self._fold.timeline.modules}
        self._rule_again = time.monotonic() + max((time.monotonic() - now) * RULES_SHARE, RULES_AT_LEAST)
        self._ruled_version = version
        different = found != self._findings
        self._findings = found
        return different

    def _over(self) -> bool:
        return not self._running()

    def _running(self) -> bool:
        if self.job is not None:
            return self._code is None
        status = live_status(self._info)  # a run that hangs is over once it was ended
        return status in ("starting", "running") or (status == "hung" and not self._info.get("ended_wall_ns"))

    def _hand_over(self, *, complete: bool, problems: tuple[str, ...] = (), error: str = "") -> None:
        tl = freeze(self._fold.timeline)
        self.latest = Snapshot(
            tl=tl,
            findings=self._findings,
            info=self._info,
            now=present(self._info, tl, running=self._running()),
            running=self._running() and not error,
            complete=complete,
            judged=self._ruled_version >= 0,
            last_words=self._last_words(tl) if not self._running() else {},
            exit_code=self._code,
            problems=problems,
            error=error,
            serial=(self.latest.serial if self.latest else 0) + 1,
        )

    def _last_words(self, tl: Timeline) -> dict[int, list[str]]:
        """The last lines that ranks printed which failed without an exception of Python's."""
        logs = self._info.get("logs") or {}
        words: dict[int, list[str]] = {}
        for rank, state in tl.ranks.items():
            silent = state.exit is None or not state.exit.error
            if state.status in ("failed", "died") and silent and str(rank) in logs and len(words) < 4:
                text = clean(tail(self.run_dir / str(logs[str(rank)]), 4096), newlines=True)
                words[rank] = [line[:200] for line in text.splitlines() if line.strip()][-6:]
        return words


def _bytes(batches: list[Batch]) -> int:
    return sum(len(payload) for batch in batches for _, payload in batch.blocks if isinstance(payload, bytes))


def present(info: dict[str, Any], tl: Timeline, *, running: bool) -> int:
    """Now on the run's clock. Only a run of this boot of this host has one; else the last thing heard."""
    started = info.get("started_monotonic_ns")
    if not running or not isinstance(started, int):
        return tl.now_ns
    now = time.monotonic_ns() - started
    return now if now >= tl.now_ns else tl.now_ns
