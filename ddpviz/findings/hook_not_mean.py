"""hook-not-mean: what a communication hook gives back is not the mean over the ranks.

Measured: the sum of each bucket's elements on every rank before the hook, and after it. A sum is linear, so the mean of
the ranks' sums is what a mean must have; the slope of after against mean over all measured buckets tells what came
back, and rounding of a half-precision or otherwise lossy hook does not disturb it.

Fires for modules with a user's hook when the slope is the number of ranks (a sum), its inverse (divided twice), when
each rank got back what it had put in (nothing sent, though the reducer went through its cycle), or when nothing was
sent and the step used these gradients.

Does not fire without a hook; where the sums are too small or too alike to tell; where the script averages by hand after
a hook that sends nothing; for lossy hooks whose slope is near 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Gradients, Lane, Module, Sync, Timeline
from ddpviz.trace.records import BucketFlag, PassFlag

_TOLERANCE = 0.05  # of the slope: half precision loses about 0.001


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        if not module.hook and not any(facts.has(n.passes, PassFlag.COMM_HOOK).any() for n in facts.lanes(module)):
            continue
        silent = {lane.rank: _silent(lane) for lane in facts.lanes(module)}
        ranks = tuple(rank for rank, indices in silent.items() if len(indices))
        if ranks:
            yield _finding(tl, module, ranks, silent[ranks[0]], "silent")
            continue
        passes, kind = _compare(module)
        if kind:
            yield _finding(tl, module, module.ranks, passes, kind)


def _silent(lane: Lane) -> facts.Ints:
    """Passes whose buckets the hook got and sent nowhere, and which fed a step of never-averaged gradients."""
    _rest, step = facts.segments(lane)
    if not len(step) or not len(lane.gradients):
        return np.zeros(0, np.int64)
    local = (lane.gradients == int(Gradients.LOCAL))[np.maximum(step, 0)] & (step >= 0)
    handed = np.zeros(len(step), bool)
    handed[lane.buckets["pass"][lane.buckets["pass"] < len(step)]] = True
    handed &= facts.has(lane.passes, PassFlag.COMM_HOOK) & (lane.passes["launched"] == 0)
    return np.flatnonzero(local & handed & (lane.sync == int(Sync.LOCAL)))


def _compare(module: Module) -> tuple[facts.Ints, str]:
    """Passes compared, and "sum", "twice", "own" or "" for a mean or too little to tell."""
    none = np.zeros(0, np.int64)
    if set(module.lanes) != set(module.ranks):
        return none, ""
    tables = []
    for rank in module.ranks:
        rows = module.lanes[rank].buckets
        rows = rows[facts.has(rows, BucketFlag.HAS_SUMS | BucketFlag.SENT)]
        tables.append(rows[np.isfinite(rows["sum_before"]) & np.isfinite(rows["sum_after"])])
    keys = [(t["pass"].astype(np.int64) << 32) | (t["layout"].astype(np.int64) << 16) | t["index"] for t in tables]
    common = keys[0]
    for other in keys[1:]:
        common = np.intersect1d(common, other)
    if not len(common):
        return none, ""
    at = [
        np.searchsorted(k, common) if np.all(k[1:] >= k[:-1]) else np.array([np.flatnonzero(k == c)[0] for c in common])
        for k in keys
    ]
    before = np.array([t["sum_before"][i].astype(float) for t, i in zip(tables, at, strict=True)])
    after = np.array([t["sum_after"][i].astype(float) for t, i in zip(tables, at, strict=True)])
    mean = before.mean(0)
    # where the ranks' sums cancel out, rounding is all that is left
    clear = np.abs(mean) > 0.05 * np.abs(before).max(0)
    if not clear.any():
        return none, ""
    passes = np.unique(common >> 32)
    got, want = after[:, clear].mean(0), mean[clear]
    slope = float((got * want).sum() / (want * want).sum())
    noise = float(np.linalg.norm(got - slope * want) / np.linalg.norm(want))
    n = len(module.ranks)
    spread = float(np.abs(before - mean).max() / np.abs(before).max())
    if spread > 0.01 and np.allclose(after, before, rtol=1e-3, atol=1e-6 * float(np.abs(before).max())):
        return passes, "own"
    for name, value in (("sum", float(n)), ("twice", 1.0 / n)):
        if abs(slope - value) < _TOLERANCE * value and noise < _TOLERANCE * value:
            return passes, name
    return none, ""


def _finding(tl: Timeline, module: Module, ranks: tuple[int, ...], passes: facts.Ints, kind: str) -> Finding:
    first, n = int(passes[0]), len(module.ranks)
    lane = module.lanes[ranks[0]]
    where = tl.site(lane.rank, int(lane.passes[first]["backward_site"])) if first < len(lane.passes) else module.site
    hook = _(
        "The communication hook{name}{of}",
        name=" " + repr(module.hook) if module.hook else "",
        of=words.of(tl, module),
    )
    measured = _(
        "measured in {micro_steps} from micro-step {first} on",
        micro_steps=words.plural(len(passes), "micro-step"),
        first=first,
    )
    message, advice = {
        "sum": (
            _(
                "{hook} returns the sum over the {n} ranks, not their mean ({measured}): every gradient, and with "
                "it the effective learning rate, is {n} times what DDP would give.",
                hook=hook,
                n=n,
                measured=measured,
            ),
            _(
                "Divide in the hook: bucket.buffer().div_({n}) before the all-reduce, with dist.get_world_size() "
                "for the number.",
                n=n,
            ),
        ),
        "twice": (
            _(
                "{hook} returns the mean divided once more by the {n} ranks ({measured}): gradients are {n} times "
                "too small.",
                hook=hook,
                n=n,
                measured=measured,
            ),
            _("Divide by the world size once: in the hook, or in the loss, not in both."),
        ),
        "own": (
            _(
                "{hook} gives each rank back what it put in ({measured}): a collective runs, but no rank receives "
                "the others' gradients.",
                hook=hook,
                measured=measured,
            ),
            _("Return the future of the all-reduced tensor, so that the reducer copies that back."),
        ),
        "silent": (
            _(
                "{hook} sent nothing in {micro_steps} from micro-step {first} on: DDP handed it the buckets and "
                "took them back unchanged.",
                hook=hook,
                micro_steps=words.plural(len(passes), "micro-step"),
                first=first,
            ),
            _("Let the hook all-reduce bucket.buffer() and divide by the world size, or do not register it."),
        ),
    }[kind]
    return Finding(
        "hook-not-mean",
        Severity.WARNING,
        message,
        advice,
        module=module.id,
        ranks=ranks,
        count=len(passes),
        backward=first,
        file=where.file,
        line=where.line,
        code=where.code,
        via=where.via,
    )
