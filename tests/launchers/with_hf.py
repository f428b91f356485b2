"""Hugging Face's Trainer with gradient_accumulation_steps, under torchrun."""

import sys

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Numbers(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        return {"x": torch.randn(6, generator=generator), "labels": torch.randn(1, generator=generator)}


class Regression(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.net(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


torch.manual_seed(0)
arguments = TrainingArguments(
    output_dir=sys.argv[1], per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=1,
    use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no",
)  # fmt: skip
Trainer(model=Regression(), args=arguments, train_dataset=Numbers()).train()
