"""Folds what the ranks wrote into the Timeline, as it comes: the one thing that changes it.

Incremental: a feed costs what is new, by the numpy block, and any chunking of the same blocks gives the same Timeline.
No I/O and no clock: time is what the ranks wrote.

Clocks: a process on the run's own host is shifted by the run's start on the shared monotonic clock; one on another host
by the wall clocks, as its Process record pairs them. Jobs: a folder may hold several (an elastic restart is another
attempt, a script may start torchrun twice). Each is folded apart, and `timeline` is the newest that has run a DDP
module; the others are named in `run.notes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ddpviz.timeline.hosts import Source
from ddpviz.timeline.job import JobFold
from ddpviz.timeline.model import Timeline
from ddpviz.trace import records as r

if TYPE_CHECKING:
    from ddpviz.trace.reader import Batch

_Blocks = list[tuple[r.RowKind, Any]]
_FAR = 1 << 61  # ns; a clock that says more is damaged
_RANKLESS_BLOCKS = 1000  # a process that never says its rank (a launcher) is kept this far


class _Job:
    """One job's fold, and which process holds which rank in it."""

    def __init__(self, key: tuple[str, int, int]) -> None:
        self.key = key  # rendezvous, attempt, and how many with these two came before
        self.fold = JobFold()
        self.holder: dict[int, str] = {}
        self.started = 0

    @property
    def worth(self) -> tuple[bool, bool, int, int]:
        """The one to show has passes or steps, or at least a module; of several, the newest."""
        tl = self.fold.timeline
        return self.fold.worked, bool(tl.modules), self.started, self.key[1]


