"""Two micro-batches stay local, then the optimizer steps: every rank steps its own way and the replicas part.

This is a mistake, shown on purpose: the last micro-batch should have been outside no_sync(), as it is with --right.
"""

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1, help="optimizer steps")
parser.add_argument("--accumulation", type=int, default=2, help="micro-batches before each step")
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

for _ in range(args.steps):
    for micro in range(args.accumulation):
        synchronise = args.right and micro == args.accumulation - 1
        with nullcontext() if synchronise else ddp_model.no_sync():
            inputs = torch.randn(4, 10, device=device)
            targets = torch.randn(4, 5, device=device)
            loss = nn.functional.mse_loss(ddp_model(inputs), targets)
            loss.backward()

    optimizer.step()  # nothing was ever averaged
    optimizer.zero_grad()

dist.barrier()
dist.destroy_process_group()
