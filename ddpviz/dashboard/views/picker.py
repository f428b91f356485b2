"""The demo picker: what each demo shows, and its source beside it. Enter, or a second click, starts one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.highlight import highlight
from textual.screen import Screen
from textual.widgets import Static

from ddpviz.dashboard.keys import Key
from ddpviz.dashboard.messages import Chosen
from ddpviz.dashboard.state import Demo
from ddpviz.dashboard.views.canvas import Canvas, Drawing, wrap
from ddpviz.language import _

LONGEST = 200_000  # characters of a script that are shown


def draw(demos: Sequence[Demo], chosen: int, width: int) -> Canvas:
    """The list: a name and its summary for each demo; `canvas.hits` numbers them."""
    canvas = Canvas(width)
    if not demos:
        canvas.wrap(_("No demos came with this installation."), "wrong", indent=1)
        return canvas
    for number, demo in enumerate(demos):
        if demo.group and (not number or demos[number - 1].group != demo.group):
            canvas.line((f" {demo.group}", "dim"))
            canvas.line("")
        here = number == chosen
        ground = " chosen" if here else ""
        top = canvas.height
        canvas.line(
            ("▌ " if here else "  ", f"local{ground}"),
            (demo.name, f"{'strong' if here else 'local'} bold{ground}"),
        )
        rows = [(row, "text") for row in wrap(demo.summary, width - 4)]
        if here and demo.other is not None:
            rows += [
                (row, "dim") for row in wrap(_("v: beside it, {other_label}", other_label=demo.other_label), width - 4)
            ]
        for row, look in rows:
            canvas.line(("▌ " if here else "  ", f"local{ground}"), (row, f"{look}{ground}"))
        for y in range(top, canvas.height):
            canvas.hits[y] = number
            if here:
                canvas.looks[y] = [look if look else "chosen" for look in canvas.looks[y]]
        canvas.line("")
    return canvas


def source_of(demo: Demo) -> str:
    """The text of the demo's script, or a line that says why it cannot be shown."""
    if demo.source is None:
        return ""
    try:
        return demo.source.read_text("utf-8", errors="replace")[:LONGEST]
    except OSError as error:
        return f"# {demo.source} cannot be read: {error.strerror}"


def loop_of(source: str) -> int:
    """The row of the training loop, which is what a demo is about: its first `for` outside all functions, else 0."""
    return next((row for row, line in enumerate(source.splitlines()) if line.startswith("for ")), 0)


class Demos(Drawing):
    """The list of demos."""

    def __init__(self, demos: Sequence[Demo]) -> None:
        super().__init__(id="demos")
        self.demos = demos
        self.chosen = 0

    def options(self) -> int:
        return self.chosen

    def paint(self, width: int, height: int) -> Canvas:
        return draw(self.demos, self.chosen, width)

    def choose(self, number: int) -> None:
        """Mark a demo, and bring it into sight."""
        self.chosen = number
        self.redraw()
        rows = [y for y, hit in self.canvas.hits.items() if hit == number]
        if rows and not self.scroll_offset.y <= min(rows) <= max(rows) < self.scroll_offset.y + self.size.height:
            self.scroll_to(y=min(rows) - 1, animate=False)

    def on_click(self, event: events.Click) -> None:
        number = self.canvas.hits.get(event.y + self.scroll_offset.y)
        if isinstance(number, int) and isinstance(self.screen, DemoPicker):
            self.screen.pick(number)


