"""A check's verdict as text that reads well in a CI log without opening anything else. Outcome in, lines out."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ddpviz.export import words
from ddpviz.export.source import source
from ddpviz.findings.model import Finding, Severity
from ddpviz.findings.standing import PEER_GONE
from ddpviz.headless.console import Console
from ddpviz.headless.hints import hint
from ddpviz.headless.outcome import Outcome, worst_first
from ddpviz.language import N_, _
from ddpviz.lessons import lesson, told
from ddpviz.timeline import model as m
from ddpviz.timeline.trends import traffic
from ddpviz.trace.text import clean

MARKS = {Severity.ERROR: "✗", Severity.WARNING: "▲", Severity.INFO: "·"}


def verdict(outcome: Outcome, out: Console, *, fail_on: str = "error", verb: str = "check") -> Iterator[str]:
    """The whole text: header, findings, failed ranks, summary, last line."""
    tl = outcome.timeline
    findings = worst_first(outcome.findings)
    sections = [
        [out.paint(header(tl, verb), "bold"), *(_("  note: {note}", note=clean(note)) for note in tl.run.notes)],
        *(list(finding_lines(f, out)) for f in findings if f.severity > Severity.INFO),
        [line for f in findings if f.severity is Severity.INFO for line in brief(f, out)],
        *failures(outcome, out, verb),
        list(summary(tl)),
        [last_line(outcome, out, fail_on)],
    ]
    for number, section in enumerate(section for section in sections if section):
        yield from [""] * (number > 0)
        yield from section


def header(tl: m.Timeline, verb: str) -> str:
    """`ddpviz check train.py: 2 ranks, gloo (no CUDA device), torch 2.14.1`."""
    run = tl.run
    ranks = run.world_size or len(tl.ranks)
    parts = [
        words.plural(ranks, "rank") if ranks else _("ranks as its launcher starts them"),
        f"{run.backend} ({clean(run.backend_reason)})"
        if run.backend
        else _("backend: {backend_reason}", backend_reason=clean(run.backend_reason)),
        *([_("torch {torch}", torch=run.torch)] if run.torch else []),
        *([_("redirected to the CPU by --cpu")] if run.redirected else []),
    ]
    return _("ddpviz {verb}  {command}: ", verb=verb, command=clean(command(tl))) + ", ".join(parts)


def command(tl: m.Timeline, limit: int = 120) -> str:
    """What was started, as one would type it, with the script's path as short as it can be."""
    shown = " ".join(shorter(word) if os.path.isabs(word) else word for word in tl.run.command)
    return (shown if len(shown) <= limit else shown[: limit - 3] + "...") or tl.run.title


def shorter(file: str, base: Path | None = None) -> str:
    """The path relative to the working folder where it lies under it, else as it is."""
    try:
        return str(Path(file).relative_to(base or Path.cwd()))
    except (ValueError, OSError):
        return file


# --- findings --------------------------------------------------------------------------------------------------------


def finding_lines(finding: Finding, out: Console) -> Iterator[str]:
    """One finding: rule and place, what happened, the source line with its context, what to do."""
    style = finding.severity.word
    mark = out.paint(f"{MARKS[finding.severity]} {_(style)}  {finding.rule}", style)
    times = _("  ({count} times)", count=finding.count) if finding.count > 1 else ""
    yield f"{mark}{where(finding, out)}{times}"
    yield f"  {clean(finding.message)}"
    yield from ("    " + out.paint(line, "dim") for line in source_lines(finding))
    if finding.via:
        yield _("  called through {via}", via=clean(finding.via))
    if finding.advice:
        yield f"  → {clean(finding.advice)}"


def brief(finding: Finding, out: Console) -> Iterator[str]:
    yield f"{MARKS[finding.severity]} {finding.rule}{where(finding, out)}  {clean(finding.message)}"


