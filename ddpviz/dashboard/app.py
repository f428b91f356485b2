"""The app: one screen with a header, the views and a footer. It moves the cursor and hands snapshots out.

It owns the cursor and nothing else; what is true comes from the feed's snapshot. Never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from textual.widget import Widget

from ddpviz.dashboard.state import Cursor
from ddpviz.findings.model import Finding
from ddpviz.timeline.model import Timeline


class View(Protocol):
    """What every view is, besides a widget. It draws from what it is told and keeps nothing of it."""

    def show(self, tl: Timeline, cursor: Cursor, findings: list[Finding]) -> None: ...


# Imported when first opened: plotext and its like cost nothing until they are looked at.
VIEWS = {
    "norms": ("ddpviz.dashboard.views.norms", "NormsView"),
    "backward": ("ddpviz.dashboard.views.backward", "BackwardView"),
    "layers": ("ddpviz.dashboard.views.layers", "LayersView"),
    "findings": ("ddpviz.dashboard.views.findings", "FindingsView"),
    "output": ("ddpviz.dashboard.views.output", "OutputView"),
    "job": ("ddpviz.dashboard.views.job", "JobView"),
}


def load_view(name: str) -> Widget:
    module, cls = VIEWS[name]
    widget: Widget = getattr(import_module(module), cls)(id=name)
    return widget
