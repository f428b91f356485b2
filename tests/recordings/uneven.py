"""Each rank decides for itself when to synchronise: they meet in different passes, and wait for ever."""

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(
    nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8)), bucket_cap_mb=1
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1 + rank)

for i in range(7):
    with model.no_sync() if i % (rank + 2) else nullcontext():
        loss = model(torch.randn(16, 64)).square().mean()
        loss.backward()
    print(f"micro-step {i}: loss {loss.item():.4f}", flush=True)
    if i % 2:
        optimizer.step()
        optimizer.zero_grad()

dist.barrier()
