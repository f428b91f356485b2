"""The gate of one rank: where it holds, and how an order takes effect. No torch and no files.

Of the training thread it costs a lock at each backward, step and bucket of a job that takes orders, and of no other.
`passed` is called by the training thread, everything else by the thread that reads orders.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ddpviz.trace.orders import HOLD, KINDS, Answer, Order

NEVER = 1 << 62


class Gate:
    """Holds a rank outside its collectives. `change` gets the options of an order when it takes effect, on the
    training thread, and says what went wrong."""

    def __init__(self, rank: int, change: Callable[[dict[str, str]], str]) -> None:
        self._rank = rank
        self._change = change
        self._moved = threading.Condition()
        self._position = 0  # backwards behind us
        self._steps = 0
        self._hold_at = NEVER
        self._stop: tuple[str, int] | None = None  # a kind of place, and how many of them are left
        self._pace = 0.0
        self._holding = False
        self._order: Order | None = None  # promised, and not yet in effect
        self._serial = 0
        self._promised = self._done = self._gone = False
        self._problem = ""
        self.held = False
        self.passive = False  # this rank has no backwards any more, and others may have

    def passed(self, kind: str) -> None:
        """A backward or a step has ended, or a bucket is about to be sent: wait here if it has to be."""
        with self._moved:
            if kind == "backward":
                self._position += 1
                self._holding = self._position >= self._hold_at
            elif kind == "step":
                self._steps += 1
            if self._stop is not None and self._stop[0] == kind:
                left = self._stop[1] - 1
                self._stop = (kind, left) if left > 0 else None
                self._holding |= left <= 0
            if not self._holding:
                if self._pace and kind == "backward":
                    self._moved.wait_for(lambda: self._gone, timeout=self._pace)
                return
            while self._holding and not self._gone:
                if not self._obey():
                    self.held = True
                    self._moved.wait()
            self._holding = self.held = False

    def _obey(self) -> bool:
        """Have the promised order take effect, if this is its place and it was confirmed. True: go on."""
        order = self._order
        if order is None or not order.go or self._position != order.at:
            return False
        self._order, self._done = None, True
        self._hold_at, self._stop, self._pace = NEVER, None, max(order.pace, 0.0)
        if order.set:
            self._problem = self._change(order.set)
        if order.then in KINDS:
            self._stop = (order.then, max(order.count, 1))
        self._holding = order.then == HOLD
        return not self._holding

    def hear(self, order: Order) -> None:
        """An order, or its confirmation."""
        with self._moved:
            if order.cancelled:
                self._serial, self._order, self._promised, self._done = order.serial, None, False, True
                self._hold_at, self._stop, self._holding = NEVER, None, False
            elif order.serial != self._serial:
                self._serial, self._order, self._done, self._problem = order.serial, None, False, ""
                self._promised = self._position < order.at or (self._position == order.at and self.held)
                if self._promised:
                    self._order, self._hold_at, self._stop = order, order.at, None
                    self._holding &= self._position == order.at
            elif self._promised and not self._done and order.go:
                self._order = order
            self._moved.notify_all()

    @property
    def place(self) -> int:
        """The micro-step that comes next."""
        return self._position

    def open(self) -> None:
        """Hold nobody any more: the job ends, or something here failed."""
        with self._moved:
            self._gone = True
            self._moved.notify_all()

    def answer(self) -> Answer:
        """Where this rank is, and what it says of the last order that it heard."""
        with self._moved:
            return Answer(
                rank=self._rank,
                serial=self._serial,
                promised=self._promised,
                done=self._done,
                position=self._position,
                held=self.held,
                passive=self.passive,
                steps=self._steps,
                gone=self._gone,
                problem=self._problem,
            )
