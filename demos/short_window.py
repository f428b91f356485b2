"""An epoch of 10 micro-batches in windows of 4: the last two never reach a step, and spoil the next epoch's first.

This is a mistake, shown on purpose. With --right the last, shorter window all-reduces and steps as well.
"""

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batches", type=int, default=10, help="micro-batches in an epoch")
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

for _epoch in range(args.epochs):
    for batch in range(args.batches):
        window_ends = (batch + 1) % args.accumulation == 0
        if args.right:
            window_ends = window_ends or batch + 1 == args.batches

        with nullcontext() if window_ends else ddp_model.no_sync():
            inputs = torch.randn(4, 10, device=device)
            targets = torch.randn(4, 5, device=device)
            loss = nn.functional.mse_loss(ddp_model(inputs), targets)
            (loss / args.accumulation).backward()

        if window_ends:
            optimizer.step()
            optimizer.zero_grad()

dist.barrier()
dist.destroy_process_group()
