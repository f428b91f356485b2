"""A check's verdict as text that reads well in a CI log without opening anything else. Outcome in, lines out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ddpviz.export import words
from ddpviz.export.source import source
from ddpviz.findings.model import Finding, Severity
from ddpviz.headless.console import Console
from ddpviz.headless.outcome import Outcome, worst_first
from ddpviz.timeline import model as m
from ddpviz.timeline.trends import traffic
from ddpviz.trace.text import clean

MARKS = {Severity.ERROR: "✗", Severity.WARNING: "▲", Severity.INFO: "·"}


def verdict(outcome: Outcome, out: Console, *, fail_on: str = "error", verb: str = "check") -> Iterator[str]:
    """The whole text: header, findings, failed ranks, summary, last line."""
    yield out.paint(header(outcome.timeline, verb), "bold")
    for note in outcome.timeline.run.notes:
        yield f"  note: {clean(note)}"
    yield ""
    shown = [f for f in worst_first(outcome.findings) if f.severity > Severity.INFO]
    for finding in shown:
        yield from finding_lines(finding, out)
        yield ""
    for finding in worst_first(outcome.findings):
        if finding.severity is Severity.INFO:
            yield from brief(finding, out)
    if any(f.severity is Severity.INFO for f in outcome.findings):
        yield ""
    failed = list(failures(outcome, out))
    yield from failed
    yield from summary(outcome.timeline)
    yield ""
    yield last_line(outcome, out, fail_on)


def header(tl: m.Timeline, verb: str) -> str:
    """`ddpviz check train.py: 2 ranks, gloo (no CUDA device), torch 2.14.1`."""
    run = tl.run
    ranks = run.world_size or len(tl.ranks)
    backend = run.backend or "backend not known"
    parts = [
        words.plural(ranks, "rank") if ranks else "no rank seen",
        f"{backend} ({clean(run.backend_reason)})" if run.backend_reason else backend,
        *([f"torch {run.torch}"] if run.torch else []),
        *(["redirected to the CPU by --cpu"] if run.redirected else []),
    ]
    return f"ddpviz {verb}  {clean(command(tl))}: " + ", ".join(parts)


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
    mark = out.paint(f"{MARKS[finding.severity]} {style}  {finding.rule}", style)
    times = f"  ({finding.count} times)" if finding.count > 1 else ""
    yield f"{mark}{where(finding, out)}{times}"
    yield f"  {clean(finding.message)}"
    yield from ("    " + out.paint(line, "dim") for line in source_lines(finding))
    if finding.via:
        yield f"  called through {clean(finding.via)}"
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


def failures(outcome: Outcome, out: Console) -> Iterator[str]:
    """Each rank that failed or hangs, with its own traceback and the end of its log."""
    tl = outcome.timeline
    if tl.run.status == "finished" or outcome.signum is not None:
        return
    told: set[tuple[str, ...]] = set()
    for rank in sorted({*range(tl.run.world_size or 0), *tl.ranks}):
        state = tl.ranks.get(rank)
        if tl.run.status == "hung":
            yield from _standing(tl, rank)
            continue
        ended_by_others = state is not None and state.exit is not None and state.exit.reason == "signal"
        if ended_by_others or (state is not None and state.status in ("finished", "running", "waiting")):
            continue
        last_word = state.exit if state is not None else None
        trace = clean(last_word.traceback, newlines=True).rstrip().splitlines() if last_word is not None else []
        tail = _before_traceback(outcome.logs.end_of(str(rank)), bool(trace))
        yield out.paint(f"✗ rank {rank} {_how(tl, rank)}", "error")
        if (key := tuple(trace or tail)) and key in told:
            yield "  with the same error"
        else:
            told.add(key)
            yield from (f"  │ {line}" for line in trace)
            if tail:
                yield f"  end of its log ({_log_name(outcome, str(rank))}):"
                yield from (f"  │ {line}" for line in tail)
        yield ""
    tail = outcome.logs.end_of("command", 25)
    if tail and tl.run.status == "failed" and not any(told):
        yield f"  end of the command's log ({_log_name(outcome, 'command')}):"
        yield from (f"  │ {line}" for line in tail)
        yield ""


def _standing(tl: m.Timeline, rank: int) -> Iterator[str]:
    """Where a rank of a hung job stands."""
    state = tl.ranks.get(rank)
    if state is None:
        yield f"  rank {rank} was never heard of"
        return
    waits = words.waiting_for(tl, state)
    if waits is not None and state.stack is not None:
        since = words.duration(max(tl.now_ns - state.stack.since, 0))
        yield f"◌ rank {rank} has waited {since} in {clean(waits)}"
    else:
        event = words.last_event(tl, rank)
        yield f"◌ rank {rank} is {state.status}" + (f"; last: {clean(event)}" if event else "")
    if state.stack is not None:
        yield from (f"  │ {clean(frame)}" for frame in state.stack.frames[:8])
    yield ""


def _how(tl: m.Timeline, rank: int) -> str:
    """`failed with exit code 1 (ValueError: ...) after backward 3 ...`."""
    part = words.rank_end(tl, rank)
    event = words.last_event(tl, rank) if tl.modules else ""
    return clean(part + (f"; last: {event}" if event else ""))


def _before_traceback(lines: list[str], cut: bool) -> list[str]:
    """A log's end without the traceback that is shown in full already."""
    if not cut:
        return lines
    for number, line in enumerate(lines):
        if line.endswith("Traceback (most recent call last):"):
            return lines[:number]
    return [] if lines and lines[0].startswith(" ") else lines[:0]