def where(finding: Finding, out: Console) -> str:
    if not finding.file:
        return ""
    text = f"{clean(shorter(finding.file))}:{finding.line}"
    return "  " + out.link(text, finding.file, finding.line)


def source_lines(finding: Finding) -> list[str]:
    """The line in its place with its neighbours, `>` before it."""
    lines = source(finding.file, finding.line, finding.code)
    width = max((len(str(line.number)) for line in lines), default=0)
    return [f"{'>' if n.here else ' '} {n.number:{width}} | {n.text}".rstrip() for n in lines]


# --- ranks that failed -----------------------------------------------------------------------------------------------


def failures(outcome: Outcome, out: Console, verb: str = "check") -> Iterator[list[str]]:
    """Each rank that failed or hangs, with its own traceback and the end of its log; then what to do, where known."""
    tl = outcome.timeline
    if tl.run.status == "hung":
        yield from (_standing(tl, rank) for rank in sorted({*range(tl.run.world_size or 0), *tl.ranks}))
    if tl.run.status != "failed" or outcome.signum is not None:
        return
    told: set[tuple[str, ...]] = set()
    said: list[str] = []
    for rank in _failed(tl):
        trace, tail = _last_words(outcome, rank)
        said += trace or tail
        lines = [out.paint(_("✗ rank {rank} {how}", rank=rank, how=_how(tl, rank)), "error")]
        if (key := tuple(trace or tail)) in told:
            lines.append(_("  with the same error"))
        else:
            told.add(key)
            lines += [f"  │ {line}" for line in trace]
            if tail:
                lines.append(_("  end of its log ({log_name}):", log_name=_log_name(outcome, str(rank))))
                lines += [f"  │ {line}" for line in tail]
        yield lines
    for log, name in (("command", _("the command's")), ("launcher", _("the launcher's"))):
        tail = without_probe(outcome.logs.end_of(log, 25))
        if tail and not any(told):
            told.add(tuple(tail))
            said += tail
            yield [
                _("  end of {name} log ({log_name}):", name=name, log_name=_log_name(outcome, log)),
                *(f"  │ {line}" for line in tail),
            ]
    refused = any(f.rule == "torch-refused" for f in outcome.findings)  # has its own advice
    script = next((shorter(word) for word in tl.run.command if word.endswith(".py")), "SCRIPT.py")
    advice = hint("\n".join(said), verb=verb, script=script, redirected=tl.run.redirected)
    if advice and not refused:
        yield [f"→ {clean(advice)}"]


def _failed(tl: m.Timeline) -> list[int]:
    """The ranks that failed of themselves; those that only followed (ended, or cut off) where there is no other."""
    own: list[int] = []
    followed: list[int] = []
    for rank in sorted({*range(tl.run.world_size or 0), *tl.ranks}):
        state = tl.ranks.get(rank)
        if state is not None and state.status in ("finished", "running", "waiting"):
            continue
        last_word = state.exit if state is not None else None
        cut_off = last_word is not None and (last_word.reason == "signal" or PEER_GONE.search(last_word.error))
        ended = state is not None and state.signal == signal.SIGTERM
        (followed if cut_off or ended else own).append(rank)
    return own or followed


def _last_words(outcome: Outcome, rank: int) -> tuple[list[str], list[str]]:
    """A rank's traceback without the probe's frames, and the end of its log without that traceback."""
    state = outcome.timeline.ranks.get(rank)
    text = state.exit.traceback if state is not None and state.exit is not None else ""
    trace = without_probe(clean(text, newlines=True).rstrip().splitlines())
    tail = outcome.logs.end_of(str(rank), 40)
    if trace:
        start = next((n for n, line in enumerate(tail) if line.endswith("Traceback (most recent call last):")), None)
        tail = tail[:start] if start is not None else []
    return trace, without_probe(tail)[-15:]


