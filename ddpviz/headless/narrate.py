"""Says in plain lines what a timeline has gained since it was last asked. Pure but for what it remembers to have said.

One line a micro-step and a step while there are few; then, when they come fast, one line a second that sums them up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ddpviz.export import words
from ddpviz.language import _
from ddpviz.timeline import model as m
from ddpviz.trace import records as r
from ddpviz.trace.text import clean

DETAIL = 32  # events told one by one before thinning begins
AT_ONCE = 4  # events that may still be told one by one in one go afterwards
_SECOND = 1.0
_WAIT = 2_000_000_000  # ns that a rank may wait before it is worth a line


class Narrator:
    """What was said so far. `lines` says the rest."""

    def __init__(self) -> None:
        self._ranks: set[int] = set()
        self._modules = 0
        self._passes: dict[int, int] = {}  # module -> passes told
        self._steps = 0
        self._skipped = 0
        self._exits: set[int] = set()
        self._waits: dict[int, int] = {}  # rank -> since when it waits, once told
        self._events = 0
        self._last = float("-inf")

    def lines(self, tl: m.Timeline, now: float, *, final: bool = False) -> Iterator[str]:
        """New lines, in order. `now` is any clock in seconds; with `final` nothing is held back."""
        yield from self._arrivals(tl)
        passes = {module.id: self._new_passes(module, final) for module in tl.modules}
        steps = self._new_steps(tl, final)
        fresh = sum(len(p) for p in passes.values()) + len(steps)
        fast = self._events + fresh > DETAIL
        if fresh and not (fast and now - self._last < _SECOND and not final):
            self._last = now
            self._events += fresh
            if fast and fresh > AT_ONCE:
                yield from self._summed(tl, passes, steps)
            else:
                yield from self._each(tl, passes, steps)
            for module in tl.modules:
                self._passes[module.id] = passes[module.id].stop
            self._steps = steps.stop
        for number in range(self._skipped, len(tl.skipped)):
            yield _("optimizer step skipped by GradScaler{place}", place=clean(words.place(tl.skipped[number].site)))
        self._skipped = len(tl.skipped)
        yield from self._states(tl)

    def _arrivals(self, tl: m.Timeline) -> Iterator[str]:
        for rank in sorted(tl.ranks.keys() - self._ranks):
            self._ranks.add(rank)
            state = tl.ranks[rank]
            parts = [_("pid {pid}", pid=state.pid) if state.pid else "", state.backend, state.device, state.host]
            yield _("rank {rank} is up  ", rank=rank) + "  ".join(clean(part) for part in parts if part)
        for module in tl.modules[self._modules :]:
            layout = module.layouts[-1] if module.layouts else None
            buckets = f", {words.plural(len(layout.buckets), 'bucket')}" if layout else ""
            yield (
                _(
                    "DDP wraps {module_name}: {parameters}, {numbers}{buckets}{place}",
                    module_name=clean(words.module_name(tl, module)),
                    parameters=words.plural(len(module.params), "parameter"),
                    numbers=words.plural(module.numel, "number"),
                    buckets=buckets,
                    place=words.place(module.site),
                )
            )
        self._modules = len(tl.modules)

    def _new_passes(self, module: m.Module, final: bool) -> range:
        """The passes to tell: those that every rank has reported, in order; all of them at the end."""
        start, stop = self._passes.get(module.id, 0), module.passes
        if not final:
            running = (module.verdicts[start:] == m.Sync.RUNNING).nonzero()[0]
            stop = start + int(running[0]) if len(running) else stop
        return range(start, stop)

    def _new_steps(self, tl: m.Timeline, final: bool) -> range:
        """Steps that all ranks reported; one that some rank will never take is told when the next but one is there."""
        stop = self._steps
        while stop < len(tl.steps) and (
            final or stop + 2 < len(tl.steps) or all(a is not None for p in tl.steps[stop].parts for a in p.after)
        ):
            stop += 1
        return range(self._steps, stop)

    def _each(self, tl: m.Timeline, passes: dict[int, range], steps: range) -> Iterator[str]:
        events: list[tuple[int, int, str]] = []
        for module in tl.modules:
            events += [(ended(module, i), 0, micro_step(tl, module, i)) for i in passes[module.id]]
        events += [(tl.steps[i].end, 1, step_line(tl, tl.steps[i])) for i in steps]
        for _rest, _rest, line in sorted(events):
            yield line

    def _summed(self, tl: m.Timeline, passes: dict[int, range], steps: range) -> Iterator[str]:
        for module in tl.modules:
            span = passes[module.id]
            if span:
                kinds = Counter(m.Sync(v) for v in module.verdicts[span.start : span.stop].tolist())
                told = ", ".join(f"{count:,} {_(words.PASS_WORDS[kind])}" for kind, count in sorted(kinds.items()))
                norms = _norms(module, span[-1])
                yield _(
                    "{label}micro-steps {start}-{value}  {told}",
                    label=_label(tl, module),
                    start=span.start,
                    value=span.stop - 1,
                    told=told,
                ) + (norms and f"  {norms}")
        if steps:
            gone = [tl.steps[i] for i in steps]
            used = Counter(step.gradients for step in gone)
            replicas = Counter(step.replicas for step in gone)
            worst = max(replicas, key=lambda k: (k is m.Replicas.DIVERGED, k is m.Replicas.UNKNOWN))
            told = ", ".join(f"{count:,} {_(kind.word)}" for kind, count in sorted(used.items()))
            number = (
                _("steps {start}-{value}", start=steps.start, value=steps.stop - 1)
                if len(gone) > 1
                else _("step {start}", start=steps.start)
            )
            yield _(
                "{number}  {told}  replicas {word}{place}",
                number=number,
                told=told,
                word=_(worst.word),
                place=words.place(gone[-1].site),
            )

    def _states(self, tl: m.Timeline) -> Iterator[str]:
        for rank, state in sorted(tl.ranks.items()):
            waits = words.waiting_for(tl, state)
            if waits is None or state.stack is None:
                self._waits.pop(rank, None)
            elif tl.now_ns - state.stack.since > _WAIT and self._waits.get(rank) != state.stack.since:
                self._waits[rank] = state.stack.since
                since = words.duration(tl.now_ns - state.stack.since)
                yield clean(_("rank {rank} has waited {since} in {waits}", rank=rank, since=since, waits=waits))
            if state.status in ("failed", "died", "finished") and rank not in self._exits:
                self._exits.add(rank)
                yield clean(_("rank {rank} {rank_end}", rank=rank, rank_end=words.rank_end(tl, rank)))


def micro_step(tl: m.Timeline, module: m.Module, index: int) -> str:
    """`micro-step 3  local (no_sync)  norms 0.81 | 0.55  train.py:19`."""
    verdict = m.Sync(int(module.verdicts[index]))
    said = _(words.PASS_WORDS[verdict])
    lanes = [lane for lane in module.lanes.values() if index < len(lane.passes)]
    off = int(r.PassFlag.NO_SYNC_FORWARD | r.PassFlag.NO_SYNC_BACKWARD)
    if verdict is m.Sync.LOCAL and lanes and all(int(lane.passes[index]["flags"]) & off for lane in lanes):
        said += _(" (no_sync)")
    site = tl.site(lanes[0].rank, int(lanes[0].passes[index]["backward_site"])) if lanes else m.Site()
    shown = "  ".join(part for part in (said, _norms(module, index), clean(site.short)) if part)
    return _("{label}micro-step {index}  {shown}", label=_label(tl, module), index=index, shown=shown)


def step_line(tl: m.Timeline, step: m.Step) -> str:
    """`step 0  synced  replicas equal  train.py:31`."""
    after = "" if step.in_phase else _("  ranks out of phase")
    site = clean(step.site.short)
    return _(
        "step {index}  {word}  replicas {word2}{after}",
        index=step.index,
        word=_(step.gradients.word),
        word2=_(step.replicas.word),
        after=after,
    ) + (site and f"  {site}")


def ended(module: m.Module, index: int) -> int:
    """When the last rank ended this pass, ns."""
    ends = [int(lane.passes[index]["end"]) for lane in module.lanes.values() if index < len(lane.passes)]
    return max(ends, default=0)


def _label(tl: m.Timeline, module: m.Module) -> str:
    return f"{clean(words.module_name(tl, module))}: " if len(tl.modules) > 1 else ""


def _norms(module: m.Module, index: int) -> str:
    local = words.norms_of(module, index, "local_norm", r.PassFlag.HAS_LOCAL_NORM)
    if all(value is None for value in local):
        return ""
    text = _("norms ") + " | ".join(words.number(value) for value in local)
    if module.verdicts[index] in (m.Sync.SYNCED, m.Sync.PARTIAL, m.Sync.MIXED):
        after = words.norms_of(module, index, "norm", r.PassFlag.HAS_NORM)
        known = list(dict.fromkeys(words.number(value) for value in after if value is not None))
        if known:
            text += " -> " + " | ".join(known)
    return text
