"""never-used-parameter: a parameter that no backward pass gave a gradient, on any rank.

Measured: which parameters received a gradient in any pass of the run, from the process's last record.

Fires at the end of a job for parameters that DDP manages and that no rank ever gave a gradient. With
find_unused_parameters=True or static_graph=True, where unused parameters are expected now and then, it takes at least
eight passes on every rank, so that a branch that is drawn at random has had its chance.

Does not fire while the job runs; for parameters that were replaced after wrapping (unmanaged-parameter); for
parameters that only some passes or only some ranks use; where PyTorch itself refused because of them (torch-refused
names them).
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpviz.findings import facts, torch_refused, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Timeline

_CHANCES = 8


def check(tl: Timeline) -> Iterator[Finding]:
    if not facts.ended(tl.run):
        return
    for module in tl.modules:
        records = [lane.unused for lane in facts.lanes(module) if lane.unused is not None and lane.unused.passes]
        if not records or len(records) < len(module.ranks) or not all(u.final for u in records):
            continue
        if any(rank in tl.ranks and torch_refused.explained(tl, tl.ranks[rank]) for rank in module.ranks):
            continue
        expected = bool(module.options.get("find_unused_parameters") or module.options.get("static_graph"))
        passes = min(u.passes for u in records)
        if passes < (_CHANCES if expected else 1):
            continue
        unused = set(records[0].params).intersection(*(u.params for u in records[1:]))
        replaced = {n for us in tl.unmanaged.values() for u in us if u.module == module.id for n in u.names}
        unused = {p for p in unused if p < len(module.params) and module.params[p].managed}
        unused = {p for p in unused if module.params[p].name not in replaced}  # unmanaged-parameter says that
        if not unused:
            continue
        names = words.layers(module, sorted(unused))
        numel = sum(module.params[p].numel for p in unused)
        each = _(" They are sent in every all-reduce all the same.") if len(module.ranks) > 1 else ""
        yield Finding(
            "never-used-parameter",
            Severity.WARNING,
            _(
                "{parameters}{of} ({names}; {elements}) received no gradient in any of {micro_steps} on any "
                "rank.{each}",
                parameters=words.plural(len(unused), "parameter"),
                of=words.of(tl, module),
                names=names,
                elements=words.plural(numel, "element"),
                micro_steps=words.plural(passes, "micro-step"),
                each=each,
            ),
            _(
                "Use them in the loss, or remove them or freeze them (requires_grad_(False)) before wrapping; then "
                "find_unused_parameters is not needed either."
            ),
            module=module.id,
            ranks=module.ranks,
            count=len(unused),
            file=module.site.file,
            line=module.site.line,
            code=module.site.code,
            via=module.site.via,
        )
