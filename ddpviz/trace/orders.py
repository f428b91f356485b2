"""Live orders to a job: what stands in the run folder's `control`, and what each rank answers. FORMAT.md has the words.

Ranks count backward passes; behind the last of them they are outside any collective. An order takes effect after `at`
of them. It is given in two steps, so that all ranks obey it at the same place or none does: first every rank has to
promise to hold there (it can only if it is not past it), and only when all have promised does the order say `go`.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TypeVar

import msgspec

from ddpviz.trace import private

CONTROL = "control"  # in the run folder; only of jobs that take orders
ANSWERS = "answers"  # folder beside it: one file a rank
KINDS = ("backward", "step", "bucket")
FREE, HOLD = "free", "hold"


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """What all ranks are to do after `at` backwards. `then`: run freely, hold there, or hold `count` of a kind on."""

    serial: int
    at: int = 0
    go: bool = False
    then: str = FREE  # "free" | "hold" | one of KINDS
    count: int = 1
    pace: float = 0.0  # seconds of rest after each backward
    set: dict[str, str] = {}  # options of the script, as they stand on a command line
    cancelled: bool = False  # not all ranks could promise: go on as if nothing had been asked


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rank says of the order with this serial, and where it is."""

    rank: int
    serial: int
    promised: bool = False  # it will hold at the order's place until it hears more
    done: bool = False  # it has come to that place and does as the order says
    position: int = 0  # backwards behind it
    held: bool = False
    steps: int = 0
    passive: bool = False  # ran out of inputs inside `join`: it only answers the others, and follows them
    gone: bool = False  # takes no more orders
    problem: str = ""


T = TypeVar("T", Order, Answer)


def write(path: Path, what: Order | Answer) -> None:
    """Whoever reads sees the old text or the new one, never half of one. Raises OSError."""
    private.replace(path, msgspec.json.encode(what) + b"\n")


def read(path: Path, kind: type[T]) -> T | None:
    """What stands there; None if nothing does, or nothing that makes sense."""
    with contextlib.suppress(OSError, msgspec.MsgspecError), open(path, "rb") as stream:
        return msgspec.json.decode(stream.read(1 << 16), type=kind)
    return None
