"""The two texts of the overview: what just happened, and what was found. Pure functions to Rich text."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from rich.console import Console
from rich.containers import Lines
from rich.style import Style
from rich.text import Text

from ddpviz.dashboard.feed import Snapshot
from ddpviz.dashboard.format import plural, ranges
from ddpviz.dashboard.lesson import lesson_of, seen_text
from ddpviz.dashboard.levels import Levels
from ddpviz.dashboard.marks import OF_SEVERITY, M
from ddpviz.dashboard.narration import narrate
from ddpviz.dashboard.situation import Situation, State, hang_lines
from ddpviz.dashboard.state import Cursor, module_of
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _, ngettext
from ddpviz.phrases import which_ranks
from ddpviz.timeline.model import Gradients, Timeline
from ddpviz.timeline.steps import StepTable

_CONSOLE = Console(width=80, no_color=True)  # Rich breaks lines for one; nothing is printed on it


def by_weight(findings: list[Finding]) -> list[Finding]:
    """Errors first; within a severity in the rules' own order, which puts causes before what follows from them."""
    return sorted(findings, key=lambda f: -f.severity)


def title_of_findings(findings: list[Finding]) -> str:
    """`Findings: none`, `2 errors, 1 warning`."""
    counts = {severity: sum(f.severity is severity for f in findings) for severity in Severity}
    words = [
        plural(counts[s], s.word) if s is not Severity.INFO else _("{counts} info", counts=counts[s])
        for s in (Severity.ERROR, Severity.WARNING, Severity.INFO)
        if counts[s]
    ]
    return ", ".join(words) or _("Findings: none")


def badge(findings: list[Finding]) -> tuple[str, str]:
    """What stands behind the tab: `✗2`, `▴1`, and its role."""
    for severity in (Severity.ERROR, Severity.WARNING):
        count = sum(f.severity is severity for f in findings)
        if count:
            mark = OF_SEVERITY[severity]
            return f"{mark.glyph}{count}", mark.role
    return "", "dim"


def _finding_lines(text: Text, finding: Finding, ink: dict[str, Style], *, advice: bool) -> None:
    mark = OF_SEVERITY[finding.severity]
    text.append(f"{mark.glyph} {finding.rule}", ink[mark.role] + Style(bold=True))
    if finding.file:
        text.append(f"  {finding.file.rsplit('/', 1)[-1]}:{finding.line}", ink["strong"])
        if finding.code:
            text.append(f"  {finding.code.split('  #')[0]}", ink["dim"])
    if finding.count > 1:
        text.append(f"  ×{finding.count}", ink["dim"])
    text.append(f"\n{finding.message}\n", ink["text"])
    if advice and finding.advice:
        text.append(f"→ {finding.advice}\n", ink["local"])


def findings_text(
    snap: Snapshot, cursor: Cursor, ink: dict[str, Style], *, lines: int, width: int, trends: str
) -> Text:
    """The worst findings, as many as there is room for; without any, what was measured to be right."""
    text = Text()
    found = by_weight([f for f in snap.findings if f.severity is not Severity.INFO])
    if not snap.judged:
        text.append(_("the rules have not looked at this run yet"), ink["dim"])
        return text
    if not found:
        text.append(f"{M.GOOD.glyph} ", ink["synced"])
        text.append(_all_right(snap.tl, cursor) + "\n", ink["text"])
        text.append(trends, ink["dim"])
        infos = by_weight(snap.findings)
        if infos and lines > 5:
            text.append(f"\n{M.INFO.glyph} {infos[0].message}", ink["dim"])
        return text
    room = lines
    for number, finding in enumerate(found):
        before = len(text)
        _finding_lines(text, finding, ink, advice=True)
        room -= height_of(text[before:], width)
        if number + 1 < len(found) and room < 3:
            text.append(_("… and {count} more: 5", count=len(found) - number - 1), ink["dim"])
            break
    text.rstrip()
    return text


def height_of(text: Text, width: int) -> int:
    """Lines that it takes, broken at words."""
    return _height(text.plain, width)


@lru_cache(maxsize=64)
def _height(plain: str, width: int) -> int:
    return len(_broken(Text(plain), width))


def _broken(text: Text, width: int) -> Lines:
    text = text.copy()
    text.rstrip()
    return text.wrap(_CONSOLE, max(width, 8))


def clipped(text: Text, lines: int, width: int, more: Text) -> Text:
    """The text in at most `lines` lines; where some are left out, the last one is `more`."""
    if height_of(text, width) <= lines:
        return text
    broken = _broken(text, width)
    kept = Text("\n").join([*broken[: max(lines - 1, 0)], more])
    return kept


def _all_right(tl: Timeline, cursor: Cursor) -> str:
    """What can be said where no rule fired. Only measured things."""
    module = module_of(tl, cursor)
    if module is None or not len(tl.steps):
        return _("nothing wrong so far; no optimizer step yet")
    if len(module.ranks) < 2:
        return _("nothing wrong so far; one rank has nobody to average with")
    used = tl.steps.gradients if isinstance(tl.steps, StepTable) else [step.gradients for step in tl.steps]
    count, averaged = len(tl.steps), int(np.count_nonzero(np.asarray(used) == Gradients.SYNCED))
    if averaged < count:  # local SGD, say: no mistake, and still not averaged
        return _(
            "nothing wrong; {averaged} of {steps} so far used averaged gradients",
            averaged=averaged,
            steps=plural(count, "step"),
        )
    return ngettext(
        "nothing wrong: the one step so far used averaged gradients",
        "nothing wrong: all {n} steps so far used averaged gradients",
        count,
    )


