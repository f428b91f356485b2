"""Findings: a list, worst first, the chosen one in full with its source line in place. Enter goes to its cell."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar, NamedTuple

from textual import events
from textual.binding import BindingType

from ddpviz.dashboard import format as fmt
from ddpviz.dashboard.keymap import bound
from ddpviz.dashboard.keys import Key
from ddpviz.dashboard.marks import OF_SEVERITY, M
from ddpviz.dashboard.messages import GoTo
from ddpviz.dashboard.state import Cursor
from ddpviz.dashboard.views.canvas import Canvas, Drawing, wrap
from ddpviz.dashboard.views.source import colour, dedent, excerpt, link
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Timeline


class Name(NamedTuple):
    """What a finding is told by while new data comes in."""

    rule: str
    module: int | None
    file: str
    line: int
    ranks: tuple[int, ...]


def name_of(finding: Finding) -> Name:
    return Name(finding.rule, finding.module, finding.file, finding.line, finding.ranks)


def listed(findings: list[Finding], text: str = "") -> list[Finding]:
    """The findings that hold every word of `text`, worst first."""
    words = text.lower().split()
    found = [f for f in findings if all(word in f"{f.rule} {f.file} {f.message}".lower() for word in words)]
    return sorted(found, key=lambda f: -f.severity)


def counts(findings: list[Finding]) -> str:
    """`2 errors, 1 warning`, or an empty string."""
    parts = []
    for severity, noun in ((Severity.ERROR, "error"), (Severity.WARNING, "warning"), (Severity.INFO, "note")):
        if count := sum(f.severity is severity for f in findings):
            parts.append(fmt.plural(count, noun))
    return ", ".join(parts)


def cell_of(tl: Timeline, finding: Finding) -> tuple[int | None, int] | None:
    """(position of the module in `tl.modules` or None, pass) of its first place; None if it has none."""
    position = next((i for i, module in enumerate(tl.modules) if module.id == finding.module), None)
    if finding.backward is not None:
        return position, finding.backward
    if finding.step is not None and 0 <= finding.step < len(tl.steps):
        for part in tl.steps[finding.step].parts:
            after = [index for index in part.after if index is not None and index >= 0]
            if after and finding.module in (None, part.module):
                at = next((i for i, module in enumerate(tl.modules) if module.id == part.module), position)
                return at, max(after)
    return None


def draw(
    tl: Timeline, cursor: Cursor, findings: list[Finding], width: int, height: int, chosen: Name | None = None
) -> Canvas:
    """The list with one finding opened; `canvas.hits` names the finding of each row."""
    canvas = Canvas(width)
    rows = listed(findings, cursor.filter)
    if not rows:
        _draw_none(canvas, height, tl, findings, cursor.filter)
        return canvas
    head = counts(rows) + (
        _(" of {count}, filtered by {filter!r}", count=len(findings), filter=cursor.filter) if cursor.filter else ""
    )
    canvas.line((f" {head}", f"{OF_SEVERITY[rows[0].severity].role} bold"))
    names = [name_of(f) for f in rows]
    opened = names.index(chosen) if chosen in names else 0
    rule = min(max(len(f.rule) for f in rows), max(width // 3, 12))
    place = min(max((len(_place(f)) for f in rows), default=0), max(width // 3, 12))
    for number, finding in enumerate(rows):
        top = canvas.height
        _draw_row(canvas, finding, rule, place, number == opened)
        if number == opened:
            _draw_full(canvas, finding)
        for y in range(top, canvas.height):
            canvas.hits[y] = names[number]
    return canvas


def _place(finding: Finding) -> str:
    return f"{finding.file.rsplit('/', 1)[-1]}:{finding.line}" if finding.file else ""


def _when(finding: Finding) -> str:
    parts = []
    if finding.step is not None:
        parts.append(_("step {step}", step=finding.step))
    if finding.backward is not None:
        parts.append(_("micro-step {backward}", backward=finding.backward))
    if finding.count > 1:
        parts.append(f"×{finding.count}")
    return "  ".join(parts)


def _draw_row(canvas: Canvas, finding: Finding, rule: int, place: int, opened: bool) -> None:
    mark = OF_SEVERITY[finding.severity]
    ground = " chosen bold" if opened else ""
    quiet = "text chosen" if opened else "dim"
    y = canvas.line((" " * canvas.width, ground.strip()))
    canvas.put(0, y, "▸" if not opened else "▾", f"dim{ground}")
    canvas.put(2, y, mark.glyph, f"{mark.role} bold{ground}")
    x = canvas.put(4, y, fmt.fit(finding.rule, rule), ground.strip()) + 2
    x = canvas.put(x, y, fmt.fit(_place(finding), place), quiet) + 2
    when = _when(finding)
    if x + len(when) <= canvas.width:
        canvas.put(x, y, when, quiet)


def _draw_full(canvas: Canvas, finding: Finding) -> None:
    mark = OF_SEVERITY[finding.severity]
    for row in wrap(finding.message, canvas.width - 6):
        canvas.line(("  │ ", mark.role), (row, "strong"))
    for number, row in enumerate(wrap(finding.advice, canvas.width - 8) if finding.advice else []):
        canvas.line(("  │ ", mark.role), ("→ " if number == 0 else "  ", "synced bold"), (row, ""))
    if finding.file:
        _draw_source(canvas, finding, mark)
    canvas.line(("  ╵", mark.role))


def _draw_source(canvas: Canvas, finding: Finding, mark: M) -> None:
    found = excerpt(finding.file, finding.line, finding.code)
    canvas.line(("  │", mark.role))
    where = fmt.shorten_path(finding.file, max(canvas.width - 14, 10))
    canvas.line(("  │ ", mark.role), (f"{where}:{finding.line}", f"dim underline {link(finding.file)}"))
    if finding.via:
        canvas.line(("  │ ", mark.role), (fmt.shorten(_("called by {via}", via=finding.via), canvas.width - 6), "dim"))
    digits = len(str(found.first + len(found.lines)))
    for number, text in enumerate(dedent(found.lines), start=found.first):
        here = number == finding.line
        y = canvas.line(("  │ ", mark.role), ("▶ " if here else "  ", f"{mark.role} bold"))
        canvas.put(6, y, str(number).rjust(digits), "dim")
        x = 6 + digits + 2
        room = canvas.width - x - 1
        for part, look in colour(text):
            if room <= 0:
                canvas.put(canvas.width - 1, y, "…", "dim")
                break
            x = canvas.put(x, y, part[:room], f"{look} bold".strip() if here else look)
            room = canvas.width - x - 1
    if found.problem:
        for row in wrap(found.problem, canvas.width - 6):
            canvas.line(("  │ ", mark.role), (row, "dim"))


def _draw_none(canvas: Canvas, height: int, tl: Timeline, findings: list[Finding], text: str) -> None:
    over = tl.run.status not in ("running", "starting")
    passes = sum(module.passes for module in tl.modules)
    seen = _(
        "{backward_pass} and {steps}",
        backward_pass=fmt.plural(passes, "backward pass"),
        steps=fmt.plural(len(tl.steps), "step"),
    )
    if text and findings:
        words, look = (
            [_("None of the {findings} holds {text!r}.", findings=fmt.plural(len(findings), "finding"), text=text)],
            "dim",
        )
    elif not tl.modules:
        words, look = [_("No DDP module was seen: nothing to judge.") if over else _("No DDP module yet.")], "dim"
    elif not passes:
        words, look = [_("No backward pass was seen.") if over else _("No backward pass yet.")], "dim"
    elif tl.run.status in ("failed", "hung", "interrupted"):
        words, look = (
            [
                _("No finding in {seen}; the job itself {ended}.", seen=seen, ended=_ended(tl)),
                _("Its own words are in Output."),
            ],
            "wrong",
        )
    else:
        words = [_("{glyph} Nothing wrong in {seen}", glyph=M.GOOD.glyph, seen=seen) + ("." if over else _(" so far."))]
        look = "synced"
    canvas.grow(max((height - len(words)) // 2, 0))
    for word in words:
        for row in wrap(word, canvas.width - 4):
            canvas.line((row.center(canvas.width).rstrip(), look))


def _ended(tl: Timeline) -> str:
    if tl.run.status == "failed":
        return _("failed (exit code {code})", code=tl.run.exit_code) if tl.run.exit_code else _("failed")
    return _("hangs") if tl.run.status == "hung" else _("was interrupted")


class FindingsView(Drawing):
    """The list. Up and down choose, Enter or a second click goes to the cell."""

    KEYS = (
        Key("up", "choose(-1)", "↑", "", "The finding above.", "Findings"),
        Key("down", "choose(1)", "↓", "", "The finding below.", "Findings"),
        Key("enter", "go", "Enter", "go there", "The micro-step where it first happened.", "Findings"),
        Key("c", "copy_place", "c", "", "Copy its file and line.", "Findings"),
    )
    BINDINGS: ClassVar[list[BindingType]] = bound(KEYS)

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.chosen: Name | None = None

    def options(self) -> Hashable:
        return self.chosen, len(self.findings)

    def paint(self, width: int, height: int) -> Canvas:
        return draw(self.tl, self.cursor or Cursor(), self.findings, width, height, self.chosen)

    def _listed(self) -> list[Finding]:
        return listed(self.findings, self.cursor.filter if self.cursor else "")

    def _finding(self) -> Finding | None:
        rows = self._listed()
        return next((f for f in rows if name_of(f) == self.chosen), rows[0] if rows else None)

    def choose(self, name: Name) -> None:
        """Open a finding, and bring it into sight."""
        self.chosen = name
        self.redraw()
        rows = [y for y, hit in self.canvas.hits.items() if hit == name]
        if rows:
            top, bottom, height = min(rows), max(rows) + 1, self.scrollable_content_region.height
            if top < self.scroll_offset.y or bottom > self.scroll_offset.y + height:
                self.scroll_to(y=top if bottom - top >= height else max(bottom - height, 0), animate=False)

    def action_choose(self, by: int) -> None:
        names = [name_of(f) for f in self._listed()]
        if names:
            at = names.index(self.chosen) if self.chosen in names else 0
            self.choose(names[min(max(at + by, 0), len(names) - 1)])

    def action_go(self) -> None:
        finding = self._finding()
        if finding is None:
            return
        cell = cell_of(self.tl, finding)
        if cell is None:
            self.notify(_("This finding belongs to no single micro-step."), severity="warning", timeout=3)
        else:
            rank = finding.ranks[0] if len(finding.ranks) == 1 else None
            self.post_message(GoTo(cell[1], module=cell[0], rank=rank, view="overview"))

    def action_copy_place(self) -> None:
        finding = self._finding()
        if finding is not None and finding.file:
            self.app.copy_to_clipboard(f"{finding.file}:{finding.line}")
            self.notify(_("Copied {place}", place=_place(finding)), timeout=2)

    def on_click(self, event: events.Click) -> None:
        name = self.canvas.hits.get(event.y + self.scroll_offset.y)
        if not isinstance(name, Name):
            return
        finding = self._finding()
        if finding is not None and name_of(finding) == name:
            self.action_go()
        else:
            self.choose(name)