def without_probe(lines: list[str]) -> list[str]:
    """A traceback's lines without ddpviz's own frames: the user's code and PyTorch's are what it is about."""
    kept: list[str] = []
    skipping = False
    for line in lines:
        if _FRAME.match(line):
            skipping = _OURS in line
        elif not line.startswith("    "):
            skipping = False
        if not skipping:
            kept.append(line)
    return kept


_FRAME = re.compile(r'\s*File ".*", line \d+')
_OURS = os.sep + os.path.join("ddpviz", "probe") + os.sep


def _standing(tl: m.Timeline, rank: int) -> list[str]:
    """Where a rank of a hung job stands."""
    state = tl.ranks.get(rank)
    if state is None:
        return [_("◌ rank {rank} was never heard of", rank=rank)]
    waits = words.waiting_for(tl, state)
    if waits is not None and state.stack is not None:
        since = words.duration(max(tl.now_ns - state.stack.since, 0))
        first = _("◌ rank {rank} has waited {since} in {waits}", rank=rank, since=since, waits=clean(waits))
    else:
        event = words.last_event(tl, rank)
        first = _("◌ rank {rank} {status}", rank=rank, status=words.rank_word(state.status)) + (
            _("; last: {event}", event=clean(event)) if event else ""
        )
    frames = [clean(frame) for frame in state.stack.frames if _OURS not in frame] if state.stack is not None else []
    return [first, *(f"  │ {frame}" for frame in frames[:8])]


def _how(tl: m.Timeline, rank: int) -> str:
    """`failed with exit code 1 (ValueError: ...) after backward 3 ...`."""
    part = words.rank_end(tl, rank)
    event = words.last_event(tl, rank) if tl.modules else ""
    return clean(part + (_("; last: {event}", event=event) if event else ""))


def _log_name(outcome: Outcome, key: str) -> str:
    path = outcome.logs.path(key)
    return clean(shorter(str(path))) if path is not None else key


# --- summary ---------------------------------------------------------------------------------------------------------


def summary(tl: m.Timeline) -> Iterator[str]:
    """Passes, steps, bytes and replicas, in a few lines."""
    for module in tl.modules:
        name = f"{words.module_name(tl, module)}: " if len(tl.modules) > 1 else ""
        kinds = Counter(m.Sync(v) for v in module.verdicts.tolist())
        if tl.run.status != "running" and (open_ended := kinds.pop(m.Sync.RUNNING, 0)):
            kinds[m.Sync.UNFINISHED] += open_ended
        parts = [f"{count:,} {_(words.PASS_WORDS[kind])}" for kind, count in sorted(kinds.items())]
        yield f"  {name}{words.plural(module.passes, 'micro-step')}" + (": " + ", ".join(parts) if parts else "")
        sent, saved = traffic(module)
        less = (
            _(
                "; local passes saved {size} ({percent})",
                size=words.size(saved),
                percent=words.percent(saved / (sent + saved)),
            )
            if saved
            else ""
        )
        yield _("  {name}a rank sent {size} of gradients{less}", name=name, size=words.size(sent), less=less)
    if tl.steps or tl.modules:
        yield f"  {steps(tl)}"
    if tl.skipped:
        yield _("  {steps} skipped by GradScaler", steps=words.plural(len(tl.skipped), "step"))
    shares = [lane.passes["flags"] & 32 for module in tl.modules for lane in module.lanes.values()]
    if tl.run.budget is not None and shares:
        taken, total = sum(int(np.count_nonzero(s)) for s in shares), sum(len(s) for s in shares)
        yield _(
            "  norms and checksums sampled in {taken:,} of {total:,} passes (budget {budget:g} %)",
            taken=taken,
            total=total,
            budget=tl.run.budget,
        )
    lost = sum(state.dropped for state in tl.ranks.values())
    if lost:
        yield _("  {lost:,} records could not be written and are missing here", lost=lost)


