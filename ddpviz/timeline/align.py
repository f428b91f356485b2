"""Puts the hosts on one clock by what they share: an all-reduce ends at the same moment on all its ranks.

Wall clocks agree to some milliseconds, a backward pass takes as long, so across hosts they only serve until enough
all-reduces have ended. Then each other host is shifted once, by the median difference of those ends to the reference
host.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from ddpviz.timeline.model import RankState, Rows
from ddpviz.trace import records as r

ENOUGH = 8  # all-reduces whose ends both hosts have reported


def offset(reference: Rows, other: Rows) -> int | None:
    """Nanoseconds to add to the other host's times, from two ranks' BUCKET rows; None while too few ends are shared."""
    mine, theirs = _ended(reference), _ended(other)
    _, at_mine, at_theirs = np.intersect1d(mine["count"], theirs["count"], return_indices=True)
    if len(at_mine) < ENOUGH:
        return None
    return int(np.median((mine["done"][at_mine] - theirs["done"][at_theirs])[:ENOUGH]))


def _ended(rows: Rows) -> Rows:
    first: Rows = rows[: 64 * ENOUGH]
    ended: Rows = first[(first["count"] != r.NO_INDEX) & (first["done"] > 0)]
    return ended


def later(record: Any, by: int) -> Any:
    """The record with its times moved."""
    times = {name: getattr(record, name) + by for name in ("at", "since") if hasattr(record, name)}
    return msgspec.structs.replace(record, **times) if times else record


def shift_state(state: RankState, by: int) -> None:
    """Moves what is known of a rank, in place."""
    for name in ("started_ns", "last_ns", "progress_ns", "beat_ns", "busy_ns"):
        if getattr(state, name):
            setattr(state, name, getattr(state, name) + by)
    state.stack = later(state.stack, by) if state.stack is not None else None
    state.exit = later(state.exit, by) if state.exit is not None else None
    state.refused[:] = [later(record, by) for record in state.refused]
