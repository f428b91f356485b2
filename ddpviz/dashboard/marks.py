"""The marks of every screen: what each state is drawn as, its colour role, and what it means in words.

Shape tells first: without colour every two marks differ in their character. Colours are Okabe-Ito roles, resolved by
the theme (`themes.py`) to `$local`, `$synced`, ... in CSS and to `role_styles` for Line API widgets.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ddpviz.findings.model import Severity
from ddpviz.timeline.model import Gradients, Sync


class Mark(NamedTuple):
    glyph: str
    role: str  # a colour role of themes.py
    meaning: str


class M(Mark, Enum):
    LOCAL = Mark("░", "local", "local (no_sync)")
    SYNCED = Mark("█", "synced", "all-reduced")
    PARTIAL = Mark("▚", "wrong", "partly all-reduced")
    MIXED = Mark("≠", "wrong", "ranks disagree")
    RUNNING = Mark("▓", "running", "running")
    WAITING = Mark("◌", "waiting", "waiting")
    UNFINISHED = Mark("╳", "wrong", "never finished")
    ABSENT = Mark("-", "dim", "this rank never ran it")
    STEP = Mark("▲", "step", "step")
    WRONG_STEP = Mark("✗", "wrong", "step on gradients never averaged")
    LOCAL_STEP = Mark("↑", "local", "step on this rank's own gradients, meant so")
    SKIPPED = Mark("△", "step", "step skipped")
    UNSAMPLED = Mark("·", "dim", "not sampled")
    STALE_STEP = Mark("▼", "wrong", "step on gradients added to after their all-reduce")
    DEAD = Mark("†", "wrong", "rank died")
    NONFINITE = Mark("∞", "wrong", "NaN or Inf")
    READY = Mark("◆", "local", "bucket ready")
    CURSOR = Mark("┊", "dim", "cursor")
    GOOD = Mark("✓", "synced", "right")
    WARNING = Mark("▴", "running", "warning")
    INFO = Mark("i", "local", "info")


OF_SYNC: dict[Sync, M] = {
    Sync.LOCAL: M.LOCAL,
    Sync.SYNCED: M.SYNCED,
    Sync.PARTIAL: M.PARTIAL,
    Sync.MIXED: M.MIXED,
    Sync.UNFINISHED: M.UNFINISHED,
    Sync.RUNNING: M.RUNNING,
    Sync.ABSENT: M.ABSENT,
}
OF_GRADIENTS: dict[Gradients, M] = {
    Gradients.SYNCED: M.STEP,
    Gradients.LOCAL: M.WRONG_STEP,
    Gradients.STALE: M.STALE_STEP,
    Gradients.MIXED: M.WRONG_STEP,
    Gradients.NONE: M.SKIPPED,
}
OF_SEVERITY: dict[Severity, M] = {Severity.ERROR: M.WRONG_STEP, Severity.WARNING: M.WARNING, Severity.INFO: M.INFO}
