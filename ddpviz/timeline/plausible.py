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
        self._top: dict[tuple[int, int, r.RowKind], int] = {}  # by rank, module and kind: one above the highest index

    def rows(self, rank: int, module: int, kind: r.RowKind, rows: Rows) -> Rows:
        if kind not in _BY:
            return rows
        index = rows[_BY[kind]]
        key = (rank, module, kind)
        known = self._top.get(key, 0)
        top, most = int(index.max()) + 1, known + len(rows) + self._spare
        if top > most:
            rows = rows[index < most]
            if not len(rows):
                return rows
            top = int(rows[_BY[kind]].max()) + 1
        self._spare += len(rows) - max(0, top - known)
        self._top[key] = max(known, top)
        return rows
