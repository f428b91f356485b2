"""Trains a small model and prints a digest of its parameters: the same bits, watched or not. Ends in the way asked for.

bits.py [--fault exception|memory|block] [--end raise|exit3|os5|kill|term|fork|systemexit4]

A callable that blocks does so once, for TEST_BLOCK_S seconds.
"""

import argparse
import hashlib
import os
import signal
import sys
import time
from contextlib import nullcontext

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
    faults = {"exception": RuntimeError("ours"), "memory": MemoryError("ours")}
    for name in names or [""] * args.windows:
        if name:
            cell = guard.BODIES[name]
            healthy = cell[0]

            def broken(*a: object, **k: object) -> None:
                if args.fault == "block" and name in waiting:
                    waiting.remove(name)
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
