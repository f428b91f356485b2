"""A batch of 64 images, first as 4 micro-batches of 16, then in one piece: the same gradient, less memory."""

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=3, help="optimizer steps of each kind")
parser.add_argument("--batch", type=int, default=64, help="images for each optimizer step")
parser.add_argument("--accumulation", type=int, default=4, help="pieces of a batch in the first half")
args = parser.parse_args()

own_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if own_gpu else torch.device("cpu")
if own_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if own_gpu else "gloo")

torch.manual_seed(0)
body = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()]
ddp_model = DDP(nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).to(device))
start = {name: value.clone() for name, value in ddp_model.state_dict().items()}

for accumulation in (args.accumulation, 1):
    ddp_model.load_state_dict(start)  # both halves begin with the same weights
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())  # and see the same images; each rank has its own

    for _ in range(args.steps):
        images = torch.randn(args.batch, 3, 64, 64, device=device)
        labels = torch.randint(10, (args.batch,), device=device)
        pieces = list(zip(images.chunk(accumulation), labels.chunk(accumulation), strict=True))

        for number, (inputs, targets) in enumerate(pieces, start=1):
            with ddp_model.no_sync() if number < accumulation else nullcontext():
                loss = nn.functional.cross_entropy(ddp_model(inputs), targets)
                (loss / accumulation).backward()  # frees what this piece needed

        optimizer.step()
        optimizer.zero_grad()

dist.barrier()
dist.destroy_process_group()
