"""What every view is, besides a widget."""

from __future__ import annotations

from typing import Protocol

from ddpviz.dashboard.state import Cursor
from ddpviz.findings.model import Finding
from ddpviz.timeline.model import Timeline


class View(Protocol):
    """Draws from what it is told, and keeps no truth."""

    def show(self, tl: Timeline, cursor: Cursor, findings: list[Finding]) -> None: ...
