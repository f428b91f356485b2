"""What follows from a run's numbers at no cost: traffic, agreement of the ranks, gradient noise scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ddpviz.timeline.model import Lane, Module, Sync
from ddpviz.trace import records as r

Floats = npt.NDArray[np.float64]


def windows(lane: Lane) -> npt.NDArray[np.int64]:
    """First pass of each window that has passes, then the number of passes: the k-th is [out[k], out[k + 1])."""
    window = lane.passes["window"]
    starts = np.flatnonzero(window[1:] != window[:-1]) + 1
    return np.concatenate([[0], starts, [len(window)]]) if len(window) else np.zeros(1, np.int64)


def traffic(module: Module) -> tuple[int, int]:
    """Bytes that one rank put through the reducer's collectives, and bytes its local passes would have sent.

    The rank that sent most stands for all. A local pass would have sent what this rank's synchronised passes sent in
    the median (so a compressing hook counts as what it sends), else the buckets' own bytes.
    """
    most = (0, 0)
    for lane in module.lanes.values():
        known = lane.buckets[lane.buckets["pass"] < len(lane.passes)]
        per_pass = np.bincount(known["pass"], weights=known["wire_bytes"], minlength=len(lane.passes))
        synced = per_pass[lane.sync == Sync.SYNCED]
        layout = sum(module.layouts[-1].bytes) if module.layouts else 0
        whole = float(np.median(synced)) if len(synced) else float(layout)
        local = int(np.count_nonzero(lane.sync == Sync.LOCAL))
        most = max(most, (int(per_pass.sum()), round(local * whole)))
    return most


def synced_norms(module: Module) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Of passes all-reduced and measured on every rank: local norms [ranks, passes], the mean's norm, the index.

    Left out: passes under a communication hook of the user's (what comes back need not be the mean), with NaN or Inf,
    and from where the ranks drift apart (other passes met). Empty with one rank.
    """
    lanes = [module.lanes[rank] for rank in module.ranks if rank in module.lanes]
    count = min((len(lane.passes) for lane in lanes), default=0)
    if module.drift is not None:
        count = min(count, module.drift)
    if len(lanes) < max(2, len(module.ranks)) or not count or module.hook:
        return np.zeros((0, 0)), np.zeros(0), np.zeros(0, np.int64)
    both = int(r.PassFlag.HAS_LOCAL_NORM | r.PassFlag.HAS_NORM)
    use = module.verdicts[:count] == Sync.SYNCED
    for lane in lanes:
        rows = lane.passes[:count]
        use &= (rows["flags"] & both) == both
        use &= np.isfinite(rows["local_norm"]) & np.isfinite(rows["norm"])
    at = np.flatnonzero(use)
    local: Any = np.stack([lane.passes["local_norm"][at] for lane in lanes])
    return local, lanes[0].passes["norm"][at], at


def agreements(module: Module) -> tuple[npt.NDArray[np.int64], Floats]:
    """Of each measured all-reduced pass: its index, and the mean gradient's norm over the mean of the local norms."""
    local, norm, at = synced_norms(module)
    means = local.mean(axis=0) if local.size else np.zeros(0)
    some = means > 0
    return at[some], norm[some] / means[some]


def agreement(module: Module) -> float | None:
    """How far the ranks' gradients point the same way: the median of `agreements`.

    1: all the same direction; 1/sqrt(N): as if independent noise. None with one rank, or if no such pass was measured.
    """
    _, ratios = agreements(module)
    return float(np.median(ratios)) if len(ratios) else None


def noise_scale(module: Module) -> float | None:
    """The simple gradient noise scale B = tr(S) / |G|^2, counted in one rank's share of a window.

    McCandlish, Kaplan, Amodei et al. 2018, "An Empirical Model of Large-Batch Training" (arXiv:1812.06162), appendix
    A.1, with B_small = 1 (one rank's share) and B_big = N (the mean over N ranks):

        |G|^2 = (B_big |g_big|^2 - B_small |g_small|^2) / (B_big - B_small)
        tr(S) = (|g_small|^2 - |g_big|^2) / (1 / B_small - 1 / B_big)

    Both are unbiased, their ratio is not: each is averaged over the passes first (the paper's moving averages, here
    over the whole run); |g_small|^2 is also averaged over the ranks. Times the samples that a rank puts into a window
    it is the noise scale in samples, which the trace does not know. None with one rank, if no pass was measured, or
    where the estimate of |G|^2 is not positive (nothing but noise).
    """
    local, norm, _ = synced_norms(module)
    if not local.size:
        return None
    ranks = len(local)
    with np.errstate(over="ignore"):
        small, big = float(np.mean(local**2)), float(np.mean(norm**2))
    signal = (ranks * big - small) / (ranks - 1)
    noise = (small - big) / (1 - 1 / ranks)
    return max(noise, 0.0) / signal if signal > 0 else None
