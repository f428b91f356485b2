"""The line at the top: which run, what is looked at, and whether that is the present or the past."""

from __future__ import annotations

from bisect import bisect_right

from rich.cells import cell_len
from rich.style import Style

from ddpviz.dashboard.draw import Piece, strip
from ddpviz.dashboard.drawn import Drawn
from ddpviz.dashboard.format import shorten
from ddpviz.dashboard.situation import Situation, State, chip, view_chip
from ddpviz.dashboard.state import Cursor, longest, module_of
from ddpviz.dashboard.themes import roles
from ddpviz.language import _
from ddpviz.timeline.model import Timeline


def facts(tl: Timeline, cursor: Cursor) -> list[str]:
    """`micro-step 43`, `step 10`, `window 11` for the pass looked at."""
    module = module_of(tl, cursor)
    lane = longest(module)
    if module is None or lane is None or cursor.index < 0 or not len(lane.passes):
        return []
    index = min(cursor.index, len(lane.passes) - 1)
    out = [_("micro-step {index}", index=cursor.index)]
    after = lane.steps["after"]
    done = bisect_right(after, cursor.index)
    if done:
        out.append(_("step {index}", index=int(lane.steps["index"][done - 1])))
    out.append(_("window {window}", window=int(lane.passes["window"][index])))
    if len(tl.modules) > 1:
        out.insert(0, f"{module.name} {cursor.module + 1}/{len(tl.modules)}")
    return out


def backend(tl: Timeline, wide: bool) -> str:
    """`gloo ×2 on CPU (no CUDA device)`."""
    states = list(tl.ranks.values())
    name = next((s.backend for s in states if s.backend), tl.run.backend)
    size = tl.run.world_size or len(states)
    if not name:
        return f"×{size}" if size else ""
    device = next((s.device for s in states if s.device), "")
    on = _(" on {value}", value="CPU" if device.startswith("cpu") else device.split(":")[0].upper()) if device else ""
    reason = f" ({tl.run.backend_reason})" if wide and tl.run.backend_reason else ""
    return f"{name} ×{size}{on}{reason}"


def layout(
    tl: Timeline, cursor: Cursor, here: Situation, now: int, speed: str, width: int, ink: dict[str, Style]
) -> list[Piece]:
    """The header's pieces: the run at the left, the state at the right; what matters less goes first."""
    module = module_of(tl, cursor)
    right, role = chip(here, tl, now)
    past, past_role = view_chip(cursor, module.passes if module else 0, here, speed)
    bold = Style(bold=True)
    tail: list[Piece] = [(f" {right} ", ink[role] + bold)]
    if past:
        if here.state is State.RUNNING:
            tail = [(f" {right.replace('● LIVE', '● running')} ", ink["dim"])]
        tail.insert(0, (f" {past} ", ink[past_role] + Style(bold=True, reverse=True)))
    used = sum(cell_len(text) for text, _rest in tail) + 1
    title = tl.run.title or tl.run.id or "ddpviz"
    counts = "  ".join(facts(tl, cursor))
    for name, reason, numbers in (
        (title, backend(tl, True), counts),
        (title, backend(tl, False), counts),
        (shorten(title, 16), backend(tl, False), counts.replace("micro-step", "micro")),
        (shorten(title, 16), "", counts.replace("micro-step", "micro")),
        (shorten(title, 12), "", ""),
    ):
        left: list[Piece] = [
            (_(" ddpviz "), ink["local"] + Style(bold=True, reverse=True)),
            (f" {name}", ink["strong"] + bold),
        ]
        if reason:
            left.append((f"   {reason}", ink["dim"]))
        if numbers:
            left.append((f"   {numbers}", ink["text"]))
        length = sum(cell_len(text) for text, _rest in left)
        if length + used <= width:
            break
    return [*left, (" " * max(width - length - used + 1, 0), ink["dim"]), *tail]


class Header(Drawn):
    DEFAULT_CSS = """
    Header { height: 1; background: $panel; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: tuple[Timeline, Cursor, Situation, int, str] | None = None

    def show(self, tl: Timeline, cursor: Cursor, here: Situation, now: int, speed: str) -> None:
        self._told = (tl, cursor, here, now, speed)
        self._rebuild()

    def _rebuild(self) -> None:
        if self._told is None or not self.size.width:
            return
        tl, cursor, here, now, speed = self._told
        pieces = layout(tl, cursor, here, now, speed, self.size.width, roles(self.app))
        line = strip(pieces, self.size.width, self.rich_style)
        if [line] != self._lines:
            self._lines = [line]
            self.refresh()

    def on_resize(self) -> None:
        self._rebuild()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        if self.is_mounted:
            self._rebuild()
