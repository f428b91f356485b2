"""One NaN in one batch of one rank: the all-reduce hands it to every rank, and from the next step on all is NaN.

This is a mistake, shown on purpose: nothing looks at the data. With --right samples that are not finite become 0.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=6, help="optimizer steps")
parser.add_argument("--at", type=int, default=2, help="the step whose data is damaged, on the last rank")
parser.add_argument("--right", action="store_true", help="without the mistake")
args = parser.parse_args()

own_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if own_gpu else torch.device("cpu")
if own_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if own_gpu else "gloo")

torch.manual_seed(0)  # the same start on every rank
ddp_model = DDP(nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 5)).to(device))
optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.01)
torch.manual_seed(1 + dist.get_rank())  # different data on every rank

for step in range(args.steps):
    inputs = torch.randn(4, 10, device=device)
    targets = torch.randn(4, 5, device=device)
    if step == args.at and dist.get_rank() == dist.get_world_size() - 1:
        inputs[0, 0] = float("nan")  # a damaged file, say
    if args.right:
        inputs = inputs.nan_to_num()

    loss = nn.functional.mse_loss(ddp_model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

dist.barrier()
dist.destroy_process_group()
