"""Jobs in which one rank ends before the others: `deaths.py NAME`. Plain torch, two ranks; rank 1 ends."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

NAME = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
rng = torch.Generator().manual_seed(rank)


def end():
    print("the last line of rank 1", flush=True)
    if NAME == "raises":
        raise ValueError("a bad sample")
    if NAME == "killed":
        time.sleep(0.5)  # what a process did last is on disk within 100 ms
        os.kill(os.getpid(), signal.SIGKILL)
    if NAME == "leaves":
        os._exit(7)
    if NAME == "early":
        sys.exit(0)


if NAME == "mismatch":
    dist.all_gather([torch.zeros(4 + 4 * rank) for _ in range(2)], torch.zeros(4 + 4 * rank))
for i in range(6):
    if i == 3 and rank == 1:
        end()
    model(torch.randn(4, 6, generator=rng)).square().mean().backward()
    opt.step()
    opt.zero_grad()
dist.destroy_process_group()
