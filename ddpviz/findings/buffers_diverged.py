"""buffers-diverged: BatchNorm statistics or other buffers differ across ranks at the end.

Measured: a checksum of every buffer when the process ended, compared across ranks.

Fires when they differ and DDP was told not to broadcast them (broadcast_buffers=False): each rank then evaluates
another model, and a checkpoint holds the statistics of one rank's data alone.

Does not fire where DDP broadcasts the buffers at each forward: they differ after every last forward then, and that is
how it works. Nor for ranks that finished under `join` or did not finish, nor for a single rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddpviz.findings import facts, words
from ddpviz.findings.model import Finding, Severity
from ddpviz.language import _
from ddpviz.timeline.model import Timeline


def check(tl: Timeline) -> Iterator[Finding]:
    for module in facts.shared(tl):
        records = [(lane.rank, lane.buffers) for lane in facts.lanes(module) if lane.buffers is not None]
        if len(records) < len(module.ranks) or facts.joined(tl, module) or any(b.broadcast for _rest, b in records):
            continue
        if any((state := tl.ranks.get(rank)) is None or state.status != "finished" for rank, _rest in records):
            continue
        names = records[0][1].names
        if any(b.names != names for _rest, b in records):
            continue
        columns = zip(*(b.checksums for _rest, b in records), strict=False)
        differ = [name for name, sums in zip(names, columns, strict=False) if len(set(sums)) > 1]
        if not differ:
            continue
        yield Finding(
            "buffers-diverged",
            Severity.WARNING,
            _(
                "At the end {buffers}{of} differ between {ranks} ({names}): with broadcast_buffers=False{at} DDP "
                "does not broadcast them, so each rank evaluates with its own.",
                buffers=words.plural(len(differ), "buffer"),
                of=words.of(tl, module),
                ranks=words.ranks(module.ranks),
                names=words.names(differ),
                at=words.at(module.site),
            ),
            _(
                "Leave broadcast_buffers at True, convert BatchNorm with "
                "torch.nn.SyncBatchNorm.convert_sync_batchnorm(model) before wrapping, or average the buffers "
                "before you evaluate or save."
            ),
            module=module.id,
            ranks=module.ranks,
            count=len(differ),
            file=module.site.file,
            line=module.site.line,
            code=module.site.code,
            via=module.site.via,
        )
