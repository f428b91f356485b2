"""Lightning Fabric: accumulation by `no_backward_sync`."""

import torch
from lightning.fabric import Fabric
from torch import nn

fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = fabric.setup(model, optimizer)
generator = torch.Generator().manual_seed(fabric.global_rank)
for micro in range(6):
    quiet = micro % 3 != 2
    with fabric.no_backward_sync(model, enabled=quiet):
        fabric.backward(model(torch.randn(4, 6, generator=generator)).square().mean())
    if not quiet:
        optimizer.step()
        optimizer.zero_grad()
fabric.barrier()
