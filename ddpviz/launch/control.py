"""Gives live orders to a job that takes them: pause, go on, step, pace, and change what its script exposes.

The controller is the one writer of `control`. It names a micro-step that no rank has reached yet, waits until every
rank has promised to hold there, and only then has the order take effect; a rank that is past it already makes it name
a later one. So all ranks switch at the same place, and none waits in a collective for one that holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ddpviz.trace import orders
from ddpviz.trace.orders import FREE, HOLD, Answer, Order

MARGIN, MOST = 2, 1 << 12  # micro-steps ahead of the fastest rank that an order is for, at first and at last


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the job stands as far as orders are concerned."""

    held: bool = False  # every rank
    at: int = 0  # micro-steps behind the fastest rank
    pending: str = ""  # what was ordered and is not in effect yet
    since: int | None = None  # micro-step from which the newest change of the script's options is in effect
    last: str = ""  # what was changed
    problem: str = ""
    over: bool = False  # takes no more orders


@dataclass(slots=True)
class _Wanted:
    order: Order
    label: str
    settles: bool  # ends with every rank held


@dataclass(slots=True)
class Controller:
    """Orders for one job. Nothing here waits: `tick` reads the answers and goes on; call it often."""

    run_dir: Path
    ranks: int
    pace: float = 0.0
    values: dict[str, str] = field(default_factory=dict)  # what was changed, as it stands now
    _queue: deque[_Wanted] = field(default_factory=deque)
    _now: _Wanted | None = None
    _order: Order | None = None
    _answers: dict[int, Answer] = field(default_factory=dict)
    _serial: int = 0
    _margin: int = MARGIN
    _paused: bool = False  # the newest order leaves the job held
    _since: int | None = None
    _last: str = ""
    _problem: str = ""
    _over: bool = False

    # --- orders

    def pause(self) -> None:
        """Every rank holds after the same micro-step, outside its collectives."""
        self._ask(Order(0, then=HOLD), "pause")

    def go_on(self) -> None:
        self._ask(Order(0, then=FREE), "go on")

    def step(self, kind: str, count: int = 1) -> None:
        """Hold `count` backwards, optimizer steps or buckets later."""
        self._ask(Order(0, then=kind, count=count), f"one {kind}" if count == 1 else f"{count} of {kind}")

    def rest(self, seconds: float) -> None:
        """Seconds that every rank rests after each micro-step."""
        self.pace = max(seconds, 0.0)
        self._ask(Order(0, then=HOLD if self.paused else FREE), f"pace {seconds:g} s")

    def change(self, values: Mapping[str, str]) -> None:
        """Options of the script, from the same micro-step on every rank."""
        self.values.update(values)
        told = ", ".join(f"{name} {text}" for name, text in values.items())
        self._ask(Order(0, then=HOLD if self.paused else FREE, set=dict(values)), told)

    @property
    def paused(self) -> bool:
        """Whether the job holds once all that was ordered is in effect."""
        return self._queue[-1].settles if self._queue else self._now.settles if self._now else self._paused

    @property
    def idle(self) -> bool:
        """Nothing is on its way."""
        return self._now is None and not self._queue

    def _ask(self, order: Order, label: str) -> None:
        if not self._over:
            self._queue.append(_Wanted(_again(order, pace=self.pace), label, order.then != FREE))

    def close(self) -> None:
        """The job has ended, however it did: no more orders."""
        self._over = True

    # --- answers

    def tick(self) -> bool:
        """Look for answers, and take the next turn of the order under way. True if anything has changed."""
        changed = self._read()
        if self._over:
            return changed
        if any(answer.gone for answer in self._answers.values()):
            self._end()
            return True
        if self._now is None:
            if not self._queue or len(self._answers) < self.ranks:
                return changed
            self._now, self._margin = self._queue.popleft(), MARGIN
            self._propose()
            return True
        assert self._order is not None
        active = self._active()
        heard = [a for a in active if a.serial == self._order.serial]
        if len(heard) < len(active):
            return changed
        if not self._order.go:
            if all(a.promised for a in heard):
                self._write(_again(self._order, go=True))
            else:  # some rank is past it; those that are not hold there meanwhile
                self._margin = min(self._margin * 2, MOST)
                self._propose()
            return True
        if not all(a.done for a in heard) or (self._now.settles and not all(a.held for a in heard)):
            return changed
        self._paused = self._now.settles
        if self._order.set:
            self._since, self._last = self._order.at, self._now.label
        self._problem = next((a.problem for a in heard if a.problem), "")
        self._now = self._order = None
        return True

    def standing(self) -> Standing:
        at = max((a.position for a in self._answers.values()), default=0)
        held = len(self._answers) >= self.ranks and all(a.held for a in self._active())
        labels = [wanted.label for wanted in ([self._now] if self._now else []) + list(self._queue)]
        return Standing(
            held=held and self._paused and self._now is None,
            at=at,
            pending=", then ".join(labels),
            since=self._since,
            last=self._last,
            problem=self._problem,
            over=self._over,
        )

    def _active(self) -> list[Answer]:
        """Of the ranks that still run backwards. One that has run out of inputs inside `join` follows them, in their
        all-reduces: while they hold it waits there, and its time-out runs."""
        return [answer for answer in self._answers.values() if not answer.passive]

    def _propose(self) -> None:
        assert self._now is not None
        self._serial += 1
        furthest = max(a.position for a in self._answers.values())
        held = self._paused and all(a.held and a.position == furthest for a in self._active())
        at = furthest if held else furthest + self._margin
        self._write(_again(self._now.order, serial=self._serial, at=at))

    def _write(self, order: Order) -> None:
        self._order = order
        try:
            orders.write(self.run_dir / orders.CONTROL, order)
        except OSError as error:
            self._problem = f"the order cannot be written: {error.strerror or error}"
            self._over = True

    def _read(self) -> bool:
        changed = False
        for rank in range(self.ranks):
            answer = orders.read(self.run_dir / orders.ANSWERS / f"rank-{rank}", Answer)
            if answer is not None and answer != self._answers.get(rank):
                self._answers[rank] = answer
                changed = True
        return changed

    def _end(self) -> None:
        """A rank has ended: what is under way can no longer be obeyed by all, so nobody is to wait for it."""
        self._over = True
        if self._now is not None:
            self._problem = f"not done any more: {self._now.label}"
        self._serial += 1
        self._write(Order(self._serial, go=True, cancelled=True))
        self._now = self._order = None
        self._queue.clear()


def _again(order: Order, **changes: object) -> Order:
    known = {name: getattr(order, name) for name in order.__struct_fields__}
    return Order(**{**known, **changes})


def prepare(run_dir: Path) -> None:
    """Make the files of a job that takes orders. Raises OSError."""
    (run_dir / orders.ANSWERS).mkdir(mode=0o700, exist_ok=True)
    orders.write(run_dir / orders.CONTROL, Order(0, go=True))
