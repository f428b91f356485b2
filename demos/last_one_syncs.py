"""Four micro-batches stay local, the fifth all-reduces all that was accumulated, then one step: the right way."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1, help="optimizer steps")
parser.add_argument("--local", type=int, default=4, help="local micro-batches before the synchronised one")
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
    inputs = torch.randn(2, 10, device=device)
    targets = torch.randn(2, 5, device=device)
    return nn.functional.mse_loss(ddp_model(inputs), targets)


for _ in range(args.steps):
    for _ in range(args.local):
        with ddp_model.no_sync():
            loss_of_a_batch().backward()  # adds to .grad on this rank only

    loss_of_a_batch().backward()  # averages the whole sum over the ranks
    optimizer.step()
    optimizer.zero_grad()

dist.barrier()
dist.destroy_process_group()
