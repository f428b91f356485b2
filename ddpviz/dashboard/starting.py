"""The screen before the first backward pass: how far each rank has come, or why none came. Pure."""

from __future__ import annotations

from rich.style import Style
from rich.text import Text

from ddpviz.dashboard.brief import by_weight, failed_text
from ddpviz.dashboard.feed import Snapshot
from ddpviz.dashboard.format import clock, duration, plural
from ddpviz.dashboard.header import backend
from ddpviz.dashboard.lesson import lesson_of, look_text
from ddpviz.dashboard.marks import M
from ddpviz.dashboard.narration import before_the_module
from ddpviz.dashboard.situation import Situation, State
from ddpviz.language import N_, _
from ddpviz.timeline.model import RankState, Timeline

STAGES = ("torch", N_("process group"), N_("DDP module"), N_("first backward"))


LESSON = (
    (M.LOCAL, N_("a backward pass that stays local: each rank adds its own gradients, nothing is sent")),
    (M.SYNCED, N_("one that is all-reduced: bucket by bucket the ranks' gradients become their mean")),
    (M.STEP, N_("an optimizer step that used the mean: the replicas stay the same model")),
    (M.WRONG_STEP, N_("a step on gradients never averaged: the replicas part, and PyTorch says nothing")),
)


def reached(tl: Timeline, state: RankState) -> int:
    """How many of STAGES a rank has behind it."""
    if any(len(m.lanes[state.rank].passes) for m in tl.modules if state.rank in m.lanes):
        return 4
    if any(state.rank in m.lanes for m in tl.modules):
        return 3
    if state.backend:
        return 2
    return 1


def doing(state: RankState, stage: int) -> str:
    """What a rank that stands before stage `stage` is at."""
    if state.stack is not None and state.stack.doing not in ("", "computing"):
        return state.stack.doing
    return (_("importing torch"), _("before init_process_group"), _("building the model"), _("first forward"))[
        min(stage, 3)
    ]


def starting_text(snap: Snapshot, here: Situation, ink: dict[str, Style], *, height: int) -> tuple[str, str, Text]:
    """Title, role and text."""
    tl, text, bold = snap.tl, Text(), Style(bold=True)
    if here.state is State.LOST:
        text.append(snap.error + "\n", ink["wrong"])
        return _("This run cannot be followed"), "wrong", text
    text.append(f"{tl.run.title or tl.run.id or 'a run'}", ink["strong"] + bold)
    text.append(f"   {backend(tl, True)}\n", ink["dim"])
    if tl.run.command:
        text.append(" ".join(tl.run.command)[:300] + "\n", ink["dim"])
    text.append("\n")
    if here.state in (State.FINISHED, State.FAILED, State.INTERRUPTED):
        return _ended(snap, here, ink, text)
    if here.hang is not None:
        text.append(f"{here.hang.message}\n", ink["waiting"])
        text.append(f"→ {here.hang.advice}\n\n", ink["local"])
    one = lesson_of(tl)
    if one is not None:
        text.append_text(look_text(one, ink))
        text.append("\n")
    names = sorted(tl.ranks) or list(range(tl.run.world_size))
    known = [(rank, tl.ranks.get(rank)) for rank in range(max([tl.run.world_size, *(r + 1 for r in names)], default=0))]
    shown = known if len(known) <= max(height - 8, 2) else known[: max(height - 9, 2)]
    for rank, state in shown:
        text.append(_("rank {rank}", rank=rank).ljust(10), ink["text"] + bold)
        stage = 0 if state is None else reached(tl, state)
        for number, name in enumerate(map(_, STAGES)):
            if number < stage:
                text.append(f"{M.GOOD.glyph} {name}   ", ink["synced"])
            elif number == stage:
                since = snap.now if state is None else snap.now - max(state.started_ns, state.progress_ns)
                busy = _("starting Python, importing torch") if state is None else doing(state, stage)
                text.append(f"{M.WAITING.glyph} {busy} … {duration(max(since, 0))}", ink["running"])
        text.append("\n")
    if len(shown) < len(known):
        text.append(_("… and {more_ranks}\n", more_ranks=plural(len(known) - len(shown), "more rank")), ink["dim"])
    if not known:
        text.append(
            _("{glyph} the command runs; no process with torch has shown up yet", glyph=M.WAITING.glyph), ink["running"]
        )
        text.append(f" … {clock(snap.now)}\n", ink["running"])
    text.append("\n" + before_the_module(tl) + "\n", ink["text"])
    if height - len(shown) >= 8 + len(LESSON) + (4 + len(one.look) if one is not None else 0):
        text.append(_("\nWhat will be drawn here\n"), ink["strong"] + bold)
        for mark, lesson in LESSON:
            text.append(f"  {mark.glyph * 3}  ", ink[mark.role])
            text.append(_(lesson) + "\n", ink["dim"])
    return (_("Waiting"), "waiting", text) if here.hang is not None else (_("Starting"), "", text)


def _ended(snap: Snapshot, here: Situation, ink: dict[str, Style], text: Text) -> tuple[str, str, Text]:
    """The run is over and there is nothing to draw: say why."""
    tl = snap.tl
    if not snap.complete:
        text.append(_("reading the recording …\n"), ink["running"])
        return _("Reading"), "", text
    for finding in by_weight(snap.findings)[:2]:
        text.append(f"{finding.message}\n", ink["text"])
        text.append(f"→ {finding.advice}\n\n", ink["local"])
    if here.state is State.FAILED:
        text.append(_("The job ended before any backward pass.\n"), ink["wrong"] + Style(bold=True))
        failure = failed_text(tl, ink, snap.last_words)
        text.append_text(failure)
        text.append(_("6 shows its whole output"), ink["dim"])
        return _("{glyph} Failed", glyph=M.WRONG_STEP.glyph), "wrong", text
    word = _("was interrupted") if here.state is State.INTERRUPTED else _("ended")
    if not tl.ranks:
        text.append(_("The job {word}, and no process in it imported torch.distributed.\n", word=word), ink["text"])
    elif not tl.modules:
        nothing = _(
            "The job {word} without wrapping a model in DistributedDataParallel: there is nothing to watch.", word=word
        )
        text.append(nothing + "\n", ink["text"])
    else:
        text.append(
            _("The job {word} before any backward pass went through {name}.\n", word=word, name=tl.modules[0].name),
            ink["text"],
        )
    text.append(_("\n6 shows its output, 7 what is known of the job."), ink["dim"])
    for problem in snap.problems[:4]:
        text.append(f"\n{problem}", ink["wrong"])
    return _("Nothing recorded"), "", text
