"""Output: what each rank printed, live. Files are read in a thread, so that a slow disk never holds the screen up."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import events, work
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ddpviz.dashboard import format as fmt
from ddpviz.dashboard.drawn import highlighted
from ddpviz.dashboard.keymap import bound
from ddpviz.dashboard.keys import Key
from ddpviz.dashboard.themes import roles
from ddpviz.dashboard.views.canvas import Canvas, Looks
from ddpviz.dashboard.views.tail import Logs, News, plain
from ddpviz.language import _
from ddpviz.timeline.model import Timeline

if TYPE_CHECKING:
    from textual.selection import Selection

    from ddpviz.dashboard.state import Cursor
    from ddpviz.findings.model import Finding

KEPT = 20_000  # lines of each log
EVERY = 0.2  # seconds between two looks
ALL = "all"
SCROLLING = {  # keys of the view, and what they do to its lines
    "up": "scroll_up",
    "down": "scroll_down",
    "pageup": "page_up",
    "pagedown": "page_down",
    "shift+left": "scroll_left",
    "shift+right": "scroll_right",
}


def title_of(name: str) -> str:
    return _("rank {name}", name=name) if name.isdigit() else name


class Lines(ScrollView, can_focus=False, inherit_bindings=False):
    """Lines of text with their own colours; follows the end until it is scrolled away from there."""

    DEFAULT_CSS = """
    Lines { height: 1fr; background: $surface; color: $foreground; overflow: auto auto;
        scrollbar-size: 1 1; scrollbar-background: $surface; scrollbar-corner-color: $surface;
    }
    """
    ALLOW_SELECT: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, str]] = []  # (name of the log or "", line)
        self.follow = True
        self.sought = ""
        self.quiet = False
        self._looks = Looks({})
        self._cache: dict[int, Strip] = {}

    def fill(self, rows: list[tuple[str, str]], sought: str, *, quiet: bool = False) -> None:
        """Show these lines, as a remark of our own if `quiet`. Following stays at the end; else the place is kept."""
        self._looks = Looks(roles(self.app))
        self.rows, self.sought, self.quiet, self._cache = rows, sought, quiet, {}
        prefix = max((len(title_of(name)) + 3 for name, _rest in rows[-500:] if name), default=0)
        width = max((len(line) for _rest, line in rows[-2000:]), default=0) + prefix
        self.virtual_size = Size(width, len(rows))
        if self.follow:
            self.scroll_end(animate=False, immediate=True, x_axis=False, force=True)
        self.refresh()

    def watch_scroll_y(self, old: float, new: float) -> None:
        super().watch_scroll_y(old, new)
        if new < old and new < self.max_scroll_y:
            self.follow = False
        elif new >= self.max_scroll_y:
            self.follow = True

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        at, width = y + top, self.size.width
        if at >= len(self.rows):
            return Strip.blank(width, self.rich_style)
        strip = self._cache.get(at)
        if strip is None:
            strip = self._cache[at] = self._strip(*self.rows[at]).apply_offsets(0, at)
        selection = self.text_selection
        if selection is not None and (reach := selection.get_span(at)) is not None:
            strip = highlighted(strip, reach, self.screen.get_component_rich_style("screen--selection"))
            strip = strip.apply_offsets(0, at)
        return strip.crop_extend(left, left + width, self.rich_style).apply_style(self.rich_style)

    def _strip(self, name: str, line: str) -> Strip:
        text = Text.from_ansi(line) if "\x1b" in line else Text(line)
        if self.quiet:
            text.stylize(self._looks.of("dim"))
        elif self.sought:
            text.highlight_words([self.sought], self._looks.of("step bold reverse"), case_sensitive=False)
        if name:
            look = f"rank:{name}" if name.isdigit() else "dim"
            text = Text.assemble((f"{title_of(name)} │ ", self._looks.of(look)), text)
        return Strip([s for s in text.render(self.app.console) if s.text != "\n"])

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        lines = [(f"{title_of(name)} │ " if name else "") + plain(line) for name, line in self.rows]
        return selection.extract("\n".join(lines)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()


class Bar(ScrollView):
    """One row: the logs to choose from, and what is shown of the chosen one."""

    DEFAULT_CSS = "Bar { height: 1; background: $panel; color: $foreground; overflow: hidden; }"

    def __init__(self) -> None:
        super().__init__()
        self.tabs: list[tuple[str, bool]] = []  # (name, whether something new is in it)
        self.chosen = ""
        self.note = ""
        self._places: list[tuple[int, int, str]] = []

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        looks = Looks(roles(self.app))
        canvas = Canvas(width, 1)
        self._places = []
        names = [name for name, _rest in self.tabs]
        # With more tabs than fit, those around the chosen one.
        at = names.index(self.chosen) if self.chosen in names else 0
        room = max((width - len(self.note) - 3) // 10, 1)
        first = min(max(at - room // 2, 0), max(len(names) - room, 0))
        x = canvas.put(0, 0, " ‹ " if first else " ", "dim")
        for name, fresh in self.tabs[first : first + room]:
            word = f" {title_of(name)}{'*' if fresh else ' '}"
            look = "reverse bold" if name == self.chosen else f"rank:{name}" if name.isdigit() else ""
            end = canvas.put(x, 0, word, look)
            self._places.append((x, end, name))
            x = end
        if first + room < len(names):
            x = canvas.put(x, 0, " ›", "dim")
        if x + 2 + len(self.note) <= width:
            canvas.put(width - len(self.note) - 1, 0, self.note, "dim")
        return canvas.strip(0, looks).apply_style(self.rich_style)

    def on_click(self, event: events.Click) -> None:
        for start, end, name in self._places:
            if start <= event.x < end and isinstance(self.parent, OutputView):
                self.parent.choose(name)


class OutputView(Vertical, can_focus=True):
    """Tabs, and the lines of the chosen log."""

    DEFAULT_CSS = "OutputView { height: 1fr; width: 1fr; }"
    KEYS = (
        Key("r", "turn(1)", "r", "next rank", "The next rank's output.", "Output"),
        Key("R", "turn(-1)", "R", "", "The rank's before.", "Output"),
        Key("f", "follow", "f", "follow", "Follow the end of the output, or stay here.", "Output"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *bound(KEYS),
        *(Binding(key, f"lines('{action}')", show=False) for key, action in SCROLLING.items()),
    ]

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.run_dir: Path | None = None  # may be set before it is mounted, instead of calling `follow`
        self._logs: Logs | None = None
        self._busy = False
        self.bar, self.text = Bar(), Lines()
        self._forget()

    def _forget(self) -> None:
        self.names: tuple[str, ...] = ()
        self.chosen = ""
        self._lines: dict[str, deque[str]] = {}
        self._mixed: deque[tuple[str, str]] = deque(maxlen=KEPT)  # all logs, in order of arrival
        self._fresh: set[str] = set()  # logs with lines that were not on screen yet
        self._news = News()
        self._filter = ""
        self._rank: int | None = None
        self._looked = False

    def compose(self) -> ComposeResult:
        yield self.bar
        yield self.text

    def on_mount(self) -> None:
        self.set_interval(EVERY, self._look)
        self.app.theme_changed_signal.subscribe(self, lambda _rest: self._refill())
        if self._logs is None and self.run_dir is not None:
            self.follow(self.run_dir)
        self._refill()

    def on_show(self) -> None:
        self._look()

    # -- for the app

    def follow(self, run_dir: Path) -> None:
        """Show the output of this run."""
        if self._logs is None or run_dir != self._logs.run_dir:
            self._logs = Logs(run_dir)
            self._forget()
            self._look()

    def show(self, tl: Timeline, cursor: Cursor, findings: list[Finding]) -> None:
        """The filter comes from the cursor, and so does the rank, when it changes."""
        if cursor.rank != self._rank:
            self._rank = cursor.rank
            self.choose(str(cursor.rank))
        if cursor.filter != self._filter:
            self._filter = cursor.filter
            self._refill()

    def choose(self, name: str) -> None:
        """Show one log, or "all"."""
        if name != self.chosen and name in (ALL, *self.names):
            self.chosen = name
            self.text.follow = True
            self._refill()

    def action_turn(self, by: int) -> None:
        names = self._tabs()
        if names:
            at = names.index(self.chosen) if self.chosen in names else 0
            self.choose(names[(at + by) % len(names)])

    def action_follow(self) -> None:
        lines = self.text
        lines.follow = not lines.follow
        self._refill()

    async def action_lines(self, action: str) -> None:
        with suppress(SkipAction):  # nothing to scroll
            await self.text.run_action(action)

    # -- reading

    def _look(self) -> None:
        if self._logs is not None and not self._busy and not self._news.over and self.is_on_screen:
            self._busy = True
            self._read(self._logs)

    @work(thread=True, group="output", exit_on_error=False)
    def _read(self, logs: Logs) -> None:
        news = logs.look()
        self.app.call_from_thread(self._take, logs, news)

    def _take(self, logs: Logs, news: News) -> None:
        """Back on the UI's thread with what the look has found."""
        self._busy = False
        if logs is not self._logs or not self.is_attached:
            return
        changed = not self._looked or news.over or news.names != self.names or news.partial != self._news.partial
        self._looked, self._news, self.names = True, news, news.names
        for name, lines in news.lines.items():
            if lines:
                changed = True
                self._lines.setdefault(name, deque(maxlen=KEPT)).extend(lines)
                self._mixed.extend((name, line) for line in lines)
                if self.chosen not in (name, ALL):
                    self._fresh.add(name)
        if self.chosen not in (ALL, *self.names) and self.names:
            self.chosen = self.names[0]
        if changed:
            self._refill()

    # -- drawing

    def _tabs(self) -> list[str]:
        return [*self.names, ALL] if len(self.names) > 1 else list(self.names)

    def _refill(self) -> None:
        if not self.is_mounted:
            return
        self._fresh -= {self.chosen} if self.chosen != ALL else set(self.names)
        if self.chosen == ALL:
            rows = list(self._mixed)
            rows += [(name, self._news.partial[name]) for name in self.names if self._news.partial.get(name)]
        else:
            rows = [("", line) for line in self._lines.get(self.chosen, ())]
            if partial := self._news.partial.get(self.chosen):
                rows.append(("", partial))
        total = len(rows)
        if self._filter:
            rows = [row for row in rows if self._filter.lower() in plain(row[1]).lower()]
        lines, bar = self.text, self.bar
        bar.tabs = [(name, name in self._fresh) for name in self._tabs()]
        bar.chosen = self.chosen
        bar.note = self._note(len(rows), total, lines.follow)
        bar.refresh()
        lines.fill(rows or [("", word) for word in self._why_empty(total)], self._filter, quiet=not rows)

    def _note(self, shown: int, total: int, follow: bool) -> str:
        parts = [
            _("{lines} of {total}", lines=fmt.plural(shown, "line"), total=total)
            if self._filter
            else fmt.plural(total, "line")
        ]
        if self._news.skipped.get(self.chosen):
            parts.append(_("the end of a long log"))
        if self.chosen == ALL:
            parts.append(_("in order of arrival"))
        if not self._news.over:
            parts.append(_("following") if follow else _("held: f follows"))
        return ", ".join(parts)

    def _why_empty(self, total: int) -> list[str]:
        if total:
            return [_("No line holds {filter!r}.", filter=self._filter)]
        if self.chosen in self._news.problems:
            return [self._news.problems[self.chosen]]
        if not self._looked:
            return [_("Looking for the output...")]
        if not self.names:
            return [_("The output of this job is not captured: it was not started by ddpviz.")]
        who = _("No rank") if self.chosen == ALL else title_of(self.chosen).capitalize()
        return [_("{who} has printed nothing", who=who) + ("." if self._news.over else _(" yet."))]
