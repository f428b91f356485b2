"""The classifier of accumulate.py for 300 steps, at a pace that a person can follow and change."""

import argparse
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=150)
parser.add_argument("--batches", type=int, default=8, help="micro-batches in an epoch")
parser.add_argument("--accumulation", type=int, default=4, help="micro-batches for each optimizer step")
parser.add_argument("--no-sync", choices=("on", "off"), default="on", help="whether accumulating stays local")
parser.add_argument("--batch-size", type=int, default=16, help="samples in a micro-batch")
parser.add_argument("--lr", type=float, default=0.001, help="learning rate")
parser.add_argument("--bucket-cap", type=float, default=25, help="largest bucket, MB")
parser.add_argument("--pause", type=float, default=0.1, help="seconds of rest after each micro-batch")
parser.add_argument("--slow-rank", type=int, default=-1, help="a rank that rests twice as long")
args = parser.parse_args()

own_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if own_gpu else torch.device("cpu")
if own_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if own_gpu else "gloo")

torch.manual_seed(0)  # the same start and the same rule to learn on every rank
rule = torch.randn(20, 10, device=device)
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
ddp_model = DDP(model, bucket_cap_mb=args.bucket_cap)
optimizer = torch.optim.Adam(ddp_model.parameters(), lr=args.lr)
torch.manual_seed(1 + dist.get_rank())  # different data on every rank

held = 0  # micro-batches since the last step
for left in reversed(range(args.epochs * args.batches)):
    inputs = torch.randn(args.batch_size, 20, device=device)
    targets = (inputs @ rule).argmax(dim=1)
    held += 1
    accumulating = held < args.accumulation and left > 0

    with ddp_model.no_sync() if accumulating and args.no_sync == "on" else nullcontext():
        loss = nn.functional.cross_entropy(ddp_model(inputs), targets)
        (loss / args.accumulation).backward()

    if not accumulating:
        optimizer.param_groups[0]["lr"] = args.lr
        optimizer.step()
        optimizer.zero_grad()
        held = 0
    time.sleep(args.pause * (2 if dist.get_rank() == args.slow_rank else 1))

dist.barrier()
dist.destroy_process_group()
