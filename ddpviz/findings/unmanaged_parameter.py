"""unmanaged-parameter: the optimizer updates parameters whose gradients nobody averages.

Measured: the parameters that the optimizer holds and the reducer does not (created, replaced or unfrozen after
wrapping, or outside every DDP module), with the gradients that reach them; and gradients in buckets whose all-reduce
was never sent though others were.

Fires when a step updates such parameters from rank-local gradients. The names are given, and the reason.

Does not fire where the script averages at least as many elements by hand before the step; for parameters without
gradients; with one rank; nor where the whole step is local (unsynced-step says that, with this as its cause), unless
parameters were replaced or added after wrapping.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import NN_, _, ngettext
from ddpviz.timeline.model import Gradients, Lane, Module, Sync, Timeline
from ddpviz.trace.records import BucketFlag, StepFlag

_REASONS = {
    "added": NN_("was created after the model was wrapped", "were created after the model was wrapped"),
    "replaced": NN_(
        "was replaced after the model was wrapped, as load_state_dict(assign=True) does",
        "were replaced after the model was wrapped, as load_state_dict(assign=True) does",
    ),
    "unfrozen": NN_(
        "was frozen when the model was wrapped, and unfrozen later",
        "were frozen when the model was wrapped, and unfrozen later",
    ),
    "outside": NN_("is outside the wrapped module", "are outside the wrapped module"),
}
_UNKNOWN = NN_("is not known to the reducer", "are not known to the reducer")


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        sgd = facts.local_sgd(tl, module)
        if sgd is not None and sgd.equal:
            continue
        found = {lane.rank: _steps(tl, module, lane) for lane in facts.lanes(module)}
        ranks = tuple(rank for rank, steps in found.items() if len(steps))
        if ranks:
            yield _finding(tl, module, ranks, found[ranks[0]])
            continue
        unsent = {lane.rank: _unsent(lane) for lane in facts.lanes(module)}
        ranks = tuple(rank for rank, indices in unsent.items() if len(indices))
        if ranks:
            yield _never_ready(tl, module, ranks, unsent[ranks[0]])


def _steps(tl: Timeline, module: Module, lane: Lane) -> facts.Ints:
    """Positions of the steps that updated unmanaged parameters from gradients that nobody averaged."""
    numel = sum(sum(u.numels) for u in tl.unmanaged.get(lane.rank, []) if u.module == module.id)
    if not numel or not len(lane.steps):
        return np.zeros(0, np.int64)
    bad = (lane.steps["unmanaged"] > 0) & (lane.steps["by_hand"] < numel)
    bad &= ~facts.has(lane.steps, StepFlag.NO_GRADS) & (lane.gradients != int(Gradients.SYNCED))
    return np.flatnonzero(bad)


def _finding(tl: Timeline, module: Module, ranks: tuple[int, ...], steps: facts.Ints) -> Finding:
    lane = module.lanes[ranks[0]]
    mine = [u for u in tl.unmanaged.get(lane.rank, []) if u.module == module.id]
    names = list(dict.fromkeys(n for u in mine for n in u.names))
    reasons = [ngettext(*_REASONS.get(k, _UNKNOWN), min(len(names), 2)) for k in dict.fromkeys(u.reason for u in mine)]
    why = words.listed(reasons)
    row = lane.steps[steps[0]]
    where = tl.site(lane.rank, int(row["site"]))
    wrapped = words.at(module.site)
    whole = all(u.reason == "outside" for u in mine)
    advice = (
        _(
            "Make them part of the module before wrapping it, or average their gradients by hand before the "
            "step: dist.all_reduce(p.grad); p.grad /= dist.get_world_size()."
        )
        if whole
        else _(
            "Build, load and unfreeze first, and wrap in DistributedDataParallel last{wrapped}; or wrap again "
            "afterwards.",
            wrapped=wrapped,
        )
    )
    return Finding(
        "unmanaged-parameter",
        Severity.ERROR,
        ngettext(
            "{parameters} {why}, so DDP does not average its gradients, and step {index}{of}{at} updated it on "
            "each rank alone.{again}",
            "{parameters} {why}, so DDP does not average their gradients, and step {index}{of}{at} updated them on "
            "each rank alone.{again}",
            min(len(names), 2),
            parameters=words.start(words.parameters(names)),
            why=why,
            index=int(row["index"]),
            of=words.of(tl, module),
            at=words.at(where),
            again=words.again(len(steps), len(lane.steps)),
        ),
        advice,
        module=module.id,
        ranks=ranks,
        count=len(steps),
        backward=int(row["after"]) if int(row["after"]) >= 0 else None,
        step=int(row["index"]),
        file=where.file,
        line=where.line,
        code=where.code,
        via=where.via,
        steps=tuple(int(i) for i in lane.steps["index"][steps]),
    )


def _unsent(lane: Lane) -> facts.Ints:
    """Passes that fed a step and left gradients in buckets that were never sent, while others were."""
    _rest, step = facts.segments(lane)
    if not len(step):
        return np.zeros(0, np.int64)
    mixed = (lane.gradients == int(Gradients.MIXED))[np.maximum(step, 0)] if len(lane.gradients) else step < -2
    partial = (lane.sync == int(Sync.PARTIAL)) & (lane.passes["launched"] < lane.passes["buckets"]) & (step >= 0)
    return np.flatnonzero(partial & mixed & (lane.passes["unreduced"] > 0))


def _never_ready(tl: Timeline, module: Module, ranks: tuple[int, ...], indices: facts.Ints) -> Finding:
    lane, first = module.lanes[ranks[0]], int(indices[0])
    row, rows = lane.passes[first], lane.buckets_of(first)
    layout = int(rows[0]["layout"]) if len(rows) else len(module.layouts) - 1
    buckets = module.layouts[layout].buckets if 0 <= layout < len(module.layouts) else []
    sent = {int(b["index"]) for b in rows[facts.has(rows, BucketFlag.SENT)]}
    missing = [p for i, params in enumerate(buckets) if i not in sent for p in params]
    unused = [p for p in (lane.unused.params if lane.unused is not None else []) if p in missing]
    where = tl.site(lane.rank, int(row["backward_site"]))
    cause = _(", since {layers} received no gradient", layers=words.layers(module, unused)) if unused else ""
    return Finding(
        "unmanaged-parameter",
        Severity.ERROR,
        _(
            "In micro-step {first}{of}{at} {buckets} of {all} never became complete{cause}, so the "
            "gradients of {layers} were not averaged although the step used them.",
            first=first,
            of=words.of(tl, module),
            at=words.at(where),
            buckets=words.plural(int(row["buckets"]) - int(row["launched"]), "bucket"),
            all=int(row["buckets"]),
            cause=cause,
            layers=words.layers(module, missing),
        ),
        _(
            "Use every parameter in the loss, freeze what is not used before wrapping, or pass "
            "find_unused_parameters=True to DistributedDataParallel."
        ),
        module=module.id,
        ranks=ranks,
        count=len(indices),
        backward=first,
        file=where.file,
        line=where.line,
        code=where.code,
        via=where.via,
        backwards=tuple(indices.tolist()),
    )