def seen(tl: m.Timeline) -> Iterator[str]:
    """What a lesson showed, in numbers of this run."""
    one = lesson(tl.run.lesson)
    if one is not None and (sentences := told(one, tl)):
        yield _("What was seen: {title}", title=one.title)
        yield from (f"  {clean(sentence)}" for sentence in sentences)


def steps(tl: m.Timeline) -> str:
    """`2 steps, both on averaged gradients; replicas equal after each`."""
    if not tl.steps:
        return _("no optimizer step")
    used = Counter(step.gradients for step in tl.steps)
    parts = ", ".join(
        _("{count:,} on {kind}", count=count, kind=_(GRADIENT_WORDS[kind])) for kind, count in sorted(used.items())
    )
    diverged = next((step.index for step in tl.steps if step.replicas is m.Replicas.DIVERGED), None)
    known = sum(step.replicas is not m.Replicas.UNKNOWN for step in tl.steps)
    if diverged is not None:
        replicas = _("replicas diverged after step {diverged}", diverged=diverged)
    elif len(tl.ranks) < 2:
        replicas = _("one rank only")
    elif known == len(tl.steps):
        replicas = _("replicas equal after every step")
    else:
        replicas = (
            _("replicas equal after {known:,} steps that were measured", known=known)
            if known
            else _("replicas not measured")
        )
    return f"{words.plural(len(tl.steps), 'step')}: {parts}; {replicas}"


GRADIENT_WORDS = {
    m.Gradients.SYNCED: N_("averaged gradients"),
    m.Gradients.LOCAL: N_("gradients never averaged"),
    m.Gradients.STALE: N_("gradients averaged and then added to locally"),
    m.Gradients.MIXED: N_("gradients averaged in part"),
    m.Gradients.NONE: N_("no gradients"),
}


def found_words(outcome: Outcome) -> str:
    """`1 error and 2 warnings`, or an empty string."""
    counts = Counter(f.severity for f in outcome.findings if f.severity > Severity.INFO)
    return _(" and ").join(words.plural(counts[s], s.word) for s in (Severity.ERROR, Severity.WARNING) if counts[s])


def ending(outcome: Outcome, out: Console) -> str:
    """How the job ended and what was found, in one line; no verdict."""
    run, found = outcome.timeline.run, found_words(outcome)
    code = _(" with exit code {exit_code}", exit_code=run.exit_code) if run.exit_code else ""
    style = "good" if run.status == "finished" and not found else "warning" if run.status == "finished" else "error"
    seen = "" if outcome.timeline.modules else _("; no DistributedDataParallel module was seen")
    return out.paint(f"{run.status}{code}: {found or 'no findings'}{seen}", style) + _recorded(outcome)


def _recorded(outcome: Outcome) -> str:
    return _("  (recorded: ddpviz watch {id})", id=outcome.timeline.run.id) if outcome.timeline.run.id else ""


def last_line(outcome: Outcome, out: Console, fail_on: str) -> str:
    """The verdict in one line."""
    run, found, recorded = outcome.timeline.run, found_words(outcome), _recorded(outcome)
    if outcome.signum is not None:
        return out.paint(_("interrupted: the job was ended"), "warning") + recorded
    if run.status == "hung":
        return out.paint(_("HUNG: the job was ended") + (f"; {found}" if found else ""), "error") + recorded
    if run.status != "finished":
        code = _(" with exit code {exit_code}", exit_code=run.exit_code) if run.exit_code is not None else ""
        return (
            out.paint(_("FAILED: the job ended{code}", code=code) + (f"; {found}" if found else ""), "error") + recorded
        )
    if outcome.failing(fail_on):
        return out.paint(_("FAILED: {found}", found=found), "error") + recorded
    if not outcome.timeline.modules:
        return out.paint(_("no DistributedDataParallel module was seen in this job"), "warning") + recorded
    return (
        out.paint(
            "OK" + (_(": {found} (not failing, --fail-on {fail_on})", found=found, fail_on=fail_on) if found else ""),
            "good",
        )
        + recorded
    )
