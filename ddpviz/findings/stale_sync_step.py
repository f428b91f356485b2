"""stale-sync-step: gradients were averaged, and then more was added on each rank alone before the step.

Measured: which passes of the window issued their collectives, and which came after the last of these.

Fires when the last pass behind a step was local and an earlier one of the same window was all-reduced: what was added
after the all-reduce stays local. Local passes before the all-reduce are right, since the sum is what is averaged.

Does not fire where the gradients were averaged by hand afterwards, or by something that makes them bit-equal.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpviz.findings import cause, facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _, ngettext
from ddpviz.timeline.model import Gradients, Replicas, Sync, Timeline


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        used = facts.steps_with(tl, module, Gradients.STALE)
        if used is None or facts.averaged_unseen(tl, module, used):
            continue
        lane = module.lanes[used.first_ranks[0]]
        row = facts.step_row(lane, used.first)
        behind = [int(i) for i in facts.passes_behind(lane, row)] if row is not None else []
        sent = [i for i in behind if lane.sync[i] != int(Sync.LOCAL)]
        added = [i for i in behind if not sent or i > sent[-1]]
        why = cause.why_local(tl, module, lane, added)
        where, of = used.first.site, words.of(tl, module)
        averaged = _(" in {micro_step}", micro_step=words.numbered("micro-step", sent[-1:])) if sent else ""
        late = words.numbered("micro-step", added) if added else _("more")
        message = ngettext(
            "Step {index}{of}{at} used gradients that were averaged{averaged}, after which {late} was added on each "
            "rank alone: what comes after the all-reduce stays local. {sentence}.",
            "Step {index}{of}{at} used gradients that were averaged{averaged}, after which {late} were added on each "
            "rank alone: what comes after the all-reduce stays local. {sentence}.",
            min(len(added), 2),
            index=used.first.index,
            of=of,
            at=words.at(where),
            averaged=averaged,
            late=late,
            sentence=why.sentence,
        )
        if used.part.replicas is Replicas.DIVERGED:
            message += _(" The replicas are now different models.")
        advice = why.advice + "."
        if cause.off_by_one(lane, behind):
            advice = _(
                "Synchronise the last micro-step of a window instead of the first: leave no_sync() under the same "
                "condition as the step, such as (i + 1) % {count} == 0.",
                count=len(behind),
            )
        yield Finding(
            "stale-sync-step",
            Severity.ERROR,
            message + words.again(len(used.indices), facts.count_steps(tl, module)),
            advice,
            module=module.id,
            ranks=used.ranks,
            count=len(used.indices),
            backward=added[0] if added else None,
            step=used.first.index,
            file=where.file,
            line=where.line,
            code=where.code,
            via=where.via,
            steps=used.steps,
            backwards=tuple(added),
        )
