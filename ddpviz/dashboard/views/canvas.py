"""A sheet of character cells that the views draw on, and the scrolling widget that shows one. Knows nothing of DDP.

A view's drawing is a pure function of a timeline and a size that returns a `Canvas`, so that tests read it as text.
Looks are words, such as "wrong bold" or "rank:2", and turn into colours only when the theme is known.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ddpviz.dashboard.drawn import highlighted
from ddpviz.dashboard.themes import roles
from ddpviz.timeline.model import Timeline

if TYPE_CHECKING:
    from textual.selection import Selection
    from textual.timer import Timer

    from ddpviz.dashboard.state import Cursor
    from ddpviz.findings.model import Finding


class Canvas:
    """`width` x `height` cells. Drawing outside is cut off; rows are added with `grow`."""

    def __init__(self, width: int, height: int = 0) -> None:
        self.width = max(width, 0)
        self.chars: list[list[str]] = []
        self.looks: list[list[str]] = []
        self.hits: dict[int, object] = {}  # row -> what a click on it means to the view that drew it
        self.grow(height)

    @property
    def height(self) -> int:
        return len(self.chars)

    def grow(self, height: int) -> None:
        """At least `height` rows."""
        while len(self.chars) < height:
            self.chars.append([" "] * self.width)
            self.looks.append([""] * self.width)

    def put(self, x: int, y: int, text: str, look: str = "") -> int:
        """Write `text` from cell (x, y) rightwards; returns the x behind it. Rows grow as needed, columns do not."""
        if y < 0:
            return x + cell_len(text)
        self.grow(y + 1)
        chars, looks = self.chars[y], self.looks[y]
        for char in text:
            wide = 1 if " " <= char < "\x7f" or "\xa0" <= char < "\u0300" else 0 if char < "\xa0" else cell_len(char)
            if wide == 0:
                continue
            if x >= 0 and x + wide <= self.width:
                chars[x], looks[x] = char, look
                if wide == 2:
                    chars[x + 1], looks[x + 1] = "", look
            x += wide
        return x

    def line(self, *parts: tuple[str, str] | str, indent: int = 0) -> int:
        """Add a row made of (text, look) parts; returns its y."""
        y, x = self.height, indent
        self.grow(y + 1)
        for part in parts:
            text, look = (part, "") if isinstance(part, str) else part
            x = self.put(x, y, text, look)
        return y

    def paste(self, other: Canvas, x: int, y: int) -> None:
        """Copy another canvas with its upper left corner at (x, y)."""
        self.grow(y + other.height)
        wide = max(min(other.width, self.width - x), 0)
        for row in range(other.height):
            self.chars[y + row][x : x + wide] = other.chars[row][:wide]
            self.looks[y + row][x : x + wide] = other.looks[row][:wide]

    def wrap(self, text: str, look: str = "", *, indent: int = 0, hang: int = 0, first: str = "") -> None:
        """Add `text` wrapped at words to the canvas's width; `first` stands before the first line."""
        for number, row in enumerate(wrap(text, self.width - indent - hang)):
            lead = first.ljust(hang) if number == 0 else " " * hang
            self.line((lead, look), (row, look), indent=indent)

    def text(self) -> str:
        """The characters alone, without trailing blanks: what a screen without colour shows."""
        return "\n".join(self.row(y) for y in range(self.height))

    def row(self, y: int) -> str:
        return "".join(self.chars[y]).rstrip()

    def strip(self, y: int, styles: Looks) -> Strip:
        """One row as a Strip, runs of one look together."""
        chars, looks = self.chars[y], self.looks[y]
        segments: list[Segment] = []
        start = 0
        for x in range(1, self.width + 1):
            if x == self.width or looks[x] != looks[start]:
                segments.append(Segment("".join(chars[start:x]), styles.of(looks[start])))
                start = x
        return Strip(segments, self.width)


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken at spaces, in the middle of a word only if it is longer than a line."""
    width = max(width, 8)
    lines: list[str] = []
    for paragraph in text.splitlines() or [""]:
        line = ""
        for word in paragraph.split(" "):
            while cell_len(word) > width:
                if line:
                    lines.append(line)
                    line = ""
                lines.append(word[:width])
                word = word[width:]
            if line and cell_len(line) + 1 + cell_len(word) > width:
                lines.append(line)
                line = word
            else:
                line = f"{line} {word}" if line else word
        lines.append(line)
    return lines


class Looks:
    """Turns looks into styles under one theme. A look is words: roles of the theme, "rank:N", "bold", "reverse"."""

    # Neighbouring ranks differ; green stays free for what was averaged, vermilion for what is wrong.
    RANKS: ClassVar[tuple[str, ...]] = ("local", "running", "partial", "step", "text")

    def __init__(self, roles: dict[str, RichStyle]) -> None:
        self._roles = roles
        self._known: dict[str, RichStyle] = {"": RichStyle()}

    def of(self, look: str) -> RichStyle:
        style = self._known.get(look)
        if style is None:
            style = RichStyle()
            for word in look.split():
                style += self._word(word)
            self._known[look] = style
        return style

    def _word(self, word: str) -> RichStyle:
        if word == "chosen":
            return RichStyle(bgcolor=self._roles["cursor"].color)
        if word.startswith("link:"):
            return RichStyle(link=word[5:])
        if word.startswith("rank:"):
            word = self.RANKS[int(word[5:]) % len(self.RANKS)]
        return self._roles[word] if word in self._roles else RichStyle.parse(word)


class Drawing(ScrollView, can_focus=True, inherit_bindings=False):
    """Shows a canvas, scrolls it, and draws it again only when what it shows has changed, and is on screen.

    A moved cursor draws at once; new data at most once every `EVERY` seconds.
    """

    DEFAULT_CSS = """
    Drawing {
        height: 1fr; width: 1fr; background: $surface; color: $foreground; overflow: auto auto;
        scrollbar-size: 1 1; scrollbar-background: $surface; scrollbar-corner-color: $surface;
    }
    Drawing:focus { background-tint: $foreground 2%; }
    """
    # Left, right, Home and End are the app's: they move the cursor through time.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", show=False),
        Binding("down", "scroll_down", show=False),
        Binding("pageup", "page_up", show=False),
        Binding("pagedown", "page_down", show=False),
        Binding("shift+left", "scroll_left", show=False),
        Binding("shift+right", "scroll_right", show=False),
    ]
    EVERY: ClassVar[float] = 0.1
    ALLOW_SELECT: ClassVar[bool] = True

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.tl = Timeline()
        self.cursor: Cursor | None = None
        self.findings: list[Finding] = []
        self.canvas = Canvas(0)
        self._drawn: Hashable = None
        self._eager: Hashable = None
        self._drawn_at = 0.0
        self._later: Timer | None = None
        self._strips: dict[int, Strip] = {}
        self._looks = Looks({})
        self._theme = ""
        self._painting, self._ground = False, RichStyle()

    # -- for subclasses

    def paint(self, width: int, height: int) -> Canvas:
        """Draw everything for a space of this size; a taller or wider canvas scrolls."""
        raise NotImplementedError

    def options(self) -> Hashable:
        """What else the drawing depends on: choices made in the view itself. A change of them draws at once."""
        return None

    # -- for the app

    def show(self, tl: Timeline, cursor: Cursor, findings: list[Finding]) -> None:
        """Take the state to draw. Cheap if nothing has changed, or while the view is not on screen."""
        self.tl, self.cursor, self.findings = tl, cursor, findings
        self.redraw()

    def redraw(self, force: bool = False) -> None:
        """Draw again if anything that the drawing depends on has changed."""
        if not self.is_attached or not self.is_on_screen or not self.size.area:
            return
        theme = self.app.current_theme
        if theme.name != self._theme:
            self._theme = theme.name
            self._looks = Looks(roles(self.app))
        eager = (self.cursor, self.size, self._theme, self.options())
        key = (id(self.tl), self.tl.version, id(self.findings), len(self.findings), eager)
        if key == self._drawn and not force:
            return
        wait = self._drawn_at + self.EVERY - monotonic()
        if wait > 0 and eager == self._eager and not force:
            if self._later is None:
                self._later = self.set_timer(wait, self._late)
            return
        width, height = self.scrollable_content_region.size
        with self._quiet_feed():
            canvas = self.paint(width, height)
            if canvas.height > height and not self.show_vertical_scrollbar and self.styles.overflow_y == "auto":
                canvas = self.paint(width - self.styles.scrollbar_size_vertical, height)
        self._drawn, self._eager, self._drawn_at = key, eager, monotonic()
        self.canvas, self._strips = canvas, {}
        self.virtual_size = Size(canvas.width, canvas.height)
        self.refresh()

    def _quiet_feed(self) -> AbstractContextManager[Any]:
        """Held while drawing: the app's feed folds in a thread of its own, and a redraw may come from a timer."""
        lock: AbstractContextManager[Any] | None = getattr(getattr(self.app, "feed", None), "lock", None)
        return lock if lock is not None else nullcontext()

    def _late(self) -> None:
        self._later = None
        self.redraw()

    # -- Textual

    def render_lines(self, crop: Region) -> list[Strip]:
        self._painting, self._ground = True, self.rich_style  # asked for once: it is dear
        try:
            return super().render_lines(crop)
        finally:
            self._painting = False

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        y += top
        width = self.size.width
        if y >= self.canvas.height:
            return Strip.blank(width, self._ground)
        strip = self._strips.get(y)
        if strip is None:
            strip = self._strips[y] = self.canvas.strip(y, self._looks)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(y)) is not None:
            strip = highlighted(strip, span, self.screen.get_component_rich_style("screen--selection"))
        if not self._painting:  # it is the mouse that asks, and wants to know where each character is
            strip = strip.apply_offsets(0, y)
        return strip.crop_extend(left, left + width, self._ground).apply_style(self._ground)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract(self.canvas.text()), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, self._theme_changed)

    def _theme_changed(self, _theme: Any) -> None:
        self.redraw()

    def on_show(self) -> None:
        self.redraw()

    def on_resize(self, event: events.Resize) -> None:
        self.redraw()
