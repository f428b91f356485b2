"""A user's script for `accelerate launch`: accumulation by `accelerator.accumulate`, and by `no_sync` by hand."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=3, cpu=True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(48, 6), torch.randn(48, 1))
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
for x, y in loader:  # six batches a rank: two windows of three
    with accelerator.accumulate(model):
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
with accelerator.no_sync(model):
    accelerator.backward(model(x).square().mean())
accelerator.gradient_state._set_sync_gradients(True)
accelerator.backward(model(x).square().mean())
optimizer.step()
accelerator.end_training()
