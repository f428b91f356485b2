"""The forward stands before `with no_sync()`, only the backward inside: every micro-batch all-reduces after all.

This is a mistake, shown on purpose: DDP decides in the forward. With --right the forward is inside, too.
"""

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=2, help="optimizer steps")
parser.add_argument("--accumulation", type=int, default=4, help="micro-batches for each optimizer step")
parser.add_argument("--right", action="store_true", help="without the mistake")
args = parser.parse_args()

own_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if own_gpu else torch.device("cpu")
if own_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if own_gpu else "gloo")

torch.manual_seed(0)  # the same start on every rank
ddp_model = DDP(nn.Linear(10, 5).to(device))
optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.01)
torch.manual_seed(1 + dist.get_rank())  # different data on every rank


def loss_of_a_batch():
    inputs = torch.randn(4, 10, device=device)
    targets = torch.randn(4, 5, device=device)
    return nn.functional.mse_loss(ddp_model(inputs), targets) / args.accumulation


for _ in range(args.steps):
    for micro in range(args.accumulation):
        accumulating = micro < args.accumulation - 1
        loss = None if args.right else loss_of_a_batch()  # too early: DDP is told here to all-reduce
        with ddp_model.no_sync() if accumulating else nullcontext():
            loss = loss_of_a_batch() if loss is None else loss
            loss.backward()

    optimizer.step()
    optimizer.zero_grad()

dist.barrier()
dist.destroy_process_group()
