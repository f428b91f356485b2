"""Trains a small model and prints a digest of its parameters: the same bits, watched or not. Ends in the way asked for.

bits.py [--fault exception|memory|block|disk] [--end raise|exit3|os5|kill|term|fork|systemexit4]

A callable that blocks does so once, for TEST_BLOCK_S seconds.
"""

import argparse
import errno
import hashlib
import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="")
parser.add_argument("--end", default="")
parser.add_argument("--windows", type=int, default=2)
args = parser.parse_args()


def train(model: DDP, optimizer: torch.optim.Optimizer, generator: torch.Generator) -> None:
    for micro in range(4):
        with nullcontext() if micro == 3 else model.no_sync():
            model(torch.randn(6, 16, generator=generator)).square().mean().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def digest(model: nn.Module) -> str:
    data = b"".join(p.detach().numpy().tobytes() for p in (*model.parameters(), *model.buffers()))
    return hashlib.sha256(data).hexdigest()[:16]


def trouble(window: int) -> None:
    """The disk is full for two windows, later the writer thread dies, at last the run's folder is gone."""
    from ddpviz.probe import session

    writer = session.current().writer
    if window == 2:

        def full(*args: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        trouble.healthy = writer._file._write
        writer._file._write = full
    if window == 4:
        time.sleep(0.2)  # the writer has tried
        writer._file._write = trouble.healthy
    if window == 6:
        writer._tick = sys.exit
        time.sleep(0.2)
        assert not writer._thread.is_alive()
    if window == 8 and dist.get_rank() == 1:
        for file in (Path(os.environ["DDPVIZ_RUN_DIR"]) / "trace").glob(f"*-{os.getpid()}*"):
            file.unlink()


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))
    model = DDP(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)

    names = []
    if os.environ.get("DDPVIZ_RUN_DIR") and args.fault:
        from ddpviz.probe import guard

        names = sorted(guard.BODIES)
    waiting = set(names)
    if os.environ.get("DDPVIZ_RUN_DIR") and args.fault == "disk":
        names = []
    faults = {"exception": RuntimeError("ours"), "memory": MemoryError("ours")}
    for window, name in enumerate(names or [""] * args.windows):
        if args.fault == "disk" and os.environ.get("DDPVIZ_RUN_DIR"):
            trouble(window)
        if name:
            cell = guard.BODIES[name]
            healthy = cell[0]

            def broken(*a: object, me: str = name, **k: object) -> None:
                if args.fault == "block" and me in waiting:
                    waiting.remove(me)
                    time.sleep(float(os.environ.get("TEST_BLOCK_S", "0.02")))
                raise faults.get(args.fault, RuntimeError("ours"))

            cell[0] = broken
        train(model, optimizer, generator)
        if name:
            cell[0] = healthy
    print(f"rank {rank} windows {len(names) or args.windows} digest {digest(model)} rng {torch.rand(1).item():.9f}")
    if args.end == "raise":
        raise ValueError("the script's own error")
    if args.end == "exit3":
        sys.exit(3)
    if args.end == "systemexit4":
        raise SystemExit(4)
    if args.end == "os5":
        os._exit(5)
    if args.end in ("kill", "term"):
        time.sleep(0.15)  # a killed process loses at most its last 100 ms
    if args.end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if args.end == "term":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    if args.end == "fork":
        child = os.fork()
        if child == 0:
            torch.zeros(1)
            os._exit(0)
        os.waitpid(child, 0)
    dist.barrier()
    dist.destroy_process_group()


main()
