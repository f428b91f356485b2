"""Whether a job's processes work or say anything: what no trace tells, before torch is imported and in workers."""

from __future__ import annotations

from collections.abc import Callable, Collection

_EVERY = 1.0  # seconds between two looks
_USES = 0.02  # share of a core; the threads that only watch use less


class Pulse:
    """When each process was last seen to work. `look` now and then; times are seconds of one clock."""

    def __init__(self, work: Callable[[], dict[int, float]], said: Callable[[], int]) -> None:
        self._work = work  # seconds of work so far of each process of the job
        self._said = said  # bytes that the job has printed
        self.reset()

    def reset(self) -> None:
        """The job gets on: nothing has to be watched."""
        self._at: float | None = None
        self._before: dict[int, float] = {}
        self._printed = 0
        self._moved: dict[int, float] = {}
        self._changed = 0.0

    def look(self, now: float) -> None:
        if self._at is not None and now - self._at < _EVERY:
            return
        times, printed = self._work(), self._said()
        for pid, seconds in times.items():
            if self._at is None or pid not in self._before or seconds - self._before[pid] > _USES * (now - self._at):
                self._moved[pid] = now
        if self._at is None or times.keys() != self._before.keys() or printed != self._printed:
            self._changed = now
        self._at, self._before, self._printed = now, times, printed

    def still_for(self, now: float, without: Collection[int] = ()) -> float:
        """Seconds for which no process but these has worked, and none was started, ended or heard."""
        return now - max([self._changed, *(self._moved[p] for p in self._before if p not in without)])
