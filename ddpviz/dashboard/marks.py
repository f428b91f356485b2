"""The marks of every screen: what each state is drawn as, its colour role, and what it means in words.

Shape tells first: without colour every two marks differ in their character. Colours are Okabe-Ito roles, resolved by
the theme (`themes.py`) to `$local`, `$synced`, ... in CSS and to `role_styles` for Line API widgets.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ddpviz.findings.model import Severity
from ddpviz.language import N_, _
from ddpviz.timeline.model import Gradients, Sync


class Mark(NamedTuple):
    glyph: str
    role: str  # a colour role of themes.py
    text: str

    @property
    def meaning(self) -> str:
        """What it means, in words."""
        return _(self.text)


class M(Mark, Enum):
    LOCAL = Mark("░", "local", N_("local (no_sync)"))
    SYNCED = Mark("█", "synced", N_("all-reduced"))
    PARTIAL = Mark("▚", "wrong", N_("partly all-reduced"))
    MIXED = Mark("≠", "wrong", N_("ranks disagree"))
    RUNNING = Mark("▓", "running", N_("running"))
    WAITING = Mark("◌", "waiting", N_("waiting"))
    UNFINISHED = Mark("╳", "wrong", N_("never finished"))
    ABSENT = Mark("-", "dim", N_("this rank never ran it"))
    STEP = Mark("▲", "step", N_("step"))
    WRONG_STEP = Mark("✗", "wrong", N_("step on gradients never averaged"))
    LOCAL_STEP = Mark("↑", "local", N_("step on this rank's own gradients, meant so"))
    SKIPPED = Mark("△", "step", N_("step skipped"))
    UNSAMPLED = Mark("·", "dim", N_("not sampled"))
    STALE_STEP = Mark("▼", "wrong", N_("step on gradients added to after their all-reduce"))
    DEAD = Mark("†", "wrong", N_("rank died"))
    NONFINITE = Mark("∞", "wrong", N_("NaN or Inf"))
    READY = Mark("◆", "local", N_("bucket ready"))
    CURSOR = Mark("┊", "dim", N_("cursor"))
    GOOD = Mark("✓", "synced", N_("right"))
    WARNING = Mark("▴", "running", N_("warning"))
    INFO = Mark("i", "local", N_("info"))


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
