"""Every rank has two batches more than the one before it: `join` has those that are done answer for the others.

With --join off the rank with fewer batches leaves, and the others wait for it for ever.
"""

import argparse
import os
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batches", type=int, default=6, help="batches of rank 0")
parser.add_argument("--more", type=int, default=2, help="how many more each further rank has")
parser.add_argument("--join", choices=("on", "off"), default="on", help="whether the loop is inside join()")
args = parser.parse_args()

own_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if own_gpu else torch.device("cpu")
if own_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if own_gpu else "gloo", timeout=timedelta(minutes=1))  # usually half an hour

torch.manual_seed(0)  # the same start on every rank
ddp_model = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5)).to(device))
optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.01)
torch.manual_seed(1 + dist.get_rank())  # different data on every rank

with ddp_model.join() if args.join == "on" else nullcontext():
    for _ in range(args.batches + args.more * dist.get_rank()):
        inputs = torch.randn(4, 10, device=device)
        targets = torch.randn(4, 5, device=device)
        loss = nn.functional.mse_loss(ddp_model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

dist.barrier()
dist.destroy_process_group()
