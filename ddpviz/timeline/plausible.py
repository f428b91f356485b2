"""Tells lost rows from damage: a table has a place for every index below the highest, so one absurd number is memory.

A trace may be short of rows (a full disk, a damaged segment): half a million and as many again as it holds, all modules
and ranks together. Rows whose index claims that more are missing are left out.
"""

from __future__ import annotations

from ddpviz.timeline.model import Rows
from ddpviz.trace import records as r

_SPARE = 500_000
_BY = {r.RowKind.PASS: "index", r.RowKind.BUCKET: "pass", r.RowKind.STEP: "index"}


class Plausible:
    """Of one job. `rows` gives those that can be true."""

    def __init__(self) -> None:
        self._spare = _SPARE
        # One above the highest index: of passes by rank and module, of steps by rank (all its modules count together).
        self._top: dict[tuple[int, int], int] = {}

    def rows(self, rank: int, module: int, kind: r.RowKind, rows: Rows) -> Rows:
        if kind not in _BY:
            return rows
        index = rows[_BY[kind]]
        key = (rank, -1 if kind is r.RowKind.STEP else module)
        known = self._top.get(key, 0)
        held = 0 if kind is r.RowKind.BUCKET else len(rows)  # most passes have no bucket; its pass has a row of its own
        top, most = int(index.max()) + 1, known + held + self._spare
        if top > most:
            rows = rows[index < most]
            if not len(rows):
                return rows
            top = int(rows[_BY[kind]].max()) + 1
        self._spare += (held and len(rows)) - max(0, top - known)
        self._top[key] = max(known, top)
        return rows
