"""nonfinite-gradient: NaN or Inf in the gradients, where it arose first, and the bucket that spread it.

Measured: norms of each rank's own gradients before any averaging, by pass and by layer, read on the writer thread; so a
NaN is seen on the rank where it arose, before the all-reduce hides it by giving it to all.

Fires when such gradients reached a step, or the job ended in failure with them. It names the first micro-step, the
ranks that had it then, the first layer, and the bucket and micro-step whose all-reduce spread it.

Does not fire for steps that GradScaler skipped (an Inf there is how it finds its scale), nor where the script itself
dropped the gradients before a step. Fires with one rank too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Lane, Module, Sync, Timeline
from ddpviz.trace.records import LayerFlag, PassFlag


def check(tl: Timeline) -> Iterator[Finding]:
    for module in tl.modules:
        found = {lane.rank: _used(tl, lane) for lane in facts.lanes(module)}
        found = {rank: indices for rank, indices in found.items() if len(indices)}
        if not found:
            continue
        first = min(int(indices[0]) for indices in found.values())
        ranks = tuple(rank for rank, indices in found.items() if int(indices[0]) == first)
        lane = module.lanes[ranks[0]]
        param, kind = _where(lane, first)
        where = tl.site(lane.rank, int(lane.passes[first]["backward_site"]))
        _rest, step = facts.segments(lane)
        used = int(lane.steps[step[first]]["index"]) if step[first] >= 0 else None
        name = module.params[param].name if 0 <= param < len(module.params) else ""
        message = _(
            "{kind} in the gradients{of} arose first on {ranks} in micro-step {first}{at}{name}.",
            kind=kind,
            of=words.of(tl, module),
            ranks=words.ranks(ranks, module.ranks),
            first=first,
            at=words.at(where),
            name=_(", in {name}", name=name) if name else "",
        )
        message += _spread(module, lane, first, param, ranks)
        message += _(" Step {used} used it.", used=used) if used is not None else _(" The job ended with it.")
        count = len(np.unique(np.concatenate(list(found.values()))))
        yield Finding(
            "nonfinite-gradient",
            Severity.ERROR,
            message,
            _(
                "Look at that rank's batch first (a bad sample, log or division of 0, an overflow in half "
                "precision); skip the step on all ranks if the averaged norm is not finite. For fp16 use "
                "torch.amp.GradScaler, which does that."
            ),
            module=module.id,
            ranks=ranks,
            count=count,
            backward=first,
            step=used,
            file=where.file,
            line=where.line,
            code=where.code,
            via=where.via,
            backwards=(first,),
        )


def _bad(lane: Lane) -> facts.Ints:
    known = facts.has(lane.passes, PassFlag.HAS_LOCAL_NORM)
    bad = known & ~np.isfinite(lane.passes["local_norm"])
    if lane.nonfinite is not None and lane.nonfinite.pass_index < len(bad):
        bad[lane.nonfinite.pass_index] = True
    return np.flatnonzero(bad)


def _used(tl: Timeline, lane: Lane) -> facts.Ints:
    """Passes with non-finite gradients that reached an executed step, or that a failed job ended with."""
    bad = _bad(lane)
    if not len(bad):
        return bad
    stretch, step = facts.segments(lane)
    failed = tl.run.status == "failed"
    last = stretch == stretch[-1]
    cleared = len(lane.clears) and int(lane.clears[-1]["after"]) >= len(lane.passes) - 1
    used: facts.Ints = bad[(step[bad] >= 0) | ((step[bad] == -1) & last[bad] & failed & (not cleared))]
    return used


def _where(lane: Lane, index: int) -> tuple[int, str]:
    """First parameter (-1: not known) and the kind of what it holds."""
    first = lane.nonfinite
    if first is not None and first.pass_index == index:
        return first.param, "NaN" if first.kind == "nan" else "Inf"
    rows = lane.layers_of(index)
    rows = rows[facts.has(rows, LayerFlag.HAS_LOCAL) & ~np.isfinite(rows["local_norm"])]
    if len(rows):
        return int(rows[0]["param"]), "NaN" if np.isnan(rows[0]["local_norm"]) else "Inf"
    return -1, "NaN" if np.isnan(lane.passes[index]["local_norm"]) else "Inf"


def _spread(module: Module, lane: Lane, index: int, param: int, ranks: tuple[int, ...]) -> str:
    """The all-reduce that gave it to the other ranks."""
    if len(module.ranks) == len(ranks):
        return ""
    window = lane.passes["window"]
    sent = np.flatnonzero((lane.sync == int(Sync.SYNCED)) & (window == window[index]))
    sent = sent[sent >= index]
    if not len(sent):
        return ""
    at = int(sent[0])
    rows = lane.buckets_of(at)
    layout = int(rows[0]["layout"]) if len(rows) else len(module.layouts) - 1
    buckets = module.layouts[layout].buckets if 0 <= layout < len(module.layouts) else []
    bucket = next((i for i, params in enumerate(buckets) if param in params), -1)
    which = (
        _(" of bucket {bucket} ({layers})", bucket=bucket, layers=words.layers(module, buckets[bucket]))
        if bucket >= 0
        else ""
    )
    return _(" The all-reduce{which} in micro-step {at} spread it to every rank.", which=which, at=at)
