"""never-stepped: the optimizer holds parameters that are not the wrapped module's, so no step uses its gradients.

Measured: the module's backward passes and steps, and what each optimizer that stepped holds: parameters of which DDP
modules, and how many elements of none.

Fires when a finished job ran backward passes through a module, no step or skipped step ever concerned it, and an
optimizer that holds parameters of no DDP module has exactly as many elements: it was built on a copy, or on the network
as it was before its parameters were replaced.

Does not fire for master weights in another type than the module's; for modules that are only looked at (attacks on the
input, saliency, a critic): their optimizers hold something else; while the job runs; for jobs that did not finish.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Timeline


def check(tl: Timeline) -> Iterator[Finding]:
    if tl.run.status != "finished":
        return
    for module in tl.modules:
        lanes = facts.lanes(module)
        if not lanes or any(not len(n.passes) or len(n.steps) or len(n.skipped) for n in lanes):
            continue
        found = [
            (rank, known)
            for (rank, _number), known in sorted(tl.optimizers.items())
            if rank in module.ranks and not known.modules and known.strays == module.numel
        ]
        if not found:
            continue
        rank, known = found[0]
        where = tl.site(rank, known.site)
        yield Finding(
            "never-stepped",
            Severity.WARNING,
            _(
                "No step used the gradients of {name}: its {micro_steps} changed nothing. {optimizer}{at} holds just "
                "as many elements, {count:,}, and they are not this module's parameters.",
                name=module.name,
                micro_steps=words.plural(max(len(n.passes) for n in lanes), "micro-step"),
                optimizer=known.name,
                at=words.at(where),
                count=known.strays,
            ),
            _(
                "Build the optimizer from the wrapped model itself, after it was copied, moved or loaded: "
                "torch.optim.SGD(model.parameters(), ...)."
            ),
            module=module.id,
            ranks=tuple(sorted({k for k, _known in found})),
            backward=0,
            file=where.file,
            line=where.line,
            code=where.code,
            via=where.via,
        )
