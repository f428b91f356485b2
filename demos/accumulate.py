"""A 20-64-10 classifier with Adam: three micro-batches stay local, every fourth all-reduces and steps.

With --no-sync off every micro-batch all-reduces: the same result, four times the traffic.
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
parser.add_argument("--batches", type=int, default=8, help="micro-batches in an epoch")
parser.add_argument("--accumulation", type=int, default=4, help="micro-batches for each optimizer step")
parser.add_argument("--no-sync", choices=("on", "off"), default="on", help="whether accumulating stays local")
args = parser.parse_args()

own_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if own_gpu else torch.device("cpu")
if own_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if own_gpu else "gloo")

torch.manual_seed(0)  # the same start and the same rule to learn on every rank
rule = torch.randn(20, 10, device=device)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
ddp_model = DDP(model)
optimizer = torch.optim.Adam(ddp_model.parameters(), lr=0.001)
torch.manual_seed(1 + dist.get_rank())  # different data on every rank

for _epoch in range(args.epochs):
    for batch in range(args.batches):
        inputs = torch.randn(16, 20, device=device)
        targets = (inputs @ rule).argmax(dim=1)
        accumulating = (batch + 1) % args.accumulation != 0

        with ddp_model.no_sync() if accumulating and args.no_sync == "on" else nullcontext():
            loss = nn.functional.cross_entropy(ddp_model(inputs), targets)
            (loss / args.accumulation).backward()

        if not accumulating:
            optimizer.step()
            optimizer.zero_grad()

dist.barrier()
dist.destroy_process_group()
