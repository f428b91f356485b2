"""A classifier with Adam that steps after every fourth micro-batch; for NCCL and CUDA alone."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group(backend="nccl")
torch.manual_seed(dist.get_rank())
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10)).cuda()
ddp_model = DDP(model)

optimizer = torch.optim.Adam(ddp_model.parameters(), lr=0.001)
accumulation_steps = 4

for _epoch in range(2):
    for batch_idx in range(8):
        input = torch.randn(16, 20).cuda()
        target = torch.randint(0, 10, (16,)).cuda()

        is_accumulating = (batch_idx + 1) % accumulation_steps != 0

        if is_accumulating:
            with ddp_model.no_sync():
                output = ddp_model(input)
                loss = nn.CrossEntropyLoss()(output, target)
                loss.backward()
        else:
            output = ddp_model(input)
            loss = nn.CrossEntropyLoss()(output, target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
