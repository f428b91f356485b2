"""A network with two heads that are used in turn: DDP waits for the gradients of the one that was not used.

This is a mistake, shown on purpose, and PyTorch raises. With --right DDP is told: find_unused_parameters=True.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=6, help="optimizer steps")
parser.add_argument("--right", action="store_true", help="without the mistake")
args = parser.parse_args()

own_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if own_gpu else torch.device("cpu")
if own_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if own_gpu else "gloo")


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(10, 32)
        self.words = nn.Linear(32, 5)
        self.images = nn.Linear(32, 5)

    def forward(self, inputs, task):
        hidden = self.trunk(inputs).relu()
        return self.words(hidden) if task == "words" else self.images(hidden)


torch.manual_seed(0)  # the same start on every rank
ddp_model = DDP(TwoHeads().to(device), find_unused_parameters=args.right)
optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.01)
torch.manual_seed(1 + dist.get_rank())  # different data on every rank

for step in range(args.steps):
    inputs = torch.randn(4, 10, device=device)
    loss = ddp_model(inputs, "words" if step % 2 == 0 else "images").square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

dist.barrier()
dist.destroy_process_group()
