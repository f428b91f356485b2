"""Two runs side by side, in sentences: what differs, by how much, and what does not. Pure.

A difference of less than `SAME` is called the same: two runs of one job differ by that much anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ddpviz.export import words
from ddpviz.findings.model import Finding
from ddpviz.language import _
from ddpviz.timeline import model as m
from ddpviz.timeline.timing import communication
from ddpviz.timeline.trends import traffic
from ddpviz.trace import records as r
from ddpviz.trace.text import clean

SAME = 0.03  # share


@dataclass(frozen=True, slots=True)
class Figures:
    """What is compared of one run. None: not measured."""

    name: str
    ranks: int
    backend: str
    torch: str
    status: str
    passes: int
    synced: int
    steps: int
    wrong_steps: int
    replicas: str
    step_ns: float | None  # median time from one step's end to the next one's
    sent: int  # bytes that one rank put through all-reduces
    sent_per_step: float | None
    exposed_ns: float | None  # median over passes: all-reduce time after the backward's last gradient was ready
    hidden: float | None  # share of all-reduce time that ran beside the backward
    memory: int | None  # peak, bytes, the greatest of all ranks
    norm: float | None  # median norm of the averaged gradients that steps used
    rules: dict[str, str]  # rule -> severity


def figures(tl: m.Timeline, findings: Sequence[Finding], name: str) -> Figures:
    kinds = Counter(m.Sync(v) for module in tl.modules for v in module.verdicts.tolist())
    ends = np.array([step.end for step in tl.steps], np.float64)
    sent = sum(traffic(module)[0] for module in tl.modules)
    exposed, hidden = all_reduce_time(tl)
    replicas = Counter(step.replicas for step in tl.steps)
    lanes = [lane for module in tl.modules for lane in module.lanes.values()]
    norms = [rows["norm"][(rows["flags"] & int(r.PassFlag.HAS_NORM)) != 0] for rows in map(_stepped_on, lanes)]
    finite = np.concatenate(norms) if norms else np.zeros(0)
    finite = finite[np.isfinite(finite)]
    memory = max((int(lane.passes["memory"].max()) for lane in lanes if len(lane.passes)), default=0)
    return Figures(
        name=name,
        ranks=tl.run.world_size or len(tl.ranks),
        backend=tl.run.backend,
        torch=tl.run.torch,
        status=tl.run.status,
        passes=sum(module.passes for module in tl.modules),
        synced=kinds[m.Sync.SYNCED],
        steps=len(tl.steps),
        wrong_steps=sum(s.gradients in (m.Gradients.LOCAL, m.Gradients.STALE, m.Gradients.MIXED) for s in tl.steps),
        replicas=(
            "diverged"
            if replicas[m.Replicas.DIVERGED]
            else "equal"
            if replicas[m.Replicas.EQUAL]
            else "not known to be equal"
        ),
        step_ns=float(np.median(np.diff(ends))) if len(ends) > 2 else None,
        sent=sent,
        sent_per_step=sent / len(tl.steps) if len(tl.steps) else None,
        exposed_ns=exposed,
        hidden=hidden,
        memory=memory or None,
        norm=float(np.median(finite)) if len(finite) else None,
        rules={f.rule: f.severity.word for f in findings},
    )


def _stepped_on(lane: m.Lane) -> m.Rows:
    """The passes that a step came after: what was averaged before, in the middle of a window, no step has used."""
    after = lane.steps["after"]
    rows: m.Rows = lane.passes[after[(after >= 0) & (after < len(lane.passes))]]
    return rows


def all_reduce_time(tl: m.Timeline) -> tuple[float | None, float | None]:
    """Exposed all-reduce time of a synchronised pass (median over ranks and passes, ns), and the share hidden."""
    spent = [communication(lane) for module in tl.modules for lane in module.lanes.values()]
    exposed = np.concatenate([s.exposed for s in spent]) if spent else np.zeros(0)
    hidden = sum(int(s.hidden.sum()) for s in spent)
    total = hidden + int(exposed.sum())
    return (float(np.median(exposed)), hidden / total if total else None) if len(exposed) else (None, None)


def compare(a: Figures, b: Figures) -> Iterator[str]:
    """Each difference of run B from run A in one sentence, then what is the same."""
    yield f"A: {describe(a)}"
    yield f"B: {describe(b)}"
    yield ""
    same: list[str] = []
    differ = list(_setting(a, b)) + list(_verdicts(a, b, same)) + list(_numbers(a, b, same))
    yield from (f"- {line}" for line in differ)
    if not differ:
        yield _("No difference.")
    if same:
        yield _("The same: {join}.", join=", ".join(same))


def describe(f: Figures) -> str:
    steps = words.plural(f.steps, "step")
    backend = f", {clean(f.backend)}" if f.backend else ""
    torch = _(", torch {torch}", torch=clean(f.torch)) if f.torch else ""
    passes = words.plural(f.passes, "micro-step")
    return f"{clean(f.name)} ({words.plural(f.ranks, 'rank')}{backend}{torch}, {passes}, {steps})"


def _setting(a: Figures, b: Figures) -> Iterator[str]:
    if a.ranks != b.ranks:
        yield _(
            "A ran on {ranks}, B on {ranks2}; what follows compares a rank with a rank.",
            ranks=words.plural(a.ranks, "rank"),
            ranks2=b.ranks,
        )
    if a.backend != b.backend:
        yield _(
            "A used {value}, B {value2}.",
            value=clean(a.backend) or "no known backend",
            value2=clean(b.backend) or "no known backend",
        )
    if a.torch != b.torch:
        yield _("A ran on torch {value}, B on {value2}.", value=clean(a.torch) or "?", value2=clean(b.torch) or "?")
    if a.status != b.status:
        yield f"A {_ended(a.status)}, B {_ended(b.status)}."


def _ended(status: str) -> str:
    return {"hung": _("hung"), "running": _("is running"), "interrupted": _("was interrupted")}.get(
        status, clean(status)
    )


def _verdicts(a: Figures, b: Figures, same: list[str]) -> Iterator[str]:
    for rule in sorted(a.rules.keys() - b.rules.keys()):
        yield _("{rule} ({rules}) is found in A and gone in B.", rule=rule, rules=_(a.rules[rule]))
    for rule in sorted(b.rules.keys() - a.rules.keys()):
        yield _("{rule} ({rules}) is new in B.", rule=rule, rules=_(b.rules[rule]))
    if both := sorted(a.rules.keys() & b.rules.keys()):
        same.append(_("found in both: {join}", join=", ".join(both)))
    elif not a.rules and not b.rules:
        same.append(_("no findings"))
    share_a, share_b = a.synced / max(a.passes, 1), b.synced / max(b.passes, 1)
    if abs(share_a - share_b) > 0.005:
        yield (
            _(
                "A all-reduced {synced:,} of {passes:,} micro-steps ({percent}), B {synced2:,} of {passes2:,} "
                "({percent2}).",
                synced=a.synced,
                passes=a.passes,
                percent=words.percent(share_a),
                synced2=b.synced,
                passes2=b.passes,
                percent2=words.percent(share_b),
            )
        )
    else:
        same.append(_("the share of all-reduced micro-steps ({percent})", percent=words.percent(share_b)))
    if (a.wrong_steps > 0) != (b.wrong_steps > 0):
        yield (
            _(
                "{wrong_steps:,} of {steps} in A used gradients that were not averaged, {wrong_steps2:,} of "
                "{steps2:,} in B.",
                wrong_steps=a.wrong_steps,
                steps=words.plural(a.steps, "step"),
                wrong_steps2=b.wrong_steps,
                steps2=b.steps,
            )
        )
    if a.replicas != b.replicas:
        yield _(
            "The replicas are {replicas} in A and {replicas2} in B.", replicas=_(a.replicas), replicas2=_(b.replicas)
        )
    else:
        same.append(_("replicas {replicas}", replicas=_(a.replicas)))


def _numbers(a: Figures, b: Figures, same: list[str]) -> Iterator[str]:
    rows = (
        (_("the time a step"), _("A step takes"), a.step_ns, b.step_ns, words.duration),
        (_("the bytes a rank sends a step"), _("A rank sends a step"), a.sent_per_step, b.sent_per_step, words.size),
        (
            _("the exposed all-reduce time"),
            _("All-reduce time that the backward does not hide, a synchronised pass, is"),
            a.exposed_ns,
            b.exposed_ns,
            words.duration,
        ),
        (_("peak memory"), _("The peak memory of a rank is"), a.memory, b.memory, words.size),
        (
            _("the averaged gradient's norm"),
            _("The median norm of the averaged gradient is"),
            a.norm,
            b.norm,
            words.number,
        ),
    )
    for label, sentence, x, y, shown in rows:
        if x is None and y is None:
            continue
        if x is None or y is None:
            known, value = ("B", y) if y is not None else ("A", x)
            yield _(
                "{upper}{label} was measured in {known} alone ({shown}).",
                upper=label[0].upper(),
                label=label[1:],
                known=known,
                shown=shown(value or 0),
            )
        elif x == y or abs(y - x) <= SAME * max(abs(x), abs(y)):
            same.append(f"{label} ({shown(y)})")
        else:
            yield _(
                "{sentence} {shown} in A and {shown2} in B{times}.",
                sentence=sentence,
                shown=shown(x),
                shown2=shown(y),
                times=_times(x, y),
            )
    if a.hidden is not None and b.hidden is not None and abs(a.hidden - b.hidden) > SAME:
        yield (
            _(
                "{percent} of the all-reduce time is hidden behind the backward in A, {percent2} in B.",
                percent=words.percent(a.hidden),
                percent2=words.percent(b.hidden),
            )
        )


def _times(x: float, y: float) -> str:
    if not x or not y:
        return ""
    ratio = y / x
    if ratio >= 2:
        return _(", {ratio:.1f} times as much", ratio=ratio)
    return f", {words.percent(abs(ratio - 1))} {'more' if ratio > 1 else 'less'}"
