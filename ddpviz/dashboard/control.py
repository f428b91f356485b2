"""The control panel: pauses, steps and paces the job itself, and turns what its lesson exposes. Not the playback.

The orders are `launch.control`'s; here they get keys. What the job cannot change while it runs (buckets, ranks) starts
it again, after Enter, and says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, cast

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from ddpviz.dashboard.keys import Key
from ddpviz.dashboard.themes import roles
from ddpviz.language import _
from ddpviz.launch.control import Controller, Standing
from ddpviz.launch.spec import JobSpec
from ddpviz.lessons import Knob, lesson

if TYPE_CHECKING:
    from ddpviz.dashboard.app import Dashboard

PACES = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0)  # seconds of rest after each micro-step
RANKS = "ranks"
KEYS = (
    Key("p", "hold", "p", "pause / go on", "Hold the job, or let it go on.", "Control"),
    Key("n", "one('backward')", "n", "micro-step", "Let it go on for one micro-step.", "Control"),
    Key("s", "one('step')", "s", "step", "Let it go on to the end of the next optimizer step.", "Control"),
    Key("b", "one('bucket')", "b", "bucket", "Let it go on until the next bucket is about to be sent.", "Control"),
    Key("left_square_bracket", "pace(1)", "[", "slower", "A longer rest after each micro-step.", "Control"),
    Key("right_square_bracket", "pace(-1)", "]", "faster", "A shorter one.", "Control"),
    Key("up,k", "choose(-1)", "↑", "", "What to change: the one above.", "Control"),
    Key("down", "choose(1)", "↓", "", "The one below.", "Control"),
    Key("left,minus", "turn(-1)", "←", "", "A smaller value.", "Control"),
    Key("right,plus", "turn(1)", "→", "", "A larger one.", "Control"),
    Key("enter", "again", "Enter", "", "Start the job again with what cannot be changed while it runs.", "Control"),
)


def state_line(standing: Standing) -> tuple[str, str]:
    """Where the job stands, and the colour role of that."""
    if standing.over:
        return _("the job is over"), "dim"
    if standing.pending:
        return _("{pending} … on its way to every rank", pending=standing.pending), "running"
    if standing.held:
        return _("‖ every rank holds before micro-step {at}, in no collective", at=standing.at), "waiting"
    return _("the job runs"), "synced"


def note(controller: Controller | None) -> str:
    """What the footer says of it: only that the job is held."""
    if controller is None:
        return ""
    standing = controller.standing()
    return _("‖ job held before micro-step {at}", at=standing.at) if standing.held and not standing.over else ""


def begun_with(knob: Knob, args: tuple[str, ...]) -> str:
    """The value that the job was started with."""
    for here, following in itertools.pairwise(args):
        if here == knob.option:
            return following
    return next((a.partition("=")[2] for a in args if a.startswith(knob.option + "=")), knob.default)


def with_values(args: tuple[str, ...], values: Mapping[str, str]) -> tuple[str, ...]:
    """A command line with these options set to these values."""
    kept: list[str] = []
    skip = False
    for word in args:
        if skip:
            skip = False
            continue
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if word.startswith("--") and name in values:
            skip = "=" not in word
            continue
        kept.append(word)
    return (*kept, *(f"--{name.replace('_', '-')}={value}" for name, value in values.items()))


def next_value(knob: Knob, now: str, by: int) -> str:
    """The value beside this one; from one that is not in the list, its nearest end."""
    if now not in knob.values:
        return knob.values[0 if by < 0 else -1]
    return knob.values[min(max(knob.values.index(now) + by, 0), len(knob.values) - 1)]


class ControlPanel(ModalScreen[None]):
    """Over a corner of the dashboard, which goes on being drawn."""

    DEFAULT_CSS = """
    ControlPanel { align: right bottom; background: transparent; }
    ControlPanel > Vertical {
        width: 62; max-width: 100%; height: auto; border: round $local; background: $panel; padding: 0 1;
        border-title-color: $strong; border-title-style: bold;
    }
    ControlPanel Static { height: auto; width: 1fr; background: $panel; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key.keys, key.action, key.label, show=False) for key in KEYS),
        Binding("escape,j,q", "dismiss(None)", show=False),
    ]

    def __init__(self, controller: Controller, spec: JobSpec, ranks: int) -> None:
        super().__init__()
        self._control, self._spec = controller, spec
        one = lesson(spec.lesson)
        many = Knob(RANKS, "ranks", ("1", "2", "3", "4", "6", "8"), str(ranks), live=False)
        self._knobs = (*(one.knobs if one is not None else ()), many)
        self._values = {k.name: begun_with(k, spec.args) for k in self._knobs} | controller.values
        self._first = dict(self._values)
        self._chosen = 0
        self._text = Static()

    def compose(self) -> ComposeResult:
        box = Vertical(self._text)
        box.border_title = _("Control of the job")
        box.border_subtitle = _("↑↓ choose  ←→ change  Esc closes")
        yield box

    def on_mount(self) -> None:
        self._show()
        self.set_interval(0.1, self._show)

    def _show(self) -> None:
        ink, bold = roles(self.app), Style(bold=True)
        standing = self._control.standing()
        text = Text()
        line, role = state_line(standing)
        text.append(line + "\n", ink[role] + bold)
        for key in KEYS:
            if key.label:
                text.append("\n" if key.action == "pace(1)" else "", ink["text"])
                text.append(key.shown, ink["local"] + bold)
                text.append(f" {_(key.label)}  ", ink["text"])
        text.append(_("  {pace:g} s of rest after each micro-step\n\n", pace=self._control.pace), ink["dim"])
        for number, knob in enumerate(self._knobs):
            here = number == self._chosen
            value = self._values[knob.name]
            if value == "-1":  # scripts say so where they mean that there is none
                value = _("none")
            text.append("▌ " if here else "  ", ink["local"])
            text.append(f"{knob.label:<30}", ink["strong"] + bold if here else ink["text"])
            text.append(f"‹ {value} ›" if here else f"  {value}", ink["local"] + bold if here else ink["text"])
            if not knob.live:
                waits = self._values[knob.name] != self._first[knob.name]
                text.append(
                    _("  Enter: start again") if waits else _("  (starts again)"), ink["running" if waits else "dim"]
                )
            text.append("\n")
        if standing.problem:
            text.append(standing.problem, ink["wrong"])
        elif standing.since is not None:
            text.append(
                _("from micro-step {since} on, on every rank: {last}", since=standing.since, last=standing.last),
                ink["dim"],
            )
        self._text.update(text)

    # -- keys -----------------------------------------------------------------------------------------------------

    def action_hold(self) -> None:
        (self._control.go_on if self._control.paused else self._control.pause)()
        self._show()

    def action_one(self, kind: str) -> None:
        self._control.step(kind)
        self._show()

    def action_pace(self, by: int) -> None:
        nearest = min(range(len(PACES)), key=lambda i: abs(PACES[i] - self._control.pace))
        self._control.rest(PACES[min(max(nearest + by, 0), len(PACES) - 1)])
        self._show()

    def action_choose(self, by: int) -> None:
        self._chosen = (self._chosen + by) % len(self._knobs)
        self._show()

    def action_turn(self, by: int) -> None:
        knob = self._knobs[self._chosen]
        value = next_value(knob, self._values[knob.name], by)
        if value == self._values[knob.name]:
            return
        self._values[knob.name] = value
        if knob.live:
            self._control.change({knob.name: value})
        self._show()

    def action_again(self) -> None:
        """Start the job again, if something was turned that it cannot change while it runs."""
        changed = {k.name for k in self._knobs if not k.live and self._values[k.name] != self._first[k.name]}
        if not changed:
            return
        values = {name: value for name, value in self._values.items() if name != RANKS and value != self._default(name)}
        args = with_values(self._spec.args, values)
        ranks = int(self._values[RANKS])
        self.dismiss(None)
        cast("Dashboard", self.app).start_again(replace(self._spec, args=args, nproc=ranks, run_dir=None))

    def _default(self, name: str) -> str:
        return next(knob.default for knob in self._knobs if knob.name == name)
