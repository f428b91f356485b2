"""Jobs that hang, or only look like it: `hangs.py NAME`. Plain torch, two ranks (sub-group: three)."""

import ctypes
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

NAME = sys.argv[1]
X = torch.ones(4, 6)


def wrapped():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def step(model, opt):
    model(X * (1 + dist.get_rank())).square().mean().backward()
    opt.step()
    opt.zero_grad()


def barrier():
    """One rank goes to a barrier instead of its backward."""
    model, opt = wrapped()
    step(model, opt)
    if dist.get_rank() == 1:
        dist.barrier()
    step(model, opt)


def subgroup():
    """Three ranks; a metric of ranks 0 and 2 that rank 2 does not reach."""
    model, opt = wrapped()
    pair = dist.new_group([0, 2])
    step(model, opt)
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1), group=pair)
    step(model, opt)


def constructor():
    """One rank waits in the DDP constructor, the other reads a key that nobody sets."""
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        dist.barrier()
    DDP(nn.Linear(6, 2))


def before_init():
    """One rank never comes to init_process_group."""
    import os

    if os.environ["RANK"] == "1":
        time.sleep(1000)
    wrapped()


def asleep():
    """One rank sleeps for ever outside any collective, such as a reader that waits for a dead worker."""
    model, opt = wrapped()
    step(model, opt)
    if dist.get_rank() == 1:
        time.sleep(1000)
    step(model, opt)


def gil():
    """C code holds the GIL on one rank and never comes back."""
    model, opt = wrapped()
    step(model, opt)
    time.sleep(0.5)  # what was done so far is on disk before the writer is frozen too
    if dist.get_rank() == 1:
        ctypes.PyDLL(None).sleep(1000)
    step(model, opt)


def computing():
    """Not a hang: one rank computes for 20 s while the other waits."""
    model, opt = wrapped()
    step(model, opt)
    if dist.get_rank() == 1:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            torch.ones(200, 200) @ torch.ones(200, 200)
    step(model, opt)
    dist.barrier()


def one_long_call():
    """Not a hang: one rank is inside a single native call for a long time, which releases the GIL and computes."""
    model, opt = wrapped()
    step(model, opt)
    if dist.get_rank() == 1:
        big = torch.randn(1500, 1500)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            torch.linalg.svd(big)
    step(model, opt)
    dist.barrier()


def short_sleep():
    """Not a hang: one rank loads data for 15 s without using the CPU."""
    model, opt = wrapped()
    step(model, opt)
    if dist.get_rank() == 1:
        time.sleep(15)
    step(model, opt)
    dist.barrier()


globals()[NAME]()
dist.destroy_process_group()
