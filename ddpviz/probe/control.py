"""Live orders in a rank: reads `control` on a thread of its own and has the gate hold, step, pace or change the script.

Installed only where the job was started to take orders (`DDPVIZ_CONTROL` names what may be changed); in any other job
nothing of this is imported, and no function of the probe is replaced. A fault here opens the gate for good.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddpviz.probe import collectives, engine, guard, steps
from ddpviz.probe.gate import Gate
from ddpviz.probe.jobs import Collective, Launch
from ddpviz.probe.session import Session
from ddpviz.trace import orders

BUSY_S, IDLE_S = 0.003, 0.03  # between two looks at the file, soon after an order and else
_SOON_S = 1.0
_NOTES = 50  # changes that the recording names
_PROGRESS_S = 0.2  # between two answers that only say how far the rank has come


class Control:
    """The orders of one rank: its gate, and the thread that reads for it."""

    def __init__(self, session: Session, run_dir: Path, rank: int, names: tuple[str, ...]) -> None:
        self._session = session
        self._names = names
        self._order_file = run_dir / orders.CONTROL
        self._answer_file = run_dir / orders.ANSWERS / f"rank-{rank}"
        self._rank = rank
        self._pid = os.getpid()
        self._changes = 0
        self._closed = threading.Event()
        self.gate = Gate(rank, self._change)
        self._thread = threading.Thread(target=self._run, name="ddpviz-control", daemon=True)

    def start(self) -> None:
        self._thread.start()
        atexit.register(self.close)

    def close(self) -> None:
        """The script is over: hold nobody, and say that no order will be taken any more."""
        if os.getpid() == self._pid and not self._closed.is_set():
            self.gate.open()
            self._closed.set()
            self._thread.join(timeout=1.0)

    @guard.guarded
    def passed(self, kind: str) -> None:
        """A place where a rank may be held. Called by the training thread, outside any collective."""
        if os.getpid() == self._pid:
            try:
                self.gate.passed(kind)
            except Exception:
                self.gate.open()
                raise

    # --- the thread

    def _run(self) -> None:
        try:
            self._read()
        except Exception as error:
            guard.fault("control.read", error)
        finally:
            self.gate.open()
            try:
                orders.write(self._answer_file, self.gate.answer())
            except OSError:
                pass

    def _read(self) -> None:
        heard: orders.Order | None = None
        told: tuple[object, ...] = ()
        shown, at = -1, 0.0
        soon = time.monotonic() + _SOON_S
        while not self._closed.is_set():
            order = orders.read(self._order_file, orders.Order)
            if order is None and not self._order_file.exists():  # the run folder is gone: nobody can give orders
                return
            if order is not None and order != heard:
                heard, soon = order, time.monotonic() + _SOON_S
                if order.serial:
                    self.gate.hear(order)
            self.gate.passive = any(watched.joined for watched in self._session.modules)
            answer = self.gate.answer()
            key = (answer.serial, answer.promised, answer.done, answer.held, answer.passive)
            moved = answer.position != shown and time.monotonic() - at > _PROGRESS_S
            if key != told or moved:
                told, shown, at = key, answer.position, time.monotonic()
                orders.write(self._answer_file, answer)
            self._closed.wait(BUSY_S if time.monotonic() < soon else IDLE_S)

    def _change(self, wanted: dict[str, str]) -> str:
        """Set options of the script: attributes of its `args`, of the type that they have. Says what could not be."""
        args = getattr(sys.modules.get("__main__"), "args", None)
        wrong: list[str] = []
        for name, text in wanted.items():
            old = getattr(args, name, None)
            if name not in self._names or old is None:
                wrong.append(f"the script has no option {name} that may be changed")
                continue
            try:
                setattr(args, name, type(old)(text))
            except (TypeError, ValueError):
                wrong.append(f"{name} cannot be {text!r}")
        self._changes += 1
        if self._rank == 0 and len(wrong) < len(wanted) and self._changes <= _NOTES:
            said = ", ".join(f"{name} {text}" for name, text in wanted.items())
            self._session.note(f"changed by live control from micro-step {self.gate.place} on: {said}")
        return "; ".join(wrong)


def install(session: Session, patch: Any, run_dir: Path, names: str) -> Control | None:
    """Have this rank take orders. `patch(owner, name, make)` replaces `owner.name` by `make(original)`."""
    rank = os.environ.get("RANK", "")
    if not rank.isdigit():
        return None
    control = Control(session, run_dir, int(rank), tuple(name for name in names.split(",") if name))

    def backward(original: Callable[..., Any]) -> Callable[..., Any]:
        def end(*args: Any, **kwargs: Any) -> None:
            before = session.passes_seen
            original(*args, **kwargs)
            if session.passes_seen != before and not session.depth:
                control.passed("backward")

        return end

    def step(original: Callable[..., Any]) -> Callable[..., Any]:
        def _step_ended(*args: Any, **kwargs: Any) -> None:
            before = session.steps
            original(*args, **kwargs)
            if session.steps != before:
                control.passed("step")

        return _step_ended

    def bucket(original: Callable[..., Any]) -> Callable[..., Any]:
        def begin(*args: Any, **kwargs: Any) -> Any:
            coll = original(*args, **kwargs)
            launch = _first_of_a_bucket(session, coll)
            if launch is not None:
                control.passed("bucket")
                coll.begin = launch.at = time.monotonic_ns()  # it was not under way while it was held
            return coll

        return begin

    patch(engine, "end", backward)
    patch(steps, "_step_ended", step)
    patch(collectives, "begin", bucket)
    session.controlled = control.gate
    control.start()
    return control


def _first_of_a_bucket(session: Session, coll: Collective) -> Launch | None:
    """The bucket that this collective begins to send, if it does."""
    if coll.bucket >= 0:
        for watched in session.modules:
            if watched.id == coll.module:
                return next((x for x in watched.launches if x.bucket == coll.bucket and x.collectives == [coll]), None)
    return None
