"""Why a pass stayed local, as far as it was measured: the sentence and the advice that several findings share.

The flags of `no_sync` are read here only to explain a verdict; the verdict itself never comes from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddpviz.findings import facts, words
from ddpviz.language import _
from ddpviz.timeline.model import Lane, Module, Sync, Timeline
from ddpviz.trace.records import PassFlag


@dataclass(frozen=True, slots=True)
class Why:
    kind: str  # "no-sync", "forward-only", "bypass", "no-pass", "hook", "replaced", "incomplete", "spent" or "flags"
    sentence: str
    advice: str


def why_local(tl: Timeline, module: Module, lane: Lane, indices: Sequence[int]) -> Why:
    """Why these passes of this rank, which fed one step, were not all-reduced."""
    if not len(indices):
        return Why(
            "no-pass",
            _(
                "No backward pass produced them: they came from torch.autograd.grad or were written into .grad by "
                "hand, and DDP never sees those"
            ),
            _(
                "Get the gradients with loss.backward(), or average them yourself before the step: "
                "dist.all_reduce(p.grad); p.grad /= dist.get_world_size()"
            ),
        )
    rows = lane.passes[np.asarray(indices)]
    last = rows[-1]
    flags = PassFlag(int(last["flags"]))
    known = flags & PassFlag.FLAGS_KNOWN
    forward = words.at(tl.site(lane.rank, int(last["forward_site"])))
    which = words.numbered("micro-step", [int(i) for i in indices])
    handed = len(lane.buckets_of(int(last["index"]))) > 0  # a bucket row without a collective: the hook got the bucket
    if flags & PassFlag.COMM_HOOK and handed and not int(last["launched"]):
        hook = f" '{module.hook}'" if module.hook else ""
        return Why(
            "hook",
            _("DDP handed the buckets to the communication hook{hook}, and the hook sent nothing", hook=hook),
            _("Let the hook all-reduce bucket.buffer() and divide by the world size, or do not register it"),
        )
    replaced = _replaced(tl, module, lane)
    if replaced and int(last["unreduced"]) >= int(last["touched"]) > 0 and not int(last["launched"]):
        return Why(
            "replaced",
            _(
                "The parameters that received them ({names}) are not the ones that DDP was built with",
                names=words.names(replaced),
            ),
            _(
                "Change the parameters first (load_state_dict(assign=True), new layers, unfreezing), then wrap the "
                "model in DistributedDataParallel"
            ),
        )
    if known and flags & PassFlag.NO_SYNC_FORWARD and not flags & PassFlag.NO_SYNC_BACKWARD:
        return Why(
            "forward-only",
            _(
                "The forward of micro-step {index}{forward} ran inside no_sync(), and the forward decides: leaving "
                "no_sync() for the backward alone changes nothing",
                index=int(last["index"]),
                forward=forward,
            ),
            _("Run the forward and the backward of the last micro-step before the step outside no_sync()"),
        )
    if known and bool(facts.has(rows, PassFlag.NO_SYNC_FORWARD | PassFlag.NO_SYNC_BACKWARD).all()):
        return Why(
            "no-sync",
            _("{which} ran under no_sync()", which=words.start(which)),
            _("Leave no_sync() for the forward and backward of the last micro-step before the step"),
        )
    synced = np.flatnonzero(lane.sync[: int(last["index"])] != int(Sync.LOCAL))
    earlier = int(synced[-1]) if len(synced) else -1
    used_up = earlier >= 0 and int(lane.passes[earlier]["window"]) == int(last["window"])
    if not bool(facts.has(rows, PassFlag.FORWARD_SEEN).any()):
        if used_up:
            return Why(
                "spent",
                _(
                    "No DDP forward came between micro-step {earlier}, which was all-reduced, and {which}: it is a "
                    "second backward of one forward (retain_graph=True), or the model was called around its wrapper; "
                    "DDP all-reduces once for each forward",
                    earlier=earlier,
                    which=which,
                ),
                _("Run one backward on the sum of the losses, and call the wrapper, model(x), for every forward"),
            )
        return Why(
            "bypass",
            _(
                "No DDP forward came before {which}: the model was called around its wrapper, as ddp.module(x) "
                "does, and then DDP does not average",
                which=which,
            ),
            _("Call the wrapper itself, model(x), for every forward whose loss is trained on"),
        )
    if known and flags & PassFlag.NO_SYNC_BACKWARD and flags & PassFlag.NO_SYNC_FORWARD:
        return Why(
            "no-sync",
            _("Micro-step {index}, the last before the step, ran under no_sync()", index=int(last["index"])),
            _("Leave no_sync() for the forward and backward of the last micro-step before the step"),
        )
    missing = _missing(module, lane, last)
    if missing:
        return Why(
            "incomplete",
            _(
                "The bucket never became complete: {names} received no gradient, so its all-reduce was never sent",
                names=words.names(missing),
            ),
            _(
                "Use {names} in the loss, remove or freeze what is not used before wrapping, or pass "
                "find_unused_parameters=True to DistributedDataParallel",
                names=words.names(missing, 2),
            ),
        )
    if used_up:
        return Why(
            "spent",
            _(
                "DDP all-reduces once for each forward that arms it, in the next backward, whatever loss that "
                "belongs to; micro-step {earlier} had already used it up",
                earlier=earlier,
            ),
            _(
                "Run one backward on the sum of the losses, or run each forward directly before its backward, with "
                "the last pair outside no_sync()"
            ),
        )
    return Why(
        "flags",
        _("{which} issued no all-reduce", which=words.start(which)),
        _("Run forward and backward of the last micro-step before the step through the DDP wrapper, outside no_sync()"),
    )


def _replaced(tl: Timeline, module: Module, lane: Lane) -> list[str]:
    return [
        n for u in tl.unmanaged.get(lane.rank, []) if u.module == module.id and u.reason != "outside" for n in u.names
    ]


def _missing(module: Module, lane: Lane, row: np.void) -> list[str]:
    """Managed parameters without a gradient so far, if they explain why no bucket was sent."""
    if int(row["launched"]) >= int(row["buckets"]) or lane.unused is None:
        return []
    managed = sum(p.managed for p in module.params)
    if int(row["touched"]) >= managed:
        return []
    return [module.params[p].name for p in lane.unused.params if p < len(module.params) and module.params[p].managed]


def off_by_one(lane: Lane, indices: Sequence[int]) -> bool:
    """The window's first pass was all-reduced and all later ones ran under no_sync: the wrong end is tested."""
    if len(indices) < 2 or lane.sync[indices[0]] != int(Sync.SYNCED):
        return False
    rest = lane.passes[np.asarray(indices[1:])]
    return bool(facts.has(rest, PassFlag.FLAGS_KNOWN | PassFlag.NO_SYNC_FORWARD | PassFlag.NO_SYNC_BACKWARD).all())
