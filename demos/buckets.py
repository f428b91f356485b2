"""One deep network twice: one large bucket is sent when the backward is over, small ones are sent during it."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=6, help="optimizer steps with each of the two")
parser.add_argument("--large", type=float, default=100, help="bucket cap of the first, MB")
parser.add_argument("--small", type=float, default=2, help="bucket cap of the second, MB")
args = parser.parse_args()

own_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if own_gpu else torch.device("cpu")
if own_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if own_gpu else "gloo")


class LargeBuckets(nn.Sequential):
    """Twelve layers of 1 MB each."""

    def __init__(self):
        super().__init__(*(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(12)))


class SmallBuckets(LargeBuckets):
    """The same network; only its name tells it from the other."""


for network, cap in ((LargeBuckets, args.large), (SmallBuckets, args.small)):
    torch.manual_seed(0)  # the same start on every rank
    ddp_model = DDP(network().to(device), bucket_cap_mb=cap)
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.01)
    torch.manual_seed(1 + dist.get_rank())  # different data on every rank

    for _ in range(args.steps):
        inputs = torch.randn(128, 512, device=device)
        ddp_model(inputs).square().mean().backward()  # the last layers' gradients are ready first
        optimizer.step()
        optimizer.zero_grad()

dist.barrier()
dist.destroy_process_group()
