"""What happened, from facts alone: pure functions over arrays. The declared flags of `no_sync` are never read here.

A rank's pass: `sync_of`. The ranks together: `across`. A step's gradients on one rank: `gradients_of`, then `by_hand`,
which needs all ranks; a step over the ranks: `gradients_across`, `equality`.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from ddpviz.timeline.model import Gradients, Rows, Sync
from ddpviz.trace import records as r

U8 = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

# Members of enums are looked up once: each access costs a microsecond.
_RAISED, _NO_GRADS = int(r.PassFlag.RAISED), int(r.StepFlag.NO_GRADS)
_LOCAL, _SYNCED, _PARTIAL, _UNFINISHED, _ABSENT = (
    int(s) for s in (Sync.LOCAL, Sync.SYNCED, Sync.PARTIAL, Sync.UNFINISHED, Sync.ABSENT)
)
_G_SYNCED, _G_LOCAL, _G_STALE, _G_MIXED, _G_NONE = map(int, Gradients)

NOT_THERE = 255  # in arrays of Gradients: this rank has no such step


def sync_of(passes: Rows, failed: npt.NDArray[np.uint16]) -> U8:
    """Sync of each pass on one rank; `failed` counts its buckets whose collective failed.

    Raised: unfinished. No bucket sent, or none with a touched parameter in it: local. Every bucket sent and every
    touched parameter in one: synced. Between: partial. An untouched parameter (`find_unused_parameters`) counts for
    nothing. A row that touched no parameter is no pass of this module (a join's shadow, another module's
    backward): absent.
    """
    launched, touched, unreduced = passes["launched"], passes["touched"], passes["unreduced"]
    nothing_sent = (launched == 0) | (unreduced >= touched)
    whole = (launched >= passes["buckets"]) & (unreduced == 0) & (failed == 0)
    out = np.where(nothing_sent, _LOCAL, np.where(whole, _SYNCED, _PARTIAL))
    out = np.where(touched == 0, _ABSENT, out)
    return np.where(passes["flags"] & _RAISED != 0, _UNFINISHED, out).astype(np.uint8)


def _across_table() -> U8:
    table = np.zeros(128, np.uint8)
    for bits in range(128):
        seen = {s for s in Sync if bits >> s & 1}
        if Sync.UNFINISHED in seen:
            worst = Sync.UNFINISHED
        elif Sync.RUNNING in seen:
            worst = Sync.RUNNING
        elif Sync.MIXED in seen or (Sync.LOCAL in seen and seen & {Sync.SYNCED, Sync.PARTIAL}):
            worst = Sync.MIXED
        elif Sync.PARTIAL in seen:
            worst = Sync.PARTIAL
        elif Sync.SYNCED in seen:
            worst = Sync.SYNCED
        else:
            worst = Sync.LOCAL if Sync.LOCAL in seen else Sync.ABSENT
        table[bits] = worst
    return table


_ACROSS = _across_table()


def across(lanes: list[U8], expected: list[int], size: int) -> U8:
    """Sync of passes 0..size over the ranks, from each rank's own.

    Unfinished > running > mixed > partial > synced or local. Rank k is expected to report the first `expected[k]`
    passes (RUNNING where it has not yet); beyond that it is absent, and absent ranks have no say: one that ended, or
    finished under `join`, disagrees with nobody.
    """
    bits = np.zeros(size, np.uint8)
    for sync, until in zip(lanes, expected, strict=True):
        n = min(len(sync), size)
        bits[:n] |= np.left_shift(np.uint8(1), sync[:n])
        if until > n:
            bits[n:until] |= np.uint8(1 << Sync.RUNNING)
    return _ACROSS[bits]


def gradients_of(steps: Rows, passes: Rows, sync: U8, averaged: npt.NDArray[np.uint32], ranks: int) -> U8:
    """What each step used on one rank, before averaging by hand is looked at.

    `averaged[i]` is the number of synced or partial passes before pass i (one longer than the passes). The last pass of
    the step's window up to `after` decides: synced: SYNCED; partial: MIXED (part of it averaged); local: STALE
    if an earlier pass of the window was averaged, else LOCAL. No pass in the window: LOCAL, gradients were set by hand.
    SYNCED that also updates parameters the reducer does not manage is MIXED. A pass that was lost or has not arrived
    yet says nothing: NONE, never a guess. With one rank: SYNCED.
    """
    size = len(passes)
    after = steps["after"].astype(np.int64)
    at = np.minimum(np.maximum(after, 0), max(size - 1, 0))
    if size:
        last = sync[at]
        inside = (after >= 0) & (passes["window"][at] == steps["window"])
        if (inside & (last == _SYNCED) & (after < size) & (steps["unmanaged"] == 0)).all():
            none = steps["flags"] & _NO_GRADS != 0  # a right job: the rest is for the others
            return np.where(none, _G_NONE, _G_SYNCED).astype(np.uint8)
        # only the passes from the first step's window on: a search copies the column that it searches
        start = bisect_left(passes["window"], steps["window"].min())
        window = passes["window"][start : int(at.max()) + 1]
        first = start + np.searchsorted(window, steps["window"], "left")
        earlier = averaged[at] > averaged[np.minimum(first, at)]
    else:
        last = np.zeros(len(steps), np.uint8)
        inside = earlier = np.zeros(len(steps), np.bool_)
    out = np.where(earlier, _G_STALE, _G_LOCAL)
    out = np.where(last == _SYNCED, _G_SYNCED, out)
    out = np.where(last == _PARTIAL, _G_MIXED, out)
    out = np.where(last == _ABSENT, _G_NONE, out)
    out = np.where(inside, out, _G_LOCAL)
    out = np.where(after >= size, _G_NONE, out)
    out = np.where((out == _G_SYNCED) & (steps["unmanaged"] > 0), _G_MIXED, out)
    if ranks == 1:
        out = np.full(len(steps), _G_SYNCED)
    return np.where(steps["flags"] & _NO_GRADS != 0, _G_NONE, out).astype(np.uint8)


def by_hand(gradients: U8, sent: Ints, flagged: Bools, numel: int, equal: npt.NDArray[np.int8]) -> U8:
    """SYNCED where the script itself averaged the gradients after the last pass.

    Proof is a collective over at least the module's elements, or one seen to carry its gradients (`flagged`), and
    gradients that did not come out different (`equal`: 1, 0 or -1 for not measured). Equal gradients alone prove
    nothing: same data.
    A partly averaged step (MIXED) needs only some collective, if equality was measured.
    """
    whole = (sent >= numel) & (numel > 0)
    rest = (gradients == _G_MIXED) & (sent > 0)
    proof = (whole & (equal != 0)) | ((flagged | rest) & (equal == 1))
    wrong = (gradients == _G_LOCAL) | (gradients == _G_STALE) | (gradients == _G_MIXED)
    return np.where(wrong & proof, _G_SYNCED, gradients).astype(np.uint8)


def _gradients_table() -> U8:
    table = np.zeros(32, np.uint8)
    for bits in range(32):
        seen = {g for g in Gradients if bits >> g & 1} - {Gradients.NONE}
        table[bits] = Gradients.NONE if not seen else seen.pop() if len(seen) == 1 else Gradients.MIXED
    return table


_GRADIENTS = _gradients_table()


def gradients_across(by_rank: npt.NDArray[np.uint8]) -> U8:
    """Gradients over the ranks, from [rank, step]; NOT_THERE and NONE have no say, ranks that disagree give MIXED."""
    bits = np.zeros(by_rank.shape[1], np.uint8)
    for row in by_rank:
        bits |= np.where(row == NOT_THERE, 0, np.left_shift(1, row & 7)).astype(np.uint8)
    return _GRADIENTS[bits]


def equality(values: npt.NDArray[np.uint64], known: Bools, after: Ints, there: Bools) -> npt.NDArray[np.int8]:
    """1 equal, 0 different, -1 not known, for each step, from [rank, step] checksums.

    Equal only if every rank is there and measured. Different only if two measured ranks differ and all stepped after
    the same micro-step: ranks out of phase are not at the same step at all.
    """
    big, small = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0)
    same = np.where(known, values, small).max(0, initial=small) == np.where(known, values, big).min(0, initial=big)
    phase = in_phase(after, there)
    out = np.where(same & known.all(0), 1, -1)
    return np.where(~same & phase & (known.sum(0) >= 2), 0, out).astype(np.int8)


def in_phase(after: Ints, there: Bools) -> Bools:
    """Whether all ranks that took a step took it after the same micro-step, from [rank, step]."""
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    most = np.where(there, after, low).max(0, initial=low)
    least = np.where(there, after, high).min(0, initial=high)
    return np.asarray(most <= least)
