"""No fault of ours reaches the job: every callable that torch or Python calls back goes through `guarded`.

Imports nothing of torch. A fault is counted and noted once per place; the job goes on as if the hook were not there.
`BODIES` lists every guarded callable by name, so that tests can make each of them fail.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

BODIES: dict[str, list[Callable[..., Any]]] = {}
FAULTS: dict[str, int] = {}
_listeners: list[Callable[[str], None]] = []
_around: list[Callable[[Callable[..., Any]], Callable[..., Any]]] = []


def on_fault(listener: Callable[[str], None]) -> None:
    """Call `listener` with one line for the first fault of each place."""
    _listeners[:] = [listener]


def fault(place: str, error: BaseException) -> None:
    """Count a fault of ours; tell the listener the first time it happens in this place."""
    try:
        FAULTS[place] = FAULTS.get(place, 0) + 1
        if FAULTS[place] == 1:
            last = traceback.extract_tb(error.__traceback__)[-1:]
            where = f" ({last[0].filename.rsplit('/', 1)[-1]}:{last[0].lineno})" if last else ""
            for listener in _listeners:
                listener(f"ddpviz could not record something in {place}: {type(error).__name__}: {error}{where}")
    except Exception:
        pass


def guarded(body: F) -> F:
    """The same callable, except that an exception in it becomes a counted fault and the result None."""
    place = f"{body.__module__.rsplit('.', 1)[-1]}.{body.__qualname__}"
    cell: list[Callable[..., Any]] = [body]
    for wrap in _around:
        cell[0] = wrap(cell[0])
    BODIES[place] = cell

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return cell[0](*args, **kwargs)
        except Exception as error:
            fault(place, error)
            return None

    return run  # type: ignore[return-value]


def codes() -> list[CodeType]:
    """The code through which every guarded callable is entered."""
    return [c for c in guarded.__code__.co_consts if isinstance(c, CodeType)]


def around(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Run `wrap(body)` in place of the body of every guarded callable, those to come included."""
    _around.append(wrap)
    for cell in BODIES.values():
        cell[0] = wrap(cell[0])
