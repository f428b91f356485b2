"""Where a viewer looks: pure view state, and how keys and the passing of time change it.

A `Cursor` is immutable; every move is a function from a cursor and a timeline to a new cursor. Nothing here draws,
reads a file or a clock. Widgets are told the cursor and own no truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddpviz.timeline.model import Lane, Module, Timeline

if TYPE_CHECKING:
    from ddpviz.launch import Job

ONE_PASS_A_SECOND = 0.0  # the speed at which every pass gets the same second of the viewer's time
SPEEDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # the others are factors of real time


@dataclass(frozen=True, slots=True)
class Cursor:
    """What is looked at. `index` is the selected pass of `module` (-1: there is none yet)."""

    module: int = 0  # position in Timeline.modules
    index: int = -1
    time: int = 0  # ns on the run's clock: the moment that Levels draw
    live: bool = True  # follows the newest pass
    playing: bool = False  # in the past, and moving
    until: int = 0  # where playing stops by itself; 0: nowhere
    speed: float = ONE_PASS_A_SECOND
    rank: int | None = None  # the rank last clicked or named by a finding; None: all
    filter: str = ""  # typed after `/`; what it filters is the view's business


@dataclass(frozen=True, slots=True)
class Demo:
    """A line of the demo picker."""

    name: str
    summary: str  # what it shows, one line
    job: Callable[[], Job]  # makes the job, not yet started
    source: Path | None = None  # its script, shown beside the list
    group: str = ""  # the heading that it stands under
    other: Callable[[], Job] | None = None  # makes the job of the variant to compare it with
    other_label: str = ""  # what is different in that


def module_of(tl: Timeline, cursor: Cursor) -> Module | None:
    """The module looked at, or None while there is none."""
    return tl.modules[cursor.module] if 0 <= cursor.module < len(tl.modules) else None


def longest(module: Module | None) -> Lane | None:
    """The lane with the most passes: the one to read windows and steps from."""
    return max(module.lanes.values(), key=lambda lane: len(lane.passes), default=None) if module else None