def story_text(
    snap: Snapshot,
    cursor: Cursor,
    here: Situation,
    ink: dict[str, Style],
    *,
    with_findings: bool,
    lines: int,
    width: int,
    now: Levels | None = None,
) -> tuple[str, str, Text]:
    """Title, role and text of the panel: the hang or the failure where there is one, else the sentence."""
    text = Text()
    tl = snap.tl
    if here.state is State.LOST:
        text.append(snap.error, ink["wrong"])
        return _("This run cannot be followed"), "wrong", text
    present = cursor.live or (module := module_of(tl, cursor)) is None or cursor.index >= module.passes - 1
    if present and here.state is State.WAITING:
        errors_found = [f for f in by_weight(snap.findings) if f.severity is Severity.ERROR]
        cause = errors_found[0] if errors_found and with_findings else None  # else the panel beside it tells
        for line, role in hang_lines(tl, here, snap.now):
            text.append(line + "\n", ink[role])
        if cause is not None and height_of(text, width) < lines:
            _finding_lines(text, cause, ink, advice=True)
        return _("{glyph} Waiting", glyph=M.WAITING.glyph), "waiting", text
    if present and here.state is State.FAILED and not cursor.playing:
        hung = next((f for f in snap.findings if f.rule == "collective-hang"), None)
        if hung is not None:
            text.append(f"{hung.message}\n", ink["text"])
            text.append(f"→ {hung.advice}", ink["local"])
            return _("{glyph} It waited for ever", glyph=M.WAITING.glyph), "waiting", text
        failure = failed_text(tl, ink, snap.last_words)
        for finding in by_weight(snap.findings)[: 1 if with_findings else 0]:
            failure.append(f"{finding.message}\n", ink["text"])
            failure.append(f"→ {finding.advice}\n", ink["local"])
        if failure.plain:
            failure.append(_("6 shows each rank's whole output"), ink["dim"])
            return _("{glyph} Failed", glyph=M.WRONG_STEP.glyph), "wrong", failure
    one = lesson_of(tl) if present and here.state is State.FINISHED and not cursor.playing else None
    errors_told = with_findings and any(f.severity is Severity.ERROR for f in snap.findings)
    if one is not None and not errors_told:
        seen = seen_text(one, tl, ink, lines=lines, width=width)
        if seen.plain:
            return _("What was seen · l: the lesson"), "", seen
    sentence = narrate(tl, cursor, now)
    found = by_weight([f for f in snap.findings if f.severity is not Severity.INFO]) if with_findings else []
    if not found:
        text.append(sentence, ink["text"])
        return _("What just happened"), "", text
    errors = found[0].severity is Severity.ERROR
    title = title_of_findings(snap.findings)
    said = Text(sentence + "\n", ink["text"])
    if not present or not errors:  # one who looks at the past wants to hear of it first
        text.append_text(said)
        _tell(text, found, ink, lines, width)
        return (title if errors else _("What just happened · {title}", title=title)), "wrong" if errors else "", text
    _tell(text, found[:1], ink, lines, width)
    if lines - height_of(text, width) >= height_of(said, width):
        text.append_text(Text("\n") + said)
    return title, "wrong", text


def _tell(text: Text, found: list[Finding], ink: dict[str, Style], lines: int, width: int) -> None:
    """Append findings while there is room for them."""
    for finding in found:
        room = lines - height_of(text, width)
        if room < 2:
            break
        _finding_lines(text, finding, ink, advice=room >= 3)
    text.rstrip()


def failed_text(tl: Timeline, ink: dict[str, Style], last_words: dict[int, list[str]]) -> Text:
    """Each failed rank's own error: where, what, and the end of its traceback; without one, the end of its output."""
    text = Text()
    failed = [state for state in tl.ranks.values() if state.status in ("failed", "died")]
    failed.sort(key=lambda state: (state.exit.at if state.exit else 0, state.rank))
    told: dict[str, list[int]] = {}
    for state in failed:
        site = tl.site(state.rank, state.exit.site).short if state.exit else ""
        if state.exit is not None and state.exit.error:
            what = state.exit.error.splitlines()[0]
        elif state.signal is not None:
            what = _("ended by signal {signal}", signal=state.signal)
        else:
            code = state.exit_code if state.exit_code is not None else state.exit.code if state.exit else None
            what = _("gone without a last word") + (_(", exit code {code}", code=code) if code is not None else "")
        told.setdefault(_("{what}  at {site}", what=what, site=site) if site else what, []).append(state.rank)
    for what, numbers in list(told.items())[:3]:
        who = which_ranks(numbers, ranges(numbers))
        text.append(f"{M.WRONG_STEP.glyph} {who}  ", ink["wrong"] + Style(bold=True))
        text.append(what + "\n", ink["text"])
    first = next((s for s in failed if s.exit is not None and s.exit.traceback), None)
    if first is not None and first.exit is not None:
        for line in first.exit.traceback.strip().splitlines()[-4:-1]:
            text.append(f"  {line.strip()}\n", ink["dim"])
    elif failed:
        for line in last_words.get(failed[0].rank, [])[-4:]:
            text.append(f"  {line}\n", ink["dim"])
    return text
