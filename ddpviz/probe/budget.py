"""Which windows are measured in full, so that norms and checksums stay within a share of the step time.

Pure Python. What happened (sync or local, buckets, steps, times) is recorded always; only numbers are sampled. The rule
needs no communication: a window is taken if `hash(c) % 2**k == 0`, where c is the group's own collective count at its
start, which equal ranks share, and a larger k takes a subset of what a smaller one takes.
"""

from __future__ import annotations

import math

_MAX_K = 14
_SMOOTH = 0.3


class Budget:
    """`percent` of the training time for numbers; None measures everything, 0 nothing."""

    def __init__(self, percent: float | None) -> None:
        self.percent = percent
        self.k = 0
        self._spent = 0
        self._wrote = 0
        self._cost = 0.0  # ns a sampled window
        self._window = 0.0  # ns a window
        self._windows = 0
        self.taken = 0

    def takes(self, count: int) -> bool:
        """Whether the window that starts at this collective count (or window index) is measured."""
        if self.percent is None:
            return True
        if self.percent <= 0:
            return False
        return self.k == 0 or ((count * 0x9E3779B1) & 0xFFFFFFFF) >> (32 - self.k) == 0

    def spend(self, ns: int) -> None:
        """Count time that the probe took on the training thread for numbers."""
        self._spent += ns

    def wrote(self, ns: int) -> None:
        """Count time that the writer thread took for numbers: it shares the interpreter, and often the core."""
        self._wrote += ns

    def window_ended(self, sampled: bool, ns: int) -> None:
        """A window ended after `ns`: adapt k so that sampled cost over all time stays within the budget."""
        spent, self._spent = self._spent, 0
        self._windows += 1
        self.taken += sampled
        if not self.percent:
            return
        plain = max(ns - spent, 1)
        self._window = plain if self._windows <= 2 else self._window + _SMOOTH * (plain - self._window)
        if sampled:
            # the first window also pays for warming up: judge from the second on
            self._cost = spent if self._windows <= 2 else self._cost + _SMOOTH * (spent - self._cost)
        written = self._wrote / self.taken if self.taken else 0.0
        ratio = (self._cost + written) / (self._window * self.percent / 100.0)
        self.k = 0 if ratio <= 1 else min(_MAX_K, math.ceil(math.log2(ratio)))
