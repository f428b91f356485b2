"""Source: the script itself, with the lines that made the pass under the cursor, and where each rank is at its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

from textual.app import ComposeResult
from textual.containers import Container, Vertical

from ddpviz.dashboard import format as fmt
from ddpviz.dashboard.levels_view import LevelsView
from ddpviz.dashboard.marks import OF_SYNC, M
from ddpviz.dashboard.narration import narrate
from ddpviz.dashboard.panel import Panel
from ddpviz.dashboard.places import Place, Use, made_by, places, recorded
from ddpviz.dashboard.state import Cursor, module_of
from ddpviz.dashboard.sync import SyncTimeline
from ddpviz.dashboard.views.canvas import Canvas, Drawing, wrap
from ddpviz.dashboard.views.source import Excerpt, colour, whole
from ddpviz.findings.model import Finding
from ddpviz.language import _
from ddpviz.phrases import which_ranks
from ddpviz.timeline.model import Sync, Timeline

WIDE = 120  # cells from which the timeline stands beside the source
MOST = 400  # lines drawn at once; of a longer file those around the ranks
SENTENCE = 2  # lines of what just happened
IN, WAS, WAITS, RAISED = "▶", "▷", M.WAITING.glyph, M.DEAD.glyph


@dataclass(frozen=True, slots=True)
class Scene:
    """All that the drawing depends on."""

    file: str = ""
    text: Excerpt = field(default_factory=Excerpt)
    lines: tuple[tuple[int, str], ...] = ()  # what is shown: number and text
    ranks: tuple[Place, ...] = ()
    uses: tuple[tuple[int, tuple[Use, ...]], ...] = ()
    title: str = ""
    verdict: M | None = None

    @property
    def focus(self) -> list[int]:
        """The lines to bring into sight, the most wanted first."""
        here = [place.site.line for place in self.ranks if place.site.file == self.file]
        return [*here, *(line for line, _rest in self.uses)]


def mark_of(place: Place) -> str:
    if place.role == "waiting":
        return WAITS
    if place.role == "wrong" and place.doing == "raised here":
        return RAISED
    return IN if place.inside else WAS


def scene(tl: Timeline, cursor: Cursor) -> Scene:
    """What is to be seen at a cursor. The file is that of the chosen rank, else the one that most ranks are in."""
    module = module_of(tl, cursor)
    at_the_end = module is None or cursor.index >= module.passes - 1
    found = places(tl, cursor.time or tl.now_ns, present=cursor.live or at_the_end)
    uses: dict[tuple[str, int], list[Use]] = {}
    title, verdict = "", None
    if module is not None and 0 <= cursor.index < module.passes:
        uses = made_by(tl, module, cursor.index, cursor.rank)
        verdict = OF_SYNC[Sync(int(module.verdicts[cursor.index]))]
        title = _("micro-step {index}", index=cursor.index)
    elif module is not None and module.site.file:
        uses = {(module.site.file, module.site.line): [Use("DDP")]}
    chosen = next((its.site.file for its in found if its.rank == cursor.rank), "")
    votes = Counter([its.site.file for its in found]) or Counter([file for file, _rest in uses])
    file = chosen or (votes.most_common(1)[0][0] if votes else "")
    if not file:
        return Scene()
    known = recorded(tl, file)
    text = whole(file, known)
    lines = tuple(enumerate(text.lines, text.first)) or tuple(sorted(known.items()))
    mine = tuple((line, tuple(its)) for (where, line), its in sorted(uses.items()) if where == file)
    return Scene(file, text, lines, tuple(found), mine, title, verdict)


def draw(now: Scene, width: int, height: int) -> Canvas:
    """The script; `canvas.hits` holds the number of each line."""
    canvas = Canvas(width)
    if not now.lines:
        words = [_("No line of the script is known yet.") if not now.file else now.text.problem]
        canvas.grow(max((height - len(words)) // 2, 0))
        for word in words:
            for row in wrap(word, width - 4):
                canvas.line((row.center(width).rstrip(), "dim"))
        return canvas
    heads = _heads(now)
    gutter = min(max([4, *(sum(len(text) + 1 for text, _rest in its) for its in heads.values())]), 16)
    digits = len(str(now.lines[-1][0]))
    uses = dict(now.uses)
    notes = {line: _note(its) for line, its in uses.items()}
    wide = max((sum(len(text) for text, _rest in note) for note in notes.values()), default=0)
    if now.text.problem:
        canvas.wrap(now.text.problem, "dim", indent=1)
        canvas.line("")
    last = now.lines[0][0] - 1
    for number, code in _near(now):
        if number > last + 1:
            canvas.line(" " * (gutter + digits - 1), ("⋮", "dim"))
        last = number
        inside = any(p.site.line == number and p.inside and p.site.file == now.file for p in now.ranks)
        ground = " chosen" if inside else ""
        y = canvas.line((" " * width, ground.strip()))
        canvas.hits[y] = number
        x = 0
        for text, look in heads.get(number, ()):
            x = canvas.put(x, y, text[: max(gutter - x - 1, 0)], look + ground) + 1
        own = "strong" if number in uses else "dim"
        canvas.put(gutter, y, str(number).rjust(digits), own + ground)
        room = width - wide - 3 if number in notes else width - 1
        x = gutter + digits + 2
        for text, look in colour(code):
            if x >= room:
                canvas.put(room - 1, y, "…", "dim" + ground)
                break
            bold = " bold" if number in uses or number in heads else ""
            cut = text if len(text) <= room - x else text[: room - x - 1] + "…"
            x = canvas.put(x, y, cut, look + bold + ground)
        if number in notes:
            x = width - wide - 1
            for text, look in notes[number]:
                x = canvas.put(x, y, text, look + ground)
    return canvas


def _near(now: Scene) -> tuple[tuple[int, str], ...]:
    """The lines to draw: all of a script of the usual length."""
    if len(now.lines) <= MOST:
        return now.lines
    middle = now.focus[0] if now.focus else now.lines[0][0]
    at = next((i for i, (line, _rest) in enumerate(now.lines) if line >= middle), 0)
    first = min(max(at - MOST // 2, 0), len(now.lines) - MOST)
    return now.lines[first : first + MOST]


def _heads(now: Scene) -> dict[int, list[tuple[str, str]]]:
    """Line -> what stands before it: the ranks that are there."""
    groups: dict[tuple[int, str, str], list[int]] = {}
    for place in now.ranks:
        if place.site.file == now.file:
            groups.setdefault((place.site.line, mark_of(place), place.role), []).append(place.rank)
    heads: dict[int, list[tuple[str, str]]] = {}
    for (line, mark, role), ranks in groups.items():
        heads.setdefault(line, []).append((f"{mark}{fmt.ranges(ranks).replace(', ', ',')}", f"{role} bold"))
    return heads


def _note(uses: tuple[Use, ...]) -> list[tuple[str, str]]:
    """`backward ░`, at the right of a line."""
    parts: list[tuple[str, str]] = []
    for use in uses:
        parts += [("  " if parts else "", ""), (use.doing, "dim")]
        if use.mark is not None:
            parts.append((f" {use.mark.glyph}", f"{use.mark.role} bold"))
    return parts


def caption(now: Scene, sentence: str, width: int) -> Canvas:
    """Under the script: what just happened, where the ranks are, and what the marks mean."""
    canvas = Canvas(width)
    rows = wrap(sentence, width - 3)
    for number in range(SENTENCE):
        row = rows[number] if number < len(rows) else ""
        canvas.line((row + (" …" if number == SENTENCE - 1 and len(rows) > SENTENCE else ""), "text"), indent=1)
    groups: dict[tuple[str, str, str], list[int]] = {}
    for place in now.ranks:
        at = _("line {line}", line=place.site.line) if place.site.file == now.file else place.site.short
        verb = "" if place.role in ("waiting", "wrong") and place.doing[:5] in ("waits", "raise") else _("in ")
        what = f"{verb if place.inside else 'after ' if verb else ''}{place.doing}, {at}"
        groups.setdefault((mark_of(place), place.role, what), []).append(place.rank)
    y, x = canvas.line(""), 1
    for (mark, role, what), ranks in groups.items():
        who = which_ranks(ranks, fmt.ranges(ranks))
        if x + len(who) + len(what) + 4 > width:
            canvas.put(min(x, width - 1), y, "…", "dim")
            break
        x = canvas.put(x, y, f"{mark} ", f"{role} bold")
        x = canvas.put(x, y, f"{who} ", "strong bold")
        x = canvas.put(x, y, what, "text") + 3
    y, x = canvas.line(""), 1
    for mark, what in (
        (IN, _("in this line")),
        (WAS, _("was here last")),
        (WAITS, _("waits here")),
        (RAISED, _("raised here")),
    ):
        if x + len(mark) + 1 + len(what) > width:
            break
        x = canvas.put(x, y, mark, "strong")
        x = canvas.put(x + 1, y, what, "dim") + 3
    return canvas


class Script(Drawing):
    """The lines; those that matter are brought into sight whenever they change."""

    DEFAULT_CSS = "Script { background: $background; scrollbar-background: $background; }"
    now = Scene()
    _in_sight: object = None  # the lines that were brought into sight last

    def options(self) -> Hashable:
        return self.now

    def paint(self, width: int, height: int) -> Canvas:
        return draw(self.now, width, height)

    def look(self, now: Scene) -> None:
        """Show a scene."""
        if now != self.now or self.canvas.width != self.scrollable_content_region.width:
            self.now = now
            self.redraw()
        if self._in_sight != (now.file, now.focus):
            self.call_after_refresh(self._into_sight)

    def _into_sight(self) -> None:
        rows = {line: y for y, line in self.canvas.hits.items()}
        wanted = [rows[line] for line in self.now.focus if line in rows]
        if not wanted:
            return
        self._in_sight = (self.now.file, self.now.focus)
        height, top = self.scrollable_content_region.height, self.scroll_offset.y
        low, high = min(wanted), max(wanted)
        if high - low >= height - 2:
            low = high = wanted[0]
        if not (top + 1 <= low or low == top == 0) or high >= top + height - 1:
            self.scroll_to(y=max((low + high - height) // 2 + 1, 0), animate=False)

    def on_resize(self, event: object) -> None:
        self.redraw()
        self.call_after_refresh(self._into_sight)


class Caption(Drawing, can_focus=False):
    DEFAULT_CSS = "Caption { height: 4; background: $background; overflow: hidden; }"
    now = Scene()
    sentence = ""

    def options(self) -> Hashable:
        return self.now, self.sentence

    def paint(self, width: int, height: int) -> Canvas:
        return caption(self.now, self.sentence, width)


class SourceView(Container):
    """The script; beside it, where there is room, the timeline and the levels."""

    DEFAULT_CSS = """
    SourceView { layout: horizontal; width: 1fr; height: 1fr; background: $background; }
    SourceView #script-panel { width: 1fr; height: 1fr; }
    SourceView #beside { width: 1fr; height: 1fr; }
    SourceView.-narrow #beside { display: none; }
    SourceView #beside-sync { height: 1fr; }
    SourceView #beside-levels { height: 1fr; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._script, self._caption = Script(), Caption()
        self._sync, self._levels = SyncTimeline(), LevelsView()

    def compose(self) -> ComposeResult:
        yield Panel(_("Source"), self._script, self._caption, id="script-panel")
        with Vertical(id="beside"):
            yield Panel(_("Sync timeline"), self._sync, id="beside-sync")
            yield Panel(_("Levels"), self._levels, id="beside-levels")

    def show(self, tl: Timeline, cursor: Cursor, findings: list[Finding]) -> None:
        self.on_resize()  # it may have been told its size before it was in sight
        now = scene(tl, cursor)
        panel = self.query_one("#script-panel", Panel)
        title = _("Source: {file}", file=now.file.rsplit("/", 1)[-1]) if now.file else _("Source")
        if panel.border_title != title:
            panel.border_title = title
        said = f"{now.title}  {now.verdict.glyph} {now.verdict.meaning}" if now.verdict else ""
        if panel.border_subtitle != said:
            panel.border_subtitle = said
        for drawing in (self._script, self._caption):
            drawing.tl, drawing.cursor, drawing.findings = tl, cursor, findings
        self._script.look(now)
        self._caption.now, self._caption.sentence = now, narrate(tl, cursor)
        self._caption.redraw()
        if not self.has_class("-narrow"):
            self._sync.show(tl, cursor, findings)
            self._levels.show(tl, cursor, findings)

    def on_resize(self) -> None:
        self.set_class(0 < self.size.width < WIDE, "-narrow")
