"""Rows of one kind of one rank, growing: appended by the block, read as one numpy array. Touched by the fold alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpviz.timeline.model import Rows
from ddpviz.trace import records as r


def dtype_of(kind: r.RowKind) -> np.dtype[np.void]:
    """The numpy type of one row of a block: packed, little-endian."""
    return np.dtype([(name, "<" + code) for name, code in r.COLUMNS[kind]])


DTYPES = {kind: dtype_of(kind) for kind in r.COLUMNS}
# Times to shift to the common clock, and of these the ones where 0 means "not measured".
TIMES: dict[r.RowKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    r.RowKind.PASS: (("begin", "end"), ("forward", "forward_end")),
    r.RowKind.BUCKET: ((), ("ready", "launch", "done")),
    r.RowKind.STEP: (("begin", "end"), ()),
    r.RowKind.COLLECTIVE: (("begin",), ("end",)),
    r.RowKind.LAYER: ((), ()),
    r.RowKind.CLEAR: (("at",), ()),
}


# Nanoseconds to add to times: the same to all of them, or a function of them.
Shift = int | Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]


def decode(kind: r.RowKind, payload: bytes, shift: int) -> Rows:
    """A block as an array of its own, times shifted. A torn last row is left out."""
    dtype = DTYPES[kind]
    rows: Rows = np.frombuffer(payload, dtype, count=len(payload) // dtype.itemsize).copy()
    shift_rows(kind, rows, shift)
    return rows


def shift_rows(kind: r.RowKind, rows: Rows, by: Shift) -> None:
    """Moves the times of rows of this kind, in place; 0 where it means "not measured" stays."""
    always, unless_zero = TIMES[kind]
    for name in always:
        rows[name] += by if isinstance(by, int) else by(rows[name])
    for name in unless_zero:
        column = rows[name]
        np.add(column, by if isinstance(by, int) else by(column), out=column, where=column != 0)


_LONG, _HUGE = 1 << 14, 1 << 28  # rows from which a column is long; bytes from which it takes a quarter more


class Column:
    """A one-dimensional array that grows at its end."""

    __slots__ = ("_data", "_fill", "size")

    def __init__(self, dtype: Any, fill: int = 0) -> None:
        self._data: npt.NDArray[Any] = np.empty(0, dtype)
        self._fill = fill  # what new places hold
        self.size = 0

    @property
    def view(self) -> npt.NDArray[Any]:
        """The filled part. A view: it may be left behind by later growth, so take it anew after each feed."""
        return self._data[: self.size]

    def grow(self, size: int) -> None:
        """Makes it at least `size` long."""
        if size <= self.size:
            return
        if size > len(self._data):
            # Pages of zeros that are never touched cost nothing, and what a viewer still looks at when a column moves
            # costs all of its old place: a long column takes room for four times as much, and hardly ever moves again.
            long = 4 if self.size >= _LONG and not self._fill and self._data.nbytes < _HUGE else 1.25
            room = max(64, size, int(self.size * (2 if self.size < _LONG else long)))
            data = np.full(room, self._fill, self._data.dtype) if self._fill else np.zeros(room, self._data.dtype)
            data[: self.size] = self._data[: self.size]
            self._data = data
        self.size = size

    def extend(self, rows: npt.NDArray[Any]) -> None:
        start = self.size
        self.grow(start + len(rows))
        self._data[start : self.size] = rows

    def extend_sorted(self, rows: Rows, *keys: str) -> int:
        """Appends and keeps the order of `keys`, in which most rows arrive; returns the first position that changed."""
        start = self.size
        self.extend(rows)
        tail = self.view[max(0, start - 1) :]
        order = tail[keys[0]] if len(keys) == 1 else tail[keys[0]].astype(np.uint64) << np.uint64(32) | tail[keys[1]]
        if (order[1:] > order[:-1]).all():
            return start
        lead = self.view[keys[0]]
        # bisect, not searchsorted: that one copies a whole column of a structured array
        start = bisect_left(lead, lead[start:].min(), 0, start)
        part = self.view[start:]
        order = np.lexsort([part[key] for key in reversed(keys)])
        if not np.array_equal(order, np.arange(len(order))):
            part[:] = part[order]
        return start
