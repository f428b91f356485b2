"""Synthetic runs of the usual shapes, right and wrong, and huge ones: for tests of everything that reads a trace.

`write_run(tmp_path, "stale", ranks=3)` gives a run folder, `cluster_of("stale", ranks=3).timeline()` its timeline;
`write_big` writes long runs by the block. Programs of your own: see `simcluster.py`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from simcluster import Cluster, Net, Program, Rank, Steps

from ddpviz.trace import records as r

__all__ = ["MISTAKES", "RIGHT", "Cluster", "Net", "Program", "Rank", "Steps", "big_batches", "cluster_of", "program"]
__all__ += ["write_big", "write_run"]

MISTAKES = (
    "unsynced",  # every pass local, then a step
    "stale",  # synced, local, step
    "mixed",  # one rank syncs in a window's first pass, the others in its last
    "partial",  # the last bucket is never sent
    "nan",  # one rank's gradient is NaN in a local pass
    "divergence",  # one rank edits its parameters in place
    "drift",  # one rank skips a batch, and the job hangs at the end
    "hang",  # one rank goes to a barrier instead of its backward
    "died",  # one rank is killed
    "failed",  # one rank raises
    "identical",  # all ranks see the same batches
    "redundant",  # every pass is all-reduced
    "lost",  # local gradients cleared without a step
    "bypass",  # no pass at all: gradients set by hand
    "straggler",  # the last rank is late to every all-reduce
)
RIGHT = ("by-hand", "local-sgd", "join", "skipped", "closure")  # right programs that look odd


def program(
    mistake: str | None = None,
    *,
    accumulation: int = 4,
    windows: int = 4,
    modules: int = 1,
    at: int = 1,
    rank: int = -1,
) -> Program:
    """The usual training loop, `windows` windows of `accumulation` passes; the mistake starts in window `at` (where it
    can choose) on `rank` (where one rank makes it; negative counts from the end)."""
    assert mistake is None or mistake in MISTAKES + RIGHT, mistake

    def train(me: Rank) -> Steps:
        guilty = me.rank == rank % me.cluster.size
        if mistake == "straggler" and guilty:
            me.late_ns = 3_000_000
        for w in range(windows):
            wrong = w >= at
            if mistake == "join" and guilty and w == max(1, windows // 2):
                for m in range(modules):
                    me.join(m)
                return
            if mistake in ("drift", "hang") and guilty and w == at:
                if mistake == "hang":
                    yield from me.barrier()
                continue  # skips the window's batches
            for m in range(modules):
                yield from window(me, m, w, wrong, guilty)
        yield from me.barrier()

    def window(me: Rank, m: int, w: int, wrong: bool, guilty: bool) -> Steps:
        if mistake == "bypass":
            me.set_grads(m)
        for i in range(0 if mistake == "bypass" else accumulation):
            last = i == accumulation - 1
            sync = last
            if mistake in ("unsynced", "by-hand", "local-sgd"):
                sync = sync and mistake == "unsynced" and not wrong
            if mistake == "stale" and wrong:
                sync = i == max(0, accumulation - 2)
            if mistake == "redundant":
                sync = True
            if mistake in ("died", "failed") and guilty and w == at and i == accumulation // 2:
                me.die() if mistake == "died" else me.fail()
            if mistake == "mixed" and wrong and guilty:
                sync = i == 0
            yield from me.backward(
                sync,
                m,
                same_data=mistake == "identical",
                in_step=mistake == "closure",
                only=range(len(me.states[m].net.buckets) - 1) if mistake == "partial" and wrong else None,
                nan=0 if mistake == "nan" and guilty and w == at and i == 0 else None,
            )
            if mistake == "lost" and wrong and i == 0 and accumulation > 1:
                me.clear(m)
        if mistake == "by-hand":
            yield from me.all_reduce_gradients(m)
        if mistake == "skipped" and w % 2 == 1:
            me.step(m, skipped=True)
        else:
            me.step(m, closure=mistake == "closure")
        if mistake == "divergence" and guilty and w == at:
            me.edit_parameters(m)
        if mistake == "local-sgd" and w % 2 == 1:
            yield from me.average_parameters(m)
        me.clear(m)

    return train


def cluster_of(
    mistake: str | None = None,
    *,
    ranks: int = 2,
    modules: int = 1,
    seed: int = 0,
    noise: float = 0.5,
    layers: bool = True,
    hosts: Sequence[str] | None = None,
    **how: Any,
) -> Cluster:
    """A cluster that ran `program(mistake, **how)`."""
    nets = [Net(name=name) for name in itertools.islice(itertools.cycle(["MLP", "Critic", "Encoder"]), modules)]
    cluster = Cluster(ranks, nets, seed=seed, noise=noise, layers=layers, hosts=hosts, title=mistake or "accumulate")
    return cluster.run(program(mistake, modules=modules, **how))


def write_run(base: Path, mistake: str | None = None, **how: Any) -> Path:
    """A run folder under `base`; arguments as for `cluster_of`."""
    return cluster_of(mistake, **how).write(base)


def dtype(kind: r.RowKind) -> np.dtype[np.void]:
    return np.dtype([(name, "<" + code) for name, code in r.COLUMNS[kind]])


def big_batches(
    ranks: int,
    passes: int,
    *,
    accumulation: int = 4,
    wrong: Sequence[int] = (),
    block: int = 2048,
    seed: int = 0,
    buckets: bool = True,
) -> Iterable[tuple[int, str, list[tuple[r.RowKind, Any]]]]:
    """(rank, source, blocks) of a long run of one module of one bucket, by the block: every `accumulation`-th pass is
    synced and followed by a step, except that the steps numbered in `wrong` follow an all-local window."""
    cluster = Cluster(ranks, [Net(buckets=((3, 2, 1, 0),))], seed=seed)
    net = cluster.nets[0]
    random = np.random.default_rng(seed)
    index = np.arange(passes, dtype=np.int64)
    last = index % accumulation == accumulation - 1
    synced = last & ~np.isin(index // accumulation, np.asarray(wrong, np.int64))
    count = np.cumsum(synced) - synced
    local = 1 + random.random(passes)
    for rank in cluster.ranks:
        for what in ("forward", "backward", "step", "clear"):
            rank.site(what)
        begin = rank.now + index * 1_500_000 + random.integers(0, 100_000, passes)
        p = np.zeros(passes, dtype(r.RowKind.PASS))
        known = (
            r.PassFlag.FLAGS_KNOWN
            | r.PassFlag.SAMPLED
            | r.PassFlag.HAS_LOCAL_NORM
            | r.PassFlag.HAS_NORM
            | r.PassFlag.HAS_LOSS
        )
        p["flags"] = (
            int(known | r.PassFlag.FORWARD_SEEN)
            + np.where(synced, 4096, 6)
            + np.where(index % accumulation == 0, 1024, 0)
        )
        p["index"], p["window"], p["begin"], p["end"] = index, index // accumulation, begin, begin + 1_000_000
        p["collective"], p["collectives"], p["launched"], p["buckets"] = count, synced, synced, 1
        p["touched"], p["unreduced"] = len(net.params), np.where(synced, 0, len(net.params))
        p["forward"], p["forward_end"] = begin - 300_000, begin - 50_000
        p["forward_site"], p["backward_site"] = rank.site("forward"), rank.site("backward")
        p["local_norm"] = local * (1 + 0.1 * rank.rank / max(1, ranks))
        p["norm"] = np.where(synced, local * 0.9, p["local_norm"])
        p["loss"], p["memory"] = 1 / (1 + index), 500_000_000
        at = np.flatnonzero(synced)
        b = np.zeros(len(at), dtype(r.RowKind.BUCKET))
        b["flags"], b["pass"], b["count"] = 3 | r.BucketFlag.SENT, at, count[at]
        b["ready"], b["launch"], b["done"] = begin[at] + 700_000, begin[at] + 702_000, begin[at] + 950_000
        b["wire_bytes"], b["local_norm"], b["norm"] = net.numel * 4, p["local_norm"][at], p["norm"][at]
        ends = np.flatnonzero(last)
        s = np.zeros(len(ends), dtype(r.RowKind.STEP))
        s["flags"] = int(r.StepFlag.SAMPLED | r.StepFlag.HAS_GRAD | r.StepFlag.HAS_PARAM)
        s["index"], s["after"], s["window"] = np.arange(len(ends)), ends, ends // accumulation
        s["begin"], s["end"] = begin[ends] + 1_050_000, begin[ends] + 1_100_000
        s["collective"], s["site"] = count[ends] + synced[ends], rank.site("step")
        s["grad_norm"] = p["norm"][ends]
        right = synced[ends]
        s["grad_checksum"] = np.where(right, ends, ends * 1000 + rank.rank).astype(np.uint64)
        s["param_checksum"] = np.where(np.cumsum(~right) == 0, ends, ends * 1000 + rank.rank).astype(np.uint64)
        c = np.zeros(len(ends), dtype(r.RowKind.CLEAR))
        c["by_step"], c["window"], c["after"], c["at"] = 1, ends // accumulation, ends, begin[ends] + 1_200_000
        c["site"] = rank.site("clear")
        source = cluster.source(rank)
        yield rank.rank, source, [(r.RowKind.RECORDS, list(rank.records))]
        for lo in range(0, passes, block):
            blocks: list[tuple[r.RowKind, Any]] = [(r.RowKind.PASS, p[lo : lo + block].tobytes())]
            if buckets:
                blocks.append((r.RowKind.BUCKET, b[(at >= lo) & (at < lo + block)].tobytes()))
            part = (ends >= lo) & (ends < lo + block)
            blocks += [(r.RowKind.STEP, s[part].tobytes()), (r.RowKind.CLEAR, c[part].tobytes())]
            yield rank.rank, source, [(k, x) for k, x in blocks if x]
        end_at = int(begin[-1]) + 2_000_000 if passes else rank.now
        yield rank.rank, source, [(r.RowKind.RECORDS, [r.Exit(at=end_at, code=0, reason="finished")])]


def write_big(base: Path, ranks: int, passes: int, **how: Any) -> Path:
    """A huge run through the real writer; arguments as for `big_batches`. 1 M rank-passes take a few seconds."""
    from ddpviz.trace.rundir import create_run
    from ddpviz.trace.writer import TraceFile

    cluster = Cluster(ranks)
    for rank in cluster.ranks:
        rank.exit_code = 0
    folder = create_run(base, cluster.info())
    files: dict[int, TraceFile] = {}
    for rank, source, blocks in big_batches(ranks, passes, **how):
        file = files.setdefault(rank, TraceFile(folder / "trace", source)) if rank not in files else files[rank]
        for kind, payload in blocks:
            if isinstance(payload, list):
                file.records(payload)
            else:
                file.rows(kind, payload, len(payload) // dtype(kind).itemsize)
    for file in files.values():
        file.close()
    return folder


if __name__ == "__main__":  # python tests/synth.py FOLDER [MISTAKE]: a run folder to look at
    import sys

    made = write_run(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None, windows=6, ranks=3)
    print(json.dumps({"run": str(made)}))