class Fold:
    """`run` takes run.json (call it before the first `feed`), `feed` what a reader found; `timeline` is the result."""

    def __init__(self) -> None:
        self._info: dict[str, Any] = {}
        self._jobs: dict[tuple[str, int, int], _Job] = {}
        self._sources: dict[str, Source] = {}
        self._held: dict[str, _Blocks] = {}  # of processes that have not said their rank
        self._job_of: dict[str, _Job] = {}
        self._start: tuple[str, int, int] | None = None  # host, monotonic and wall clock when the run started
        self._empty = JobFold()
        self._shown = self._empty
        self._version = 0

    @property
    def timeline(self) -> Timeline:
        return self._shown.timeline

    def run(self, info: dict[str, Any]) -> None:
        """Takes run.json, again whenever it changed. Fields that are missing or null leave what is known."""
        self._info = dict(info)
        if self._start is None and info.get("started_monotonic_ns") and info.get("started_wall_ns"):
            self._start = (info.get("host") or "", info["started_monotonic_ns"], info["started_wall_ns"])
        self._settle()

    def feed(self, batches: Iterable[Batch]) -> bool:
        """Takes in new blocks. True if anything changed."""
        some = False
        for batch in batches:
            if batch.blocks:
                some = True
                self._take(batch.source, batch.blocks)
        if some:
            self._settle()
        return some

    def _take(self, name: str, blocks: _Blocks) -> None:
        source = self._sources.setdefault(name, Source(name))
        if source.rank is None:
            self._introduce(source, blocks)
            held = self._held.setdefault(name, [])
            held.extend(blocks)
            if source.rank is None:
                del held[_RANKLESS_BLOCKS:]
                return
            blocks = self._held.pop(name)
        job = self._job_of[name]
        if job.holder.get(source.rank or 0) != name:
            return  # another process took its rank
        for kind, payload in _merged(blocks):
            if kind is r.RowKind.RECORDS:
                for record in payload:
                    job.fold.record(source, record)
            else:
                job.fold.rows(source, r.RowKind(kind), payload)

    def _introduce(self, source: Source, blocks: _Blocks) -> None:
        """Finds the process's rank, clock and job in its first records."""
        for kind, payload in blocks:
            if kind is not r.RowKind.RECORDS:
                continue
            for record in payload:
                if isinstance(record, r.Process):
                    source.process = record
                    source.shift = self._shift(record)
                    if source.rank is None:
                        source.rank = record.rank
                elif isinstance(record, r.RankIs):
                    source.rank = record.rank
        if source.rank is not None and source.process is None:
            source.rank = None  # the head of its file is missing or yet to come: nothing can be placed
        if source.rank is not None:
            self._assign(source)

    def _shift(self, process: r.Process) -> int:
        if self._start is None:
            self._start = (process.host, process.monotonic_ns, process.wall_ns)
        host, monotonic, wall = self._start
        by = -monotonic if process.host == host else process.wall_ns - process.monotonic_ns - wall
        return max(-_FAR, min(_FAR, by))

    def _assign(self, source: Source) -> None:
        """To the job of its rendezvous and attempt in which its rank is free: two torchruns in a row may share both."""
        process, rank = source.process, source.rank
        assert process is not None
        assert rank is not None
        number = 0
        while True:
            key = (process.job, process.attempt, number)
            job = self._jobs.get(key)
            if job is None:
                job = self._jobs[key] = _Job(key)
            if rank not in job.holder:
                break
            number += 1
        job.holder[rank] = source.name
        job.started = max(job.started, process.wall_ns)
        self._job_of[source.name] = job

    def _settle(self) -> None:
        """Chooses the job to show, writes run.json into it, and judges what is new in every job."""
        for job in self._jobs.values():
            job.fold.live = False
        best = max(self._jobs.values(), key=lambda j: j.worth, default=None)
        if best is not None:  # of one rendezvous the last attempt, whatever the wall clock did in between
            alike = (j for j in self._jobs.values() if j.key[0] == best.key[0] and j.worth[:2] == best.worth[:2])
            best = max(alike, key=lambda j: (j.key[1], j.key[2], j.started))
        if best is not None and self._info.get("status") in ("starting", "running", "hung"):
            # what is alive, or stuck, is the newest attempt of the job, even before it has built a module
            best = max((j for j in self._jobs.values() if j.key[0] == best.key[0]), key=lambda j: (j.key[1], j.started))
        newest = max(self._jobs.values(), key=lambda j: j.started, default=None)
        if best is not None and newest is not None and best.key[0] == newest.key[0] and best.key > newest.key:
            newest = best
        shown = best.fold if best is not None else self._empty
        self._write_run(shown, latest=best is newest)
        for job in self._jobs.values():
            job.fold.judge()
        shown.timeline.run.notes += _clocks(shown.timeline)
        self._shown = shown
        self._version += 1
        shown.timeline.version = self._version

    def _write_run(self, fold: JobFold, latest: bool) -> None:
        info, tl = self._info, fold.timeline
        run = tl.run
        for name in ("id", "title", "lesson", "world_size", "backend", "backend_reason", "status", "exit_code"):
            if info.get(name) is not None:
                setattr(run, name, info[name])
        run.redirected = run.redirected or bool(info.get("redirected"))
        run.ddpviz = run.ddpviz or info.get("ddpviz") or ""
        if info.get("command"):
            run.command = tuple(info["command"])
        fold.live = latest and run.status in ("starting", "running")
        for entry in info.get("ranks") or [] if latest else []:
            state = tl.ranks.get(entry.get("rank"))
            if state is not None:
                state.exit_code, state.signal = entry.get("exit_code"), entry.get("signal")
                state.said = str(entry.get("said") or "")
        run.notes = [*(info.get("notes") or []), *_said(fold, len(tl.ranks)), *self._others(fold)]

    def _others(self, shown: JobFold) -> list[str]:
        """What else is in the folder: other jobs with a DDP module, and newer attempts that got less far."""
        mine = next((job.key for job in self._jobs.values() if job.fold is shown), ("", 0, 0))
        lines = []
        for job in sorted(self._jobs.values(), key=lambda j: (j.started, j.key)):
            where, attempt, _ = job.key
            size = f"{len(job.holder)} ranks, {job.fold.micro_steps} micro-steps"
            if job.fold is shown or not (job.fold.timeline.modules or attempt > mine[1]):
                continue
            if (where, attempt) == (mine[0], mine[1]) or where != mine[0]:
                lines.append(f"another job ran in this folder too ({size}); it is not shown")
            elif attempt < mine[1]:
                lines.append(f"the job was restarted: attempt {attempt} came before ({size}); it is not shown")
            else:
                lines.append(
                    f"the job was restarted: attempt {attempt} got less far ({size}); attempt {mine[1]} is shown"
                )
        return lines


def _merged(blocks: _Blocks) -> _Blocks:
    """Blocks of rows of one kind between the same records, as one: a block of five rows costs as much as one of five
    hundred, and a live job writes twenty blocks a second and rank."""
    if len(blocks) < 2:
        return blocks
    out: _Blocks = []
    waiting: dict[r.RowKind, list[bytes]] = {}
    for kind, payload in blocks:
        if kind is not r.RowKind.RECORDS:
            waiting.setdefault(kind, []).append(payload)
            continue
        out += [(rows, b"".join(parts)) for rows, parts in waiting.items()]
        out.append((kind, payload))
        waiting.clear()
    return out + [(rows, b"".join(parts)) for rows, parts in waiting.items()]


def _clocks(tl: Timeline) -> list[str]:
    """How far the times of other hosts can be trusted."""
    return [
        f"the clock of {host} is set by the ends of {clock.shared} shared all-reduces, to within"
        f" {clock.error_ns / 1e3:.0f} microseconds"
        for host, clock in sorted(tl.clocks.items())
    ]


def _said(fold: JobFold, ranks: int) -> list[str]:
    """Notes of the ranks, each once, with the ranks that said it."""
    lines = []
    for text in sorted(fold.notes):
        who = fold.notes[text]
        name = "rank" if len(who) == 1 else "ranks"
        lines.append(text if len(who) == ranks > 1 else f"{name} {', '.join(map(str, sorted(who)))}: {text}")
    return lines