def _log_name(outcome: Outcome, key: str) -> str:
    path = outcome.logs.path(key)
    return clean(shorter(str(path))) if path is not None else key


# --- summary ---------------------------------------------------------------------------------------------------------


def summary(tl: m.Timeline) -> Iterator[str]:
    """Passes, steps, bytes and replicas, in a few lines."""
    for module in tl.modules:
        name = f"{words.module_name(tl, module)}: " if len(tl.modules) > 1 else ""
        kinds = Counter(m.Sync(v) for v in module.verdicts.tolist())
        parts = [f"{count:,} {words.PASS_WORDS[kind]}" for kind, count in sorted(kinds.items())]
        yield f"  {name}{words.plural(module.passes, 'micro-step')}" + (": " + ", ".join(parts) if parts else "")
        sent, saved = traffic(module)
        share = f" ({words.percent(saved / (sent + saved))})" if sent + saved else ""
        yield f"  {name}a rank sent {words.size(sent)} of gradients; local passes saved {words.size(saved)}{share}"
    if tl.steps or tl.modules:
        yield f"  {steps(tl)}"
    if tl.skipped:
        yield f"  {words.plural(len(tl.skipped), 'step')} skipped by GradScaler"
    shares = [lane.passes["flags"] & 32 for module in tl.modules for lane in module.lanes.values()]
    if tl.run.budget is not None and shares:
        taken, total = sum(int(np.count_nonzero(s)) for s in shares), sum(len(s) for s in shares)
        yield f"  norms and checksums sampled in {taken:,} of {total:,} passes (budget {tl.run.budget:g} %)"
    lost = sum(state.dropped for state in tl.ranks.values())
    if lost:
        yield f"  {lost:,} records could not be written and are missing here"


def steps(tl: m.Timeline) -> str:
    """`2 steps, both on averaged gradients; replicas equal after each`."""
    if not tl.steps:
        return "no optimizer step"
    used = Counter(step.gradients for step in tl.steps)
    parts = ", ".join(f"{count:,} on {GRADIENT_WORDS[kind]}" for kind, count in sorted(used.items()))
    diverged = next((step.index for step in tl.steps if step.replicas is m.Replicas.DIVERGED), None)
    known = sum(step.replicas is not m.Replicas.UNKNOWN for step in tl.steps)
    if diverged is not None:
        replicas = f"replicas diverged after step {diverged}"
    elif len(tl.ranks) < 2:
        replicas = "one rank only"
    elif known == len(tl.steps):
        replicas = "replicas equal after every step"
    else:
        replicas = f"replicas equal after {known:,} steps that were measured" if known else "replicas not measured"
    return f"{words.plural(len(tl.steps), 'step')}: {parts}; {replicas}"


GRADIENT_WORDS = {
    m.Gradients.SYNCED: "averaged gradients",
    m.Gradients.LOCAL: "gradients never averaged",
    m.Gradients.STALE: "gradients averaged and then added to locally",
    m.Gradients.MIXED: "gradients averaged in part",
    m.Gradients.NONE: "no gradients",
}


def found_words(outcome: Outcome) -> str:
    """`1 error and 2 warnings`, or an empty string."""
    counts = Counter(f.severity for f in outcome.findings if f.severity > Severity.INFO)
    return " and ".join(words.plural(counts[s], s.word) for s in (Severity.ERROR, Severity.WARNING) if counts[s])


def ending(outcome: Outcome, out: Console) -> str:
    """How the job ended and what was found, in one line; no verdict."""
    run, found = outcome.timeline.run, found_words(outcome)
    code = f" with exit code {run.exit_code}" if run.exit_code else ""
    style = "good" if run.status == "finished" and not found else "warning" if run.status == "finished" else "error"
    seen = "" if outcome.timeline.modules else "; no DistributedDataParallel module was seen"
    return out.paint(f"{run.status}{code}: {found or 'no findings'}{seen}", style) + _recorded(outcome)


def _recorded(outcome: Outcome) -> str:
    return f"  (recorded: ddpviz watch {outcome.timeline.run.id})" if outcome.timeline.run.id else ""


def last_line(outcome: Outcome, out: Console, fail_on: str) -> str:
    """The verdict in one line."""
    run, found, recorded = outcome.timeline.run, found_words(outcome), _recorded(outcome)
    if outcome.signum is not None:
        return out.paint("interrupted: the job was ended", "warning") + recorded
    if run.status == "hung":
        return out.paint("HUNG: the job was ended" + (f"; {found}" if found else ""), "error") + recorded
    if run.status != "finished":
        code = f" with exit code {run.exit_code}" if run.exit_code is not None else ""
        return out.paint(f"FAILED: the job ended{code}" + (f"; {found}" if found else ""), "error") + recorded
    if outcome.failing(fail_on):
        return out.paint(f"FAILED: {found}", "error") + recorded
    if not outcome.timeline.modules:
        return out.paint("no DistributedDataParallel module was seen in this job", "warning") + recorded
    return out.paint("OK" + (f": {found} (not failing, --fail-on {fail_on})" if found else ""), "good") + recorded