class DemoPicker(Screen[None]):
    """Posts `Chosen` with the name of the demo to start."""

    KEYS = (
        Key("up,k", "move(-1)", "↑", "", "The demo above.", "Demos"),
        Key("down,j", "move(1)", "↓", "choose", "The demo below.", "Demos"),
        Key("enter", "start", "Enter", "start", "Start it, live.", "Demos"),
        Key("v", "start_both", "v", "variants", "Start it and its variant, one above the other.", "Demos"),
        Key("pageup", "page(-1)", "PgUp", "", "The source, up.", "Demos"),
        Key("pagedown,space", "page(1)", "PgDn", "source", "The source, down.", "Demos"),
        Key("t", "theme", "t", "", "The next theme.", "Demos"),
        Key("q,escape,ctrl+c", "quit_app", "q", "quit", "Quit.", "Demos"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(k.keys, k.action, k.label, show=False, priority=True) for k in KEYS
    ]
    DEFAULT_CSS = """
    DemoPicker { background: $background; color: $foreground; }
    DemoPicker #title { height: 3; padding: 1 2 0 2; }
    DemoPicker #panes { height: 1fr; padding: 0 1; }
    DemoPicker #demos { width: 34; border: round $border; border-title-color: $foreground; }
    DemoPicker #source { width: 1fr; border: round $border; background: $surface; border-title-color: $foreground;
        scrollbar-size: 1 1; scrollbar-background: $surface; }
    DemoPicker #text { width: auto; padding: 0 1; }
    DemoPicker #hints { height: 1; padding: 0 2; color: $foreground; }
    DemoPicker.-narrow #source { display: none; }
    DemoPicker.-narrow #demos { width: 1fr; }
    DemoPicker.-wide #demos { width: 46; }
    """
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-normal"), (110, "-wide")]  # noqa: RUF012 (as Screen declares it)

    def __init__(self, demos: Sequence[Demo]) -> None:
        super().__init__()
        self.demos = tuple(demos)

    def compose(self) -> ComposeResult:
        title = _("[b]ddpviz[/b]  watch DistributedDataParallel at work, in a real job")
        yield Static(title, id="title")
        with Horizontal(id="panes"):
            yield Demos(self.demos)
            with VerticalScroll(id="source", can_focus=False):
                yield Static(id="text")
        yield Static(id="hints")

    def on_mount(self) -> None:
        hints = [f"[b $primary]{key.shown}[/] {_(key.label)}" for key in self.KEYS if key.label]
        self.query_one("#hints", Static).update("   ".join(hints))
        self.query_one(Demos).border_title = _("demos")
        self.query_one(Demos).focus()
        self._show_source()

    def _show_source(self) -> None:
        pane, text = self.query_one("#source", VerticalScroll), self.query_one("#text", Static)
        if not self.demos:
            return
        demo = self.demos[self.query_one(Demos).chosen]
        pane.border_title = demo.source.name if demo.source is not None else demo.name
        source = source_of(demo)
        text.update(highlight(source, language="python"))
        self.call_after_refresh(pane.scroll_to, y=loop_of(source), animate=False)

    def action_move(self, by: int) -> None:
        demos = self.query_one(Demos)
        number = min(max(demos.chosen + by, 0), len(self.demos) - 1)
        if number != demos.chosen and number >= 0:
            demos.choose(number)
            self._show_source()

    def pick(self, number: int) -> None:
        """A click: the first one chooses, a second one starts."""
        if number == self.query_one(Demos).chosen:
            self.action_start()
        else:
            self.query_one(Demos).choose(number)
            self._show_source()

    def action_start(self) -> None:
        if self.demos:
            self.post_message(Chosen(self.demos[self.query_one(Demos).chosen].name))

    def action_start_both(self) -> None:
        demo = self.demos[self.query_one(Demos).chosen] if self.demos else None
        if demo is not None and demo.other is not None:
            self.post_message(Chosen(demo.name, beside=True))
        elif demo is not None:
            self.notify(_("{name} has no variant to stand beside it", name=demo.name), timeout=3)

    def action_page(self, by: int) -> None:
        pane = self.query_one("#source", VerticalScroll)
        pane.scroll_relative(y=by * max(pane.size.height - 2, 1), animate=False)

    def action_theme(self) -> None:
        if hasattr(self.app, "next_theme"):
            self.app.next_theme()

    def action_quit_app(self) -> None:
        self.app.exit(0)
