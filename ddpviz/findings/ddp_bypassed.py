"""ddp-bypassed: gradients arrived without a forward of the DDP wrapper, and were not averaged before the step.

Measured: whether a DDP forward with gradients came before each backward pass, whether any collective was issued for it,
and what the step used.

Fires when a step used never-averaged gradients and no pass behind it had a DDP forward: the model was called as
`ddp.module(x)`, or through a name that was taken before wrapping.

Does not fire where such gradients are averaged by hand, or by a reducer that another DDP forward had armed; where they
reach no step (a rollout, a critic that another model is trained through); for gradients without any backward pass
(unsynced-step says that); with one rank.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _, ngettext
from ddpviz.timeline.model import Gradients, Lane, Timeline
from ddpviz.trace.records import PassFlag


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        used = facts.steps_with(tl, module, Gradients.LOCAL)
        if used is None:
            continue
        sgd = facts.local_sgd(tl, module)
        if (sgd is not None and sgd.equal) or facts.averaged_unseen(tl, module, used):
            continue
        found = {rank: _bypassing(module.lanes[rank]) for rank in used.ranks}
        ranks = tuple(rank for rank, indices in found.items() if len(indices))
        if not ranks:
            continue
        lane, indices = module.lanes[ranks[0]], found[ranks[0]]
        first = int(indices[0])
        where = tl.site(lane.rank, int(lane.passes[first]["backward_site"]))
        of = words.of(tl, module)
        whole = len(indices) == len(lane.passes)
        came = (
            _("No backward pass{of}{at} came from a forward of the DDP wrapper", of=of, at=words.at(where))
            if whole
            else ngettext(
                "{micro_steps}{of}{at} did not come from a forward of the DDP wrapper",
                "{micro_steps}{of}{at} did not come from a forward of the DDP wrapper",
                min(len(indices), 2),
                micro_steps=words.start(words.numbered("micro-step", indices)),
                of=of,
                at=words.at(where),
            )
        )
        yield Finding(
            "ddp-bypassed",
            Severity.ERROR,
            _(
                "{came}: the wrapped module was called directly, so DDP never prepared its all-reduce, and "
                "{micro_steps} of gradients on {ranks} went into steps without being averaged.",
                came=came,
                micro_steps=words.plural(len(indices), "micro-step"),
                ranks=words.ranks(ranks, module.ranks),
            ),
            _(
                "Call the wrapper, model(x), instead of model.module(x) or the bare network, wherever the loss is "
                "trained on; .module is for saving and for evaluation without gradients."
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


def _bypassing(lane: Lane) -> facts.Ints:
    """Passes without a DDP forward that fed a step of never-averaged gradients."""
    _rest, step = facts.segments(lane)
    if not len(step):
        return np.zeros(0, np.int64)
    local = lane.gradients == int(Gradients.LOCAL)
    fed = (step >= 0) & local[np.maximum(step, 0)] if len(local) else np.zeros(len(step), bool)
    return np.flatnonzero(fed & ~facts.has(lane.passes, PassFlag.FORWARD_SEEN))
