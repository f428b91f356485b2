"""Two local micro-batches and a step, hard-coded for NCCL and CUDA, as in a tutorial: no rank, no device ids."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group(backend="nccl")
torch.manual_seed(dist.get_rank())
model = nn.Linear(10, 5).cuda()
ddp_model = DDP(model)

optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.01)

for _ in range(2):
    with ddp_model.no_sync():
        input = torch.randn(4, 10).cuda()
        target = torch.randn(4, 5).cuda()
        output = ddp_model(input)
        loss = nn.MSELoss()(output, target)
        loss.backward()

optimizer.step()
optimizer.zero_grad()
