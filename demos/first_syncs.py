"""The first micro-batch of each window all-reduces instead of the last: what comes after it stays local.

This is a mistake, shown on purpose: an off-by-one in the condition. With --right the last one all-reduces.
"""

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=3, help="optimizer steps")
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

for batch in range(args.steps * args.accumulation):
    number = batch + 1 if args.right else batch  # counted from 0, the condition fits the first, not the last
    accumulating = number % args.accumulation != 0

    with ddp_model.no_sync() if accumulating else nullcontext():
        inputs = torch.randn(4, 10, device=device)
        targets = torch.randn(4, 5, device=device)
        loss = nn.functional.mse_loss(ddp_model(inputs), targets)
        (loss / args.accumulation).backward()

    if (batch + 1) % args.accumulation == 0:
        optimizer.step()
        optimizer.zero_grad()

dist.barrier()
dist.destroy_process_group()
