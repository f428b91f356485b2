"""Puts the hosts on one clock by what they share: an all-reduce ends at the same moment on all its ranks.

Wall clocks agree to some milliseconds, a backward pass takes as long, so across hosts they only serve until enough
all-reduces have ended. Then each other host's clock is fitted to the reference host's: the median difference of those
ends, and the median of its growth, since two quartz clocks drift apart by microseconds a second. The fit is made anew
each time the ends have doubled in number, over all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ddpviz.timeline.columns import Shift
from ddpviz.timeline.model import HostClock, RankState, Rows
from ddpviz.trace import records as r

ENOUGH = 8  # all-reduces whose ends both hosts have reported
_FOR_DRIFT = 32  # ... from which on the drift can be told
_MOST = 4096  # ... that one fit looks at
_SIGMA = 1.4826  # of a normal distribution, over the median of the absolute deviations
_OF_MEDIAN = 1.2533  # standard error of a median over that of a mean

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Clock:
    """Turns a host's times into the reference's: later by `offset` at the time `at`, and by `drift` of what follows."""

    offset: int = 0
    drift: float = 0.0
    at: int = 0

    def by(self, times: Ints) -> Ints:
        """What to add to times of the host."""
        since: Ints = np.rint(self.drift * (times - self.at)).astype(np.int64)
        return self.offset + since

    def undone(self, times: Ints) -> Ints:
        """The host's times again, from turned ones."""
        raw: Ints = (
            times
            - self.offset
            - np.rint(self.drift / (1 + self.drift) * (times - self.offset - self.at)).astype(np.int64)
        )
        return raw


def change(old: Clock, new: Clock) -> Shift:
    """What to add to times that `old` has turned, so that they are as `new` turns them."""
    if not old.drift and not new.drift:
        return new.offset - old.offset

    def by(times: Ints) -> Ints:
        raw = old.undone(times)
        return raw + new.by(raw) - times

    return by


def fit(reference: Rows, other: Rows, known: Clock) -> tuple[Clock, HostClock] | None:
    """The other host's clock, from two ranks' BUCKET rows (its own as `known` has turned them), and how good it is.

    None while too few ends are shared.
    """
    mine, theirs = _ended(reference), _ended(other)
    _, at_mine, at_theirs = np.intersect1d(mine["count"], theirs["count"], return_indices=True)
    if len(at_mine) < ENOUGH:
        return None
    here, there = mine["done"][at_mine], known.undone(theirs["done"][at_theirs])
    return fitted(here, there)


def fitted(here: Ints, there: Ints) -> tuple[Clock, HostClock]:
    """The fit to the same moments on the reference's clock and on the other host's, in order.

    The error says by how much a time may be off, up to as much later again: the spread of the ends, since one host may
    always hear of an end a little later, and twice the standard errors of both medians.
    """
    shared = len(here)
    if shared > _MOST:
        some = np.linspace(0, shared - 1, _MOST).astype(np.int64)
        here, there = here[some], there[some]
    apart, n = here - there, len(here)
    middle = int(np.median(there))
    span = float(there[-1] - there[0])
    drift = wrong = 0.0
    if n >= _FOR_DRIFT and span > 0:
        half = n // 2
        passed = (there[half:] - there[: n - half]).astype(np.float64)
        grown = (apart[half:] - apart[: n - half]).astype(np.float64)
        slopes = grown[passed > 0] / passed[passed > 0]
        if len(slopes):
            drift = float(np.median(slopes))
            doubt = _OF_MEDIAN * _spread(slopes) / len(slopes) ** 0.5
            wrong = 2 * doubt * 1.5 * span  # at the far end of twice the span, seen from its middle
            if abs(drift) <= 3 * doubt or abs(drift) > 1e-3:
                drift, wrong = 0.0, wrong + min(abs(drift), 1e-3) * 1.5 * span
    rest = apart - np.rint(drift * (there - middle)).astype(np.int64)
    spread = _spread(rest.astype(np.float64))
    error = spread + 2 * _OF_MEDIAN * spread / n**0.5 + wrong
    clock = Clock(int(np.median(rest)), drift, middle if drift else 0)
    return clock, HostClock(offset_ns=clock.offset, drift=drift, error_ns=max(1, round(error)), shared=shared)


def _spread(values: npt.NDArray[np.float64]) -> float:
    return _SIGMA * float(np.median(np.abs(values - np.median(values))))


def _ended(rows: Rows) -> Rows:
    ended: Rows = rows[(rows["count"] != r.NO_INDEX) & (rows["done"] > 0)]
    return ended


def moved(time: int, by: Shift) -> int:
    return time + (by if isinstance(by, int) else int(by(np.array([time], np.int64))[0]))


def later(record: Any, by: Shift) -> Any:
    """The record with its times moved."""
    times = {name: moved(getattr(record, name), by) for name in ("at", "since") if hasattr(record, name)}
    return msgspec.structs.replace(record, **times) if times else record


def shift_state(state: RankState, by: Shift) -> None:
    """Moves what is known of a rank, in place."""
    for name in ("started_ns", "last_ns", "progress_ns", "beat_ns", "busy_ns"):
        if getattr(state, name):
            setattr(state, name, moved(getattr(state, name), by))
    state.stack = later(state.stack, by) if state.stack is not None else None
    state.exit = later(state.exit, by) if state.exit is not None else None
    state.refused[:] = [later(record, by) for record in state.refused]
