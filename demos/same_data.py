"""Every rank draws the same batches: all ranks compute one rank's gradient, and the others are paid for nothing.

This is a mistake, shown on purpose: one seed for all. With --right each rank has its own (or a DistributedSampler).
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=8, help="optimizer steps")
parser.add_argument("--right", action="store_true", help="without the mistake")
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
optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank() if args.right else 1)  # the batches come from here

for _ in range(args.steps):
    inputs = torch.randn(16, 20, device=device)
    targets = (inputs @ rule).argmax(dim=1)
    nn.functional.cross_entropy(ddp_model(inputs), targets).backward()
    optimizer.step()
    optimizer.zero_grad()

dist.barrier()
dist.destroy_process_group()
