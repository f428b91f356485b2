"""mp.spawn, or mp.start_processes with fork (--fork); sets the flag by hand, as nanoGPT does."""

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def work(rank: int, world: int, port: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for micro in range(6):
        model.require_backward_grad_sync = micro % 3 == 2
        model(torch.randn(4, 6, generator=generator)).square().mean().backward()
        if micro % 3 == 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = s.getsockname()[1]
    if "--fork" in sys.argv:
        mp.start_processes(work, args=(2, free), nprocs=2, start_method="fork")
    else:
        mp.spawn(work, args=(2, free), nprocs=2)
