"""Each rank looks at its own data to decide when its window is full: they disagree, and in the end one waits for ever.

This is a mistake, shown on purpose. With --right all ranks count micro-batches, which they have in common.
"""

import argparse
import os
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--batches", type=int, default=12, help="micro-batches")
parser.add_argument("--samples", type=int, default=12, help="samples after which a rank calls its window full")
parser.add_argument("--right", action="store_true", help="without the mistake")
args = parser.parse_args()

own_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if own_gpu else torch.device("cpu")
if own_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if own_gpu else "gloo", timeout=timedelta(minutes=1))  # usually half an hour

torch.manual_seed(0)  # the same start on every rank
ddp_model = DDP(nn.Linear(10, 5).to(device))
optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.01)
torch.manual_seed(1 + dist.get_rank())  # different data on every rank

size = 4 if dist.get_rank() == 0 else 3  # samples in a micro-batch: this rank's shard has shorter ones
held = 0  # samples since the last step
for batch in range(args.batches):
    held += size
    full = (batch + 1) % 3 == 0 if args.right else held >= args.samples

    with nullcontext() if full else ddp_model.no_sync():
        inputs = torch.randn(size, 10, device=device)
        loss = nn.functional.mse_loss(ddp_model(inputs), inputs[:, :5])
        loss.backward()

    if full:
        optimizer.step()
        optimizer.zero_grad()
        held = 0

dist.barrier()
dist.destroy_process_group()
