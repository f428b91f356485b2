"""unsynced-step: the optimizer stepped on gradients that were never averaged over the ranks.

Measured: every collective of the passes behind the step (none was issued for these gradients, by DDP or by hand), the
flags of `no_sync` to say why, the parameters' checksums after the step.

Fires as an error for each module whose step used rank-local gradients. Equal replicas are no excuse: with the same data
everywhere they stay equal by luck.

As information only where it is local SGD: a later collective averages the parameters, and the replicas end equal.

Does not fire with one rank; where gradients are averaged by hand, or by anything else that makes unequal gradients
bit-equal before the step; where all gradients are zero; for a rank that has none.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpviz.findings import cause, facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _, ngettext
from ddpviz.timeline.model import Gradients, Replicas, Timeline


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        used = facts.steps_with(tl, module, Gradients.LOCAL)
        if used is None or facts.averaged_unseen(tl, module, used):
            continue
        lane = module.lanes[used.first_ranks[0]]
        row = facts.step_row(lane, used.first)
        behind = [int(i) for i in facts.passes_behind(lane, row)] if row is not None else []
        of, where = words.of(tl, module), used.first.site
        sgd = facts.local_sgd(tl, module)
        if sgd is not None and sgd.equal:
            severity = Severity.INFO
            message = _(
                "Local SGD: {steps}{of} used each rank's own gradients{at}, and the parameters were averaged by a "
                "collective between steps. The replicas differ in between and are equal after the last averaging.",
                steps=words.plural(len(used.indices), "step"),
                of=of,
                at=words.at(where),
            )
            advice = _("Nothing to do if this is meant: by design the replicas differ between two averagings.")
        else:
            severity = Severity.ERROR
            why = cause.why_local(tl, module, lane, behind)
            message = ngettext(
                "Step {index}{of}{at} used gradients that were never averaged: {ranks} stepped on what it had computed "
                "alone. {sentence}.",
                "Step {index}{of}{at} used gradients that were never averaged: {ranks} stepped on what each had "
                "computed alone. {sentence}.",
                min(len(used.first_ranks), 2),
                index=used.first.index,
                of=of,
                at=words.at(where),
                ranks=words.ranks(used.first_ranks, module.ranks),
                sentence=why.sentence,
            )
            if used.part.replicas is Replicas.DIVERGED:
                message += _(" The replicas are now different models.")
            elif used.part.replicas is Replicas.EQUAL and used.part.grads_equal:
                message += _(" The replicas are still equal only because every rank computed the same gradients.")
            if sgd is not None:
                message += _(" Parameters were averaged by a collective at times, but the replicas do not end equal.")
            message += words.again(len(used.indices), facts.count_steps(tl, module))
            advice = why.advice + "."
        yield Finding(
            "unsynced-step",
            severity,
            message,
            advice,
            module=module.id,
            ranks=used.ranks,
            count=len(used.indices),
            backward=behind[-1] if behind else None,
            step=used.first.index,
            file=where.file,
            line=where.line,
            code=where.code,
            via=where.via,
            steps=used.steps,
        )
