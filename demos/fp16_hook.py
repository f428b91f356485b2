"""A communication hook sends the gradients as float16: half the bytes, rounded on the way, equal on every rank."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=8, help="optimizer steps")
parser.add_argument("--hook", choices=("on", "off"), default="on", help="whether gradients are compressed")
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
if args.hook == "on":
    ddp_model.register_comm_hook(state=None, hook=fp16_compress_hook)
optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
torch.manual_seed(1 + dist.get_rank())  # different data on every rank

for _ in range(args.steps):
    inputs = torch.randn(16, 20, device=device)
    targets = (inputs @ rule).argmax(dim=1)
    nn.functional.cross_entropy(ddp_model(inputs), targets).backward()
    optimizer.step()
    optimizer.zero_grad()

dist.barrier()
dist.destroy_process_group()
